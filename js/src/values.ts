/** How the value of an operation is edited: as a number, a pair, a choice of run, or a name. */

import { h, setAttribute, uniqueId } from "./dom";
import type { InterventionRow, NamedValue, RunRow } from "./protocol";

export type Kind = "none" | "number" | "pair" | "run" | "name";

const KINDS: Record<string, Kind> = {
  zero: "none", scale: "number", add: "name", put: "name", clamp: "pair", noise: "pair",
  patch: "run", mean: "run", project_out: "name",
};
const PARTS: Record<string, readonly [string, string]> = { clamp: ["low", "high"], noise: ["std", "seed"] };
const HINTS: Record<string, string> = {
  scale: "number", add: "number or variable", put: "number or variable", project_out: "variable",
};
const FIRST: Record<string, string> = { scale: "0", add: "0", put: "0", clamp: "-1, 1", noise: "0.1, 0" };

export function kindOf(row: Pick<InterventionRow, "operation" | "locked">): Kind | "locked" {
  return row.locked ? "locked" : (KINDS[row.operation] ?? "number");
}

/** What an operation starts with, where the value of another one means nothing to it. */
export function firstValue(operation: string, runs: readonly RunRow[]): string {
  if (KINDS[operation] === "run") {
    const held = runs.filter((run) => run.held);
    const source = held.at(-2) ?? held.at(-1);
    return source ? `run ${source.number}` : "";
  }
  return FIRST[operation] ?? "";
}

/** The two ends of "low, high". */
export function pairOf(value: string): [string, string] {
  const [first = "", ...rest] = value.split(",");
  return [first.trim(), rest.join(",").trim()];
}

/** The runs that a value can come from, newest first: their text in a row, and what a person reads. */
export function runChoices(runs: readonly RunRow[]): [string, string][] {
  return [...runs].reverse().filter((run) => run.held).flatMap((run) => {
    const label = run.name || run.prompt;
    const choice: [string, string] = [`run ${run.number}`, `run ${run.number}: ${label}`];
    if (run.interventions.length === 0) return [choice];
    return [choice, [`run ${run.number} baseline`, `run ${run.number} without edits: ${label}`]];
  });
}

export interface ValueActions {
  commit(value: string): void;
  /** The user's variables that may stand here. */
  names(): Promise<readonly NamedValue[]>;
}

/** The field, or fields, of one row's value. */
export class ValueField {
  readonly element = h("span", { role: "cell", class: "lv-edit-value" });
  private kind: Kind | "locked" | "" = "";
  private operation = "";
  private value = "";
  private inputs: HTMLInputElement[] = [];
  private choice: HTMLSelectElement | null = null;
  private readonly list = h("datalist", { id: uniqueId("names") });
  private named: readonly NamedValue[] = [];
  private runs: readonly RunRow[] = [];

  constructor(private readonly signal: AbortSignal, private readonly actions: ValueActions) {}

  update(row: InterventionRow, runs: readonly RunRow[]): void {
    this.runs = runs;
    const kind = kindOf(row);
    if (kind !== this.kind || row.operation !== this.operation) this.build(kind, row.operation);
    const before = this.value;
    this.value = row.value;
    if (this.choice) this.offer();
    const texts = kind === "pair" ? pairOf(row.value) : [row.value];
    const earlier = kind === "pair" ? pairOf(before) : [before];
    this.inputs.forEach((input, at) => { fill(input, texts[at] ?? "", earlier[at]); });
    const only = this.inputs[0];
    if (only && kind !== "pair") {
      setAttribute(only, "title", kind === "locked" ? "This value comes from code and has no text form" : row.value || null);
    }
  }

