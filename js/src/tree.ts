/**
 * The module tree on screen: a treegrid of which about forty rows exist at a time.
 *
 * The grid itself is the one tab stop; `aria-activedescendant` names the active row, which is
 * always in the document, wherever the list is scrolled to.
 */

import { h, nextFrame, onResize, setAttribute, setText, show, uniqueId } from "./dom";
import { exact } from "./format";
import type { Page } from "./page";
import { parseSite, siteOf } from "./sites";
import type { PageState } from "./state";
import { treeStep, TypeAhead } from "./treekeys";
import { COLUMN_ORDER, COLUMNS, TreeRowView } from "./treerow";
import { isGlob, matcher } from "./treesearch";

const ROW = 22;
const AHEAD = 6;
/** Rows drawn where there is no layout to measure. */
const UNMEASURED = 30;

export class Tree {
  readonly element: HTMLElement;
  private readonly grid: HTMLElement;
  private readonly body = h("div", { class: "lv-tree-body", role: "rowgroup" });
  private readonly search = h("input", {
    type: "search", class: "lv-input lv-search", placeholder: "Search name, class or glob",
    title: "Part of a path or of a class, or a glob as in sites: * stays within a name, ** crosses dots",
    "aria-label": "Search modules", spellcheck: "false", autocomplete: "off", "data-test": "search",
  });
  private readonly count = h("span", { class: "lv-count", role: "status", "data-test": "match-count" });
  private readonly none = h("div", { class: "lv-message", hidden: "" });
  private readonly pool: TreeRowView[] = [];
  private readonly typeAhead = new TypeAhead();
  private readonly id = uniqueId("tree");
  private readonly drawSoon: () => void;
  private readonly barHead: HTMLElement;
  private active = 0;
  private own = "";
  private edited = new Set<number>();

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
  ) {
    const heads = COLUMNS.map(([kind, title]) =>
      h("span", { class: `lv-cell lv-cell-${kind}`, role: "columnheader", title: kind === "name" ? COLUMN_ORDER : undefined }, title));
    this.barHead = heads.find((head) => head.classList.contains("lv-cell-bar")) ?? h("span");
    const head = h("div", { class: "lv-tree-row lv-tree-head", role: "row", "aria-rowindex": "1" }, ...heads);
    this.grid = h("div", {
      class: "lv-tree", role: "treegrid", tabindex: "0", "aria-label": "Modules", "data-test": "tree",
    }, h("div", { role: "rowgroup", class: "lv-tree-top" }, head), this.body);
    const button = (text: string, title: string, open: boolean): HTMLElement => {
      const element = h("button", { type: "button", class: "lv-icon", title, "aria-label": title }, text);
      element.addEventListener("click", () => {
        this.page.tree.setAllOpen(open);
        this.settle();
      }, { signal });
      return element;
    };
    this.element = h("section", { class: "lv-panel lv-tree-panel", "aria-label": "Module tree" },
      h("div", { class: "lv-tree-bar" }, this.search, this.count,
        button("⊞", "Expand all", true), button("⊟", "Collapse all", false)),
      this.grid, this.none);
    this.drawSoon = nextFrame(signal, () => { this.draw(); });
    this.listen();
    onResize(signal, this.grid, this.drawSoon);
    page.store.watch(signal, (now, before) => { this.follow(now, before); });
  }

  private listen(): void {
    const options = { signal: this.signal };
    this.grid.addEventListener("scroll", this.drawSoon, { ...options, passive: true });
    this.grid.addEventListener("keydown", (event) => { this.key(event); }, options);
    this.body.addEventListener("click", (event) => { this.click(event); }, options);
    this.body.addEventListener("dblclick", (event) => {
      const row = rowUnder(event);
      if (row !== null && row >= 0 && !onTwist(event)) this.toggle(row);
    }, options);
    this.search.addEventListener("input", () => { this.filter(); }, options);
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.search.value !== "") {
        this.search.value = "";
        this.filter();
      } else if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.active = Math.max(0, this.page.tree.visible.findIndex((row) => this.page.tree.isMatch(row)));
        this.grid.focus();
        this.reach();
      }
    }, options);
  }

  private follow(now: PageState, before: PageState): void {
    if (now.treeRows !== before.treeRows) {
      this.settle();
      this.revealSelected(now.selected);
      this.followEdits(now);
    } else if (now.selected !== before.selected) {
      if (now.selected !== this.own) this.revealSelected(now.selected);
      this.drawSoon();
    } else if (now.shapesOf !== before.shapesOf || now.sizesOf !== before.sizesOf) {
      this.drawSoon();
    }
    if (now.kernel.interventions !== before.kernel.interventions) this.followEdits(now);
  }

  /** Mark the edited modules, and open the folds that hide those that were not edited before. */
  private followEdits({ kernel }: PageState): void {
    const { tree } = this.page;
    const before = this.edited;
    this.edited = new Set();
    for (const { enabled, site } of kernel.interventions) {
      if (!enabled) continue;
      const { path } = parseSite(site);
      const rows = isGlob(path) ? tree.matching(matcher(path)) : [tree.find(path)];
      for (const row of rows) if (row >= 0) this.edited.add(row);
    }
    const fresh = [...this.edited].filter((row) => !before.has(row));
    const active = tree.visible[this.active];
    if (tree.unfold(fresh)) {
      this.active = active === undefined ? 0 : tree.visible.indexOf(active);
      this.settle();
    }
    this.drawSoon();
  }

  /** Open what is above the selected module and go there: it was selected elsewhere. */
  private revealSelected(site: string): void {
    const { tree } = this.page;
    const row = site === "" ? -1 : tree.find(parseSite(site).path);
    if (row < 0) return;
    tree.reveal(row);
    const at = tree.visible.indexOf(row);
    if (at < 0) return;
    this.active = at;
    this.settle();
    this.reach();
  }

  private filter(): void {
    const { tree } = this.page;
    const row = tree.visible[this.active];
    tree.filter(this.search.value);
    const searching = this.search.value.trim() !== "";
    setText(this.count, searching ? `${exact(tree.matches)} of ${exact(tree.length)}` : "");
    setText(this.none, `No path or class ${isGlob(this.search.value) ? "matches" : "contains"} “${this.search.value.trim()}”.`);
    show(this.none, searching && tree.matches === 0);
    const kept = row === undefined ? -1 : tree.visible.indexOf(row);
    this.active = Math.max(0, kept);
    this.settle();
    if (kept >= 0) this.reach();
    else this.grid.scrollTop = 0;
    // After a search the tree is where the search led, not back at its top.
    if (!searching) this.revealSelected(this.page.store.now.selected);
  }

  private click(event: MouseEvent): void {
    const row = rowUnder(event);
    if (row === null) return;
    this.active = this.page.tree.visible.indexOf(row);
    if (onTwist(event) || (row < 0 && event.detail < 2)) this.toggle(row);
    else if (event.detail < 2) this.select(row);
    this.drawSoon();
  }

  private select(row: number): void {
    if (row < 0) {
      this.toggle(row);
      return;
    }
    const { tree } = this.page;
    // Of several calls the first is shown: the bar above the picture steps through them.
    this.own = siteOf(tree.path(row), "output", tree.callsOf(row) > 1 ? 0 : null);
    void this.page.select(this.own);
  }

  private toggle(row: number): void {
    const { tree } = this.page;
    if (!tree.hasChildren(row)) return;
    tree.setOpen(row, !tree.isOpen(row));
    this.active = tree.visible.indexOf(row);
    this.settle();
  }

  private key(event: KeyboardEvent): void {
    if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey) return;
    const { tree } = this.page;
    const page = Math.max(1, Math.floor(this.grid.clientHeight / ROW) - 2);
    const step = treeStep(tree, event.key, this.active, page);
    if (step === null) {
      if (event.key.length !== 1) return;
      const found = this.typeAhead.find(tree, event.key, this.active, event.timeStamp);
      if (found >= 0) this.active = found;
    } else if ("move" in step) {
      this.active = step.move;
    } else if ("select" in step) {
      this.select(step.select);
    } else {
      this.toggle("open" in step ? step.open : step.close);
    }
    event.preventDefault();
    this.reach();
  }

  /** Bring the active row into sight. */
  private reach(): void {
    const top = this.active * ROW;
    const room = this.grid.clientHeight - ROW;
    if (room > 0) {
      if (top < this.grid.scrollTop) this.grid.scrollTop = top;
      else if (top + ROW > this.grid.scrollTop + room) this.grid.scrollTop = top + ROW - room;
    }
    this.draw();
  }

  /** The list has changed: its height, its length, the active row's place. */
  private settle(): void {
    const { visible } = this.page.tree;
    this.active = Math.max(0, Math.min(visible.length - 1, this.active));
    this.body.style.height = `${visible.length * ROW}px`;
    setAttribute(this.grid, "aria-rowcount", String(visible.length + 1));
    this.draw();
  }

  /** Fill the rows in sight. A row keeps its element while it scrolls, so most are left alone. */
  private draw(): void {
    const { visible } = this.page.tree;
    const height = this.grid.clientHeight;
    const first = Math.max(0, Math.floor(this.grid.scrollTop / ROW) - AHEAD);
    const length = height > 0 ? Math.ceil(height / ROW) + 2 * AHEAD : UNMEASURED;
    const last = Math.min(visible.length, first + length);
    this.grow(length + 1);
    const slots = new Map<number, number>();
    for (let at = first; at < last; at += 1) slots.set(at % length, at);
    // The last slot is for an active row that is out of sight.
    if (this.active < first || this.active >= last) slots.set(length, this.active);
    let activeId: string | null = null;
    const selected = this.selectedRow();
    const query = this.search.value.trim();
    const ran = this.page.store.now.kernel.run > 0;
    const [title, meaning] = this.page.tree.bars.head();
    setText(this.barHead, title);
    setAttribute(this.barHead, "title", meaning);
    this.pool.forEach((view, slot) => {
      const at = slots.get(slot);
      const row = at === undefined ? undefined : visible[at];
      if (at === undefined || row === undefined) {
        view.hide();
        return;
      }
      const active = at === this.active;
      if (active) activeId = view.element.id;
      view.update(this.page.tree, row, {
        at, active, selected: row === selected, query, edited: this.edited.has(row), ran,
      });
    });
    setAttribute(this.grid, "aria-activedescendant", activeId);
  }

  private grow(length: number): void {
    while (this.pool.length < length) {
      const view = new TreeRowView(`${this.id}-${this.pool.length}`, ROW);
      this.pool.push(view);
      this.body.append(view.element);
    }
  }

  private selectedRow(): number {
    const { selected } = this.page.store.now;
    return selected === "" ? NaN : this.page.tree.find(parseSite(selected).path);
  }
}

/** The row under a pointer; null where there is none. */
function rowUnder(event: Event): number | null {
  const element = event.target instanceof Element ? event.target.closest("[data-row]") : null;
  return element ? Number(element.getAttribute("data-row")) : null;
}

function onTwist(event: Event): boolean {
  return event.target instanceof Element && event.target.closest(".lv-twist") !== null;
}
