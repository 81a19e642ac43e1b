/** The interventions table: shows the kernel's rows, sends all of them after every edit. */

import { h, setAttribute, setText, show } from "./dom";
import { InterventionView } from "./interventionrow";
import type { Page } from "./page";
import type { InterventionRow } from "./protocol";
import { rowsOf, type PageState } from "./state";

/** What "Add" starts with: scaling by 0 is the plainest question that one can ask of a site. */
const FIRST = "scale";

/** Column titles that are seen; the others explain themselves and are there to be heard. */
const SAID = new Set(["operation", "index", "value"]);

/** The rows with one of them changed. */
export function withChange(
  rows: readonly InterventionRow[],
  id: string,
  change: Partial<InterventionRow>,
): InterventionRow[] {
  return rows.map((row) => (row.id === id ? { ...row, ...change, error: "", changed: null } : row));
}

/** The rows with a new one, whose id none of them has. */
export function withNew(
  rows: readonly InterventionRow[],
  site: string,
  operations: readonly string[],
): InterventionRow[] {
  const taken = new Set(rows.map((row) => row.id));
  let count = rows.length + 1;
  while (taken.has(`page-${count}`)) count += 1;
  const operation = operations.includes(FIRST) ? FIRST : (operations[0] ?? FIRST);
  return [...rows, {
    id: `page-${count}`, enabled: true, site, operation, index: "",
    value: operation === FIRST ? "0" : "", locked: false, error: "", changed: null,
  }];
}

export class Interventions {
  readonly element: HTMLElement;
  private readonly list = h("div", { class: "lv-edits", role: "rowgroup" });
  private readonly views = new Map<string, InterventionView>();
  private readonly add = h("button", {
    type: "button", class: "lv-button lv-small", "data-test": "add-intervention",
    title: "Add a row that scales the selected site by 0",
  }, "Add from selected site");
  private readonly pending = h("span", { class: "lv-pending", role: "status" });
  private readonly empty = h("p", { class: "lv-empty" },
    "None. Select a module and add one: the prompt runs again with the edit, beside the baseline.");
  private readonly table: HTMLElement;

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
  ) {
    const head = h("div", { class: "lv-edit lv-edit-head", role: "row" },
      ...["enabled", "site", "operation", "index", "value", "changed", "remove"].map((title) =>
        h("span", { role: "columnheader", class: SAID.has(title) ? `lv-edit-${title}` : "lv-sr" }, title)));
    this.table = h("div", { class: "lv-edit-table", role: "table", "aria-label": "Interventions" },
      h("div", { role: "rowgroup" }, head), this.list);
    this.element = h("section", {
      class: "lv-panel lv-interventions", "aria-label": "Interventions", "data-test": "interventions",
    },
      h("div", { class: "lv-titlebar" },
        h("h3", { class: "lv-title" }, "Interventions", this.pending), this.add),
      h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Interventions list" }, this.empty, this.table));
    this.add.addEventListener("click", () => {
      const { selected, hello } = page.store.now;
      if (selected === "" || !hello) return;
      void page.edit(withNew(rowsOf(page.store.now), selected, hello.operations));
    }, { signal });
    page.store.watch(signal, (now) => { this.update(now); });
  }

  private update(now: PageState): void {
    const rows = rowsOf(now);
    const pending = now.sentRows !== null;
    setText(this.pending, pending ? "applying…" : "");
    setAttribute(this.element, "data-pending", String(pending));
    this.add.disabled = now.hello === null || now.selected === "";
    show(this.empty, rows.length === 0);
    show(this.table, rows.length > 0);
    const kept = new Set(rows.map((row) => row.id));
    for (const [id, view] of this.views) {
      if (kept.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    rows.forEach((row, at) => {
      const view = this.views.get(row.id) ?? this.make(row.id);
      view.update(row, now.hello?.operations ?? [], pending);
      if (this.list.children[at] !== view.element) {
        this.list.insertBefore(view.element, this.list.children[at] ?? null);
      }
    });
  }

  private make(id: string): InterventionView {
    const view = new InterventionView(this.signal, {
      change: (change) => { void this.page.edit(withChange(rowsOf(this.page.store.now), id, change)); },
      remove: () => { void this.page.edit(rowsOf(this.page.store.now).filter((row) => row.id !== id)); },
      visit: (site) => { void this.page.select(site); },
    });
    this.views.set(id, view);
    return view;
  }
}
