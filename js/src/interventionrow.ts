/** One row of the interventions table. Text fields commit on Enter or when they are left. */

import { h, setAttribute, setText, show } from "./dom";
import { exact, human } from "./format";
import type { InterventionRow } from "./protocol";

type Field = "enabled" | "site" | "operation" | "index" | "value";

export interface RowActions {
  change(change: Partial<InterventionRow>): void;
  remove(): void;
  /** Show this site in the heatmap. */
  visit(site: string): void;
}

/** What an operation takes, as an example. */
const EXAMPLES: Record<string, string> = { zero: "–", clamp: "low, high", noise: "std, seed" };

export class InterventionView {
  readonly element: HTMLElement;
  private readonly enabled = h("input", {
    type: "checkbox", "data-field": "enabled", "aria-label": "Enabled", title: "Enabled",
  });
  private readonly site = text("site", "Site");
  private readonly operation = h("select", { class: "lv-input", "data-field": "operation", "aria-label": "Operation" });
  private readonly index = text("index", "Index", "all");
  private readonly value = text("value", "Value");
  private readonly changed = h("span", { role: "cell", class: "lv-edit-changed", "data-field": "changed" });
  private readonly error = h("span", { role: "alert", "data-field": "error" });
  private readonly errorCell = h("div", { role: "cell", class: "lv-edit-error" }, this.error);
  private row: InterventionRow | null = null;

  constructor(
    private readonly signal: AbortSignal,
    private readonly actions: RowActions,
  ) {
    const remove = h("button", {
      type: "button", class: "lv-icon", "data-field": "remove", title: "Remove", "aria-label": "Remove",
    }, "×");
    const cell = (kind: string, child: HTMLElement): HTMLElement =>
      h("span", { role: "cell", class: `lv-edit-${kind}` }, child);
    this.element = h("div", { class: "lv-edit", role: "row", "data-test": "intervention" },
      cell("enabled", this.enabled), cell("site", this.site), cell("operation", this.operation),
      cell("index", this.index), cell("value", this.value), this.changed, cell("remove", remove),
      this.errorCell);
    this.enabled.addEventListener("change", () => { this.commit("enabled", this.enabled.checked); }, { signal });
    this.operation.addEventListener("change", () => { this.commit("operation", this.operation.value); }, { signal });
    remove.addEventListener("click", () => { actions.remove(); }, { signal });
    this.site.addEventListener("dblclick", () => { if (this.row) actions.visit(this.row.site); }, { signal });
    this.listen(this.site, "site");
    this.listen(this.index, "index");
    this.listen(this.value, "value");
  }

  private listen(input: HTMLInputElement, field: "site" | "index" | "value"): void {
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

  update(row: InterventionRow, operations: readonly string[], pending: boolean): void {
    const before = this.row;
    this.row = row;
    setAttribute(this.element, "data-id", row.id);
    this.element.classList.toggle("lv-off", !row.enabled);
    this.enabled.checked = row.enabled;
    fill(this.site, row.site, before?.site);
    fill(this.index, row.index, before?.index);
    fill(this.value, row.value, before?.value);
    setAttribute(this.site, "title", row.site);
    const choices = operations.includes(row.operation) ? operations : [row.operation, ...operations];
    if (this.operation.childElementCount !== choices.length) {
      this.operation.replaceChildren(...choices.map((name) => h("option", { value: name }, name)));
    }
    this.operation.value = row.operation;
    this.operation.disabled = row.locked;
    this.value.readOnly = row.locked;
    this.value.disabled = row.operation === "zero";
    this.value.placeholder = EXAMPLES[row.operation] ?? "number";
    setAttribute(this.value, "title", row.locked ? "This value comes from code and has no text form" : null);
    setText(this.changed, pending ? "…" : row.changed === null ? "" : `Δ ${row.changed < 10_000 ? exact(row.changed) : human(row.changed)}`);
    setAttribute(this.changed, "title", row.changed === null
      ? "not run yet" : `${exact(row.changed)} elements changed in the latest run`);
    setText(this.error, row.error);
    show(this.errorCell, row.error !== "");
    setAttribute(this.element, "aria-invalid", row.error === "" ? null : "true");
  }
}

function text(field: string, label: string, placeholder = ""): HTMLInputElement {
  return h("input", {
    type: "text", class: "lv-input lv-mono", "data-field": field, "aria-label": label, placeholder,
    spellcheck: "false", autocomplete: "off", autocapitalize: "off",
  });
}

/** Show the row's text, unless someone is in the middle of typing another. */
function fill(input: HTMLInputElement, value: string, before: string | undefined): void {
  const typing = input === document.activeElement && input.value !== before;
  if (!typing && input.value !== value) input.value = value;
}