  private build(kind: Kind | "locked", operation: string): void {
    this.kind = kind;
    this.operation = operation;
    this.inputs = [];
    this.choice = null;
    this.named = [];
    if (kind === "run") {
      this.choice = h("select", { class: "lv-input", "data-field": "value", "aria-label": "Source" });
      const { choice } = this;
      choice.addEventListener("change", () => { this.actions.commit(choice.value); }, { signal: this.signal });
      choice.addEventListener("focus", () => { void this.fetch(); }, { signal: this.signal });
      this.element.replaceChildren(choice);
      void this.fetch();
      return;
    }
    const parts = kind === "pair" ? (PARTS[operation] ?? ["first", "second"]) : ["value"];
    this.inputs = parts.map((part) => this.input(part, kind, operation));
    this.element.replaceChildren(...this.inputs, ...(kind === "name" ? [this.list] : []));
  }

  private input(part: string, kind: Kind | "locked", operation: string): HTMLInputElement {
    const options = { signal: this.signal };
    const hint = kind === "pair" ? part : kind === "none" ? "–" : (HINTS[operation] ?? "");
    const input = h("input", {
      type: "text", class: "lv-input lv-mono", "data-field": part, placeholder: hint,
      "aria-label": kind === "pair" ? part : "Value", title: kind === "pair" ? part : undefined,
      inputmode: kind === "number" || kind === "pair" ? "decimal" : undefined,
      list: kind === "name" ? this.list.id : undefined,
      spellcheck: "false", autocomplete: "off", autocapitalize: "off",
    });
    input.readOnly = kind === "locked";
    input.disabled = kind === "none";
    const commit = (): void => { this.commit(); };
    input.addEventListener("blur", commit, options);
    if (kind === "name") {
      input.addEventListener("focus", () => { void this.fetch(); }, options);
      input.addEventListener("change", commit, options);
    }
    input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") commit();
      if (event.key === "Escape") this.inputs.forEach((one, at) => { one.value = this.texts()[at] ?? ""; });
      this.step(event, input);
    }, options);
    return input;
  }

  /** Up and down change a number by one, with Shift by a tenth. */
  private step(event: KeyboardEvent, input: HTMLInputElement): void {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const now = Number(input.value);
    if (way === undefined || event.altKey || input.list !== null || input.value.trim() === "" || !Number.isFinite(now)) return;
    event.preventDefault();
    const by = event.shiftKey && this.operation !== "noise" ? 0.1 : 1;
    input.value = String(Number((now + way * by).toFixed(6)));
  }

  private texts(): string[] {
    return this.kind === "pair" ? pairOf(this.value) : [this.value];
  }

  private commit(): void {
    const typed = this.inputs.map((input) => input.value.trim());
    if (this.kind === "locked" || this.kind === "none") return;
    if (typed.join() === this.texts().join()) return;
    this.actions.commit(typed.join(", "));
  }

  private async fetch(): Promise<void> {
    const { operation } = this;
    const named = await this.actions.names();
    if (operation !== this.operation) return;
    this.named = named;
    if (this.choice) this.offer();
    else {
      this.list.replaceChildren(...named.map(({ name, about }) => h("option", { value: name }, about)));
    }
  }

  /** Fill the choice of sources, the row's own among them whatever has become of it. */
  private offer(): void {
    const { choice, value } = this;
    if (!choice) return;
    const runs = runChoices(this.runs);
    const names = this.named.map(({ name, about }): [string, string] => [name, `${name}: ${about}`]);
    const known = [...runs, ...names].some(([text]) => text === value);
    const own: [string, string][] = known ? [] : [[value, value === "" ? "choose a run" : value]];
    const options = [...own, ...runs, ...names];
    const shown = [...choice.options].map((option) => `${option.value}\n${option.text}`).join("\n");
    if (shown !== options.map(([text, label]) => `${text}\n${label}`).join("\n")) {
      choice.replaceChildren(...options.map(([text, label]) => h("option", { value: text }, label)));
    }
    choice.value = value;
    setAttribute(choice, "title", value);
  }
}

/** Show the row's text, unless someone is in the middle of typing another. */
export function fill(input: HTMLInputElement, value: string, before: string | undefined): void {
  const typing = input === document.activeElement && input.value !== before;
  if (!typing && input.value !== value) input.value = value;
}
