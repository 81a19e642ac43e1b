/** One row of the interventions table. Text fields commit on Enter or when they are left. */

import { h, setAttribute, setText, show } from "./dom";
import { exact, human } from "./format";
import { menuButton, type Command } from "./menu";
import type { EffectReply, InterventionRow, NamedValue, RunRow } from "./protocol";
import { fill, kindOf, firstValue, ValueField } from "./values";

type Field = "enabled" | "site" | "operation" | "index" | "value";

export interface RowActions {
  change(change: Partial<InterventionRow>): void;
  remove(): void;
  duplicate(): void;
  /** Up (-1) or down (1) in the table. */
  move(by: number): void;
  /** Find out what the row does by itself. */
  effect(): void;
  names(row: InterventionRow): Promise<readonly NamedValue[]>;
  /** Show this site in the heatmap. */
  visit(site: string): void;
}

/** What the row is shown with. */
export interface RowContext {
  operations: readonly string[];
  runs: readonly RunRow[];
  effect: EffectReply | undefined;
  pending: boolean;
}

export class InterventionView {
  readonly element: HTMLElement;
  private readonly enabled = h("input", {
    type: "checkbox", "data-field": "enabled", "aria-label": "Enabled", title: "Enabled",
  });
  private readonly site = text("site", "Site");
  private readonly operation = h("select", { class: "lv-input", "data-field": "operation", "aria-label": "Operation" });
  private readonly index = text("index", "Index", "all");
  private readonly value: ValueField;
  private readonly changed = h("span", { role: "cell", class: "lv-edit-changed", "data-field": "changed" });
  private readonly error = h("span", { role: "alert", "data-field": "error" });
  private readonly errorCell = h("div", { role: "cell", class: "lv-edit-error" }, this.error);
  private readonly effect = h("span", { role: "status", "data-field": "effect" });
  private readonly visit = h("button", { type: "button", class: "lv-button lv-small", hidden: "", "data-field": "visit" }, "Show it");
  private readonly effectCell = h("div", { role: "cell", class: "lv-edit-effect", hidden: "" }, this.effect, this.visit);
  private row: InterventionRow | null = null;
  private runs: readonly RunRow[] = [];

  constructor(
    private readonly signal: AbortSignal,
    private readonly actions: RowActions,
  ) {
    const remove = h("button", {
      type: "button", class: "lv-icon", "data-field": "remove", title: "Remove", "aria-label": "Remove",
    }, "×");
    this.value = new ValueField(signal, {
      commit: (value) => { this.commit("value", value); },
      names: () => (this.row ? actions.names(this.row) : Promise.resolve([])),
    });
    const more = menuButton("⋯", "More for this row", "row-menu", signal, () => this.commands());
    const cell = (kind: string, child: HTMLElement): HTMLElement =>
      h("span", { role: "cell", class: `lv-edit-${kind}` }, child);
    this.element = h("div", { class: "lv-edit", role: "row", "data-test": "intervention" },
      cell("enabled", this.enabled), cell("site", this.site), cell("index", this.index),
      cell("more", more), cell("remove", remove), cell("operation", this.operation),
      this.value.element, this.changed, this.errorCell, this.effectCell);
    const options = { signal };
    this.enabled.addEventListener("change", () => { this.commit("enabled", this.enabled.checked); }, options);
    this.operation.addEventListener("change", () => { this.choose(this.operation.value); }, options);
    remove.addEventListener("click", () => { actions.remove(); }, options);
    this.site.addEventListener("dblclick", () => { if (this.row) actions.visit(this.row.site); }, options);
    this.visit.addEventListener("click", () => { actions.visit(this.visit.value); }, options);
    this.element.addEventListener("keydown", (event) => { this.key(event); }, options);
    this.listen(this.site, "site");
    this.listen(this.index, "index");
  }

  private commands(): Command[] {
    const { actions, row } = this;
    return [
      { text: "Where is its first effect?", test: "row-effect", act: () => { actions.effect(); } },
      { text: "Show its site", test: "row-visit", act: () => { if (row) actions.visit(row.site); } },
      { text: "Duplicate", keys: "Ctrl+D", test: "row-duplicate", act: () => { actions.duplicate(); } },
      { text: "Move up", keys: "Alt+↑", test: "row-up", act: () => { actions.move(-1); } },
      { text: "Move down", keys: "Alt+↓", test: "row-down", act: () => { actions.move(1); } },
      { text: "Remove", test: "row-remove", act: () => { actions.remove(); } },
    ];
  }

  private key(event: KeyboardEvent): void {
    const step = event.altKey ? { ArrowUp: -1, ArrowDown: 1 }[event.key] : undefined;
    if (step !== undefined) this.actions.move(step);
    else if (event.key === "d" && (event.ctrlKey || event.metaKey)) this.actions.duplicate();
    else return;
    event.preventDefault();
  }

  private listen(input: HTMLInputElement, field: "site" | "index"): void {
    const options = { signal: this.signal };
    const commit = (): void => { this.commit(field, input.value.trim()); };
    input.addEventListener("blur", commit, options);
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") commit();
      if (event.key === "Escape" && this.row) input.value = this.row[field];
    }, options);
  }

  private commit(field: Field, value: string | boolean): void {
    if (!this.row || this.row[field] === value) return;
    this.actions.change({ [field]: value });
  }

  /** Another operation; a value that means nothing to it is replaced by what it starts with. */
  private choose(operation: string): void {
    if (!this.row || this.row.operation === operation) return;
    const kept = kindOf(this.row) === kindOf({ operation, locked: false }) && kindOf(this.row) !== "pair";
    const value = kept ? this.row.value : firstValue(operation, this.runs);
    this.actions.change({ operation, value });
  }

  update(row: InterventionRow, { operations, runs, effect, pending }: RowContext): void {
    const before = this.row;
    this.row = row;
    this.runs = runs;
    setAttribute(this.element, "data-id", row.id);
    this.element.classList.toggle("lv-off", !row.enabled);
    this.enabled.checked = row.enabled;
    fill(this.site, row.site, before?.site);
    fill(this.index, row.index, before?.index);
    this.value.update(row, runs);
    setAttribute(this.site, "title", row.site);
    setAttribute(this.index, "title", row.index === "" ? "Index: empty is everything. Such as 0, 3 or :, 1:3 or at(token=-1)" : row.index);
    const choices = operations.includes(row.operation) ? operations : [row.operation, ...operations];
    if (this.operation.childElementCount !== choices.length) {
      this.operation.replaceChildren(...choices.map((name) => h("option", { value: name }, name)));
    }
    this.operation.value = row.operation;
    this.operation.disabled = row.locked;
    setText(this.changed, pending ? "…" : row.changed === null ? "" : `Δ ${row.changed < 10_000 ? exact(row.changed) : human(row.changed)}`);
    setAttribute(this.changed, "title", row.changed === null
      ? "not run yet" : `${exact(row.changed)} elements changed in the latest run`);
    setText(this.error, row.error);
    show(this.errorCell, row.error !== "");
    setAttribute(this.element, "aria-invalid", row.error === "" ? null : "true");
    setText(this.effect, effect?.text ?? "");
    show(this.effectCell, effect !== undefined && row.error === "");
    this.visit.value = effect?.first ?? "";
    show(this.visit, this.visit.value !== "");
  }
}

function text(field: string, label: string, placeholder = ""): HTMLInputElement {
  return h("input", {
    type: "text", class: "lv-input lv-mono", "data-field": field, "aria-label": label, placeholder,
    spellcheck: "false", autocomplete: "off", autocapitalize: "off",
  });
}
