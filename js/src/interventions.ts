/** The interventions table: shows the kernel's rows, sends all of them after every edit. */

import { CallCancelled } from "./client";
import { h, setAttribute, setText, show } from "./dom";
import { withChange, withCopy, withMove, withNew } from "./editrows";
import { InterventionView } from "./interventionrow";
import type { Page } from "./page";
import type { InterventionRow, NamedValue } from "./protocol";
import { Section } from "./side";
import { rowsOf, type PageState } from "./state";

export class Interventions {
  readonly element: HTMLElement;
  private readonly section: Section;
  private readonly list = h("div", { class: "lv-edits", role: "rowgroup" });
  private readonly views = new Map<string, InterventionView>();
  private readonly add = h("button", {
    type: "button", class: "lv-button lv-small", "data-test": "add-intervention",
    title: "Add a row that scales the selected site by 0 (Alt + Enter)", "aria-label": "Add from selected site",
  }, "+ Add");
  private readonly undo = tool("↶", "Undo (Ctrl + Z)", "undo");
  private readonly redo = tool("↷", "Redo (Ctrl + Shift + Z)", "redo");
  private readonly empty = h("p", { class: "lv-empty" },
    "None. Select a module and add one, or Alt + Enter in the tree: the prompt runs again with the edit, beside the baseline.");
  private readonly table: HTMLElement;

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
  ) {
    const titles = ["enabled", "site", "index", "more", "remove", "operation", "value", "changed"];
    const head = h("div", { class: "lv-sr", role: "row" },
      ...titles.map((title) => h("span", { role: "columnheader" }, title)));
    this.table = h("div", { class: "lv-edit-table", role: "table", "aria-label": "Interventions" },
      h("div", { role: "rowgroup" }, head), this.list);
    this.section = new Section("interventions", "Interventions", true, signal, this.undo, this.redo, this.add);
    this.section.body.append(
      h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Interventions list" }, this.empty, this.table));
    this.element = this.section.element;
    const options = { signal };
    this.add.addEventListener("click", () => { this.addRow(page.store.now.selected); }, options);
    this.undo.addEventListener("click", () => { this.step("undo"); }, options);
    this.redo.addEventListener("click", () => { this.step("redo"); }, options);
    page.store.watch(signal, (now, before) => {
      this.update(now);
      if (now.picked !== null && now.picked !== before.picked) {
        const { site, index } = now.picked;
        page.store.set({ picked: null });
        this.addRow(site, index);
      }
    });
  }

  /** A new row at the end, for a site and a part of it. */
  addRow(site: string, index = ""): void {
    const { hello } = this.page.store.now;
    if (site === "" || !hello) return;
    this.section.open(true);
    void this.page.edit(withNew(rowsOf(this.page.store.now), site, hello.operations, index));
  }

  /** Undo or redo, where there is something to. */
  step(way: "undo" | "redo"): void {
    const { can_undo, can_redo } = this.page.store.now.kernel;
    if (way === "undo" ? can_undo : can_redo) void this.page.act(way, {});
  }

  private update(now: PageState): void {
    const rows = rowsOf(now);
    const pending = now.sentRows !== null;
    const on = rows.filter((row) => row.enabled).length;
    this.section.say(pending ? "applying…" : rows.length > 0 ? `${on} on` : "", pending ? "warn" : "");
    setAttribute(this.element, "data-pending", String(pending));
    this.add.disabled = now.hello === null || now.selected === "";
    this.undo.disabled = !now.kernel.can_undo;
    this.redo.disabled = !now.kernel.can_redo;
    setText(this.empty, now.selected === ""
      ? "None. Select a module, then add a row: the prompt runs again with the edit, beside the baseline."
      : "None. + Add edits the selected site: the prompt runs again with the edit, beside the baseline.");
    show(this.empty, rows.length === 0);
    show(this.table, rows.length > 0);
    this.arrange(rows);
    for (const row of rows) {
      this.views.get(row.id)?.update(row, {
        operations: now.hello?.operations ?? [], runs: now.kernel.runs, effect: now.effects[row.id], pending,
      });
    }
  }

  /** One view for each row, in their order; the focus stays where it is. */
  private arrange(rows: readonly InterventionRow[]): void {
    const kept = new Set(rows.map((row) => row.id));
    for (const [id, view] of this.views) {
      if (kept.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    const focused = this.list.contains(document.activeElement) ? document.activeElement : null;
    rows.forEach((row, at) => {
      const view = this.views.get(row.id) ?? this.make(row.id);
      if (this.list.children[at] !== view.element) {
        this.list.insertBefore(view.element, this.list.children[at] ?? null);
      }
    });
    // Moving an element in the document takes its focus away.
    if (focused instanceof HTMLElement && focused !== document.activeElement) focused.focus();
  }

  private make(id: string): InterventionView {
    const { page } = this;
    const rows = (): InterventionRow[] => rowsOf(page.store.now);
    const view = new InterventionView(this.signal, {
      change: (change) => { void page.edit(withChange(rows(), id, change)); },
      remove: () => { void page.edit(rows().filter((row) => row.id !== id)); },
      duplicate: () => { void page.edit(withCopy(rows(), id)); },
      move: (by) => {
        const moved = withMove(rows(), id, by);
        if (moved !== rows()) void page.edit([...moved]);
      },
      effect: () => { void page.effect(id); },
      names: (row) => this.names(row),
      visit: (site) => { void page.select(site); },
    });
    this.views.set(id, view);
    return view;
  }

  private async names({ site, operation }: InterventionRow): Promise<readonly NamedValue[]> {
    try {
      const { result } = await this.page.client.call("names", { site, operation }, { key: "names" }).answer;
      return result.names;
    } catch (error) {
      // What is offered is a help; the row itself says what is wrong with it.
      if (error instanceof CallCancelled) return [];
      this.page.store.set({ notice: error instanceof Error ? error.message : String(error) });
      return [];
    }
  }
}

function tool(text: string, title: string, test: string): HTMLButtonElement {
  return h("button", { type: "button", class: "lv-icon", title, "aria-label": title, "data-test": test }, text);
}
