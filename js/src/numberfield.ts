/** A small labelled field for a whole number from 0 to one less than `count`. */

import { h, setText, show } from "./dom";
import { clampedIndex } from "./whichrun";

export class NumberField {
  readonly element: HTMLElement;
  value = 0;
  private count = 1;
  private readonly input: HTMLInputElement;
  private readonly of = h("span");

  constructor(name: string, test: string, signal: AbortSignal, changed: () => void) {
    this.input = h("input", {
      type: "number", class: "lv-input lv-index", min: "0", step: "1", value: "0", "data-test": test,
    });
    this.input.addEventListener("change", () => {
      this.set(clampedIndex(this.input.value, this.count));
      changed();
    }, { signal });
    this.element = h("label", { class: "lv-dim-label", hidden: "" }, name, this.input, this.of);
  }

  set(value: number): void {
    this.value = value;
    this.input.value = String(value);
  }

  /** How many there are; a field for one of one is not shown. */
  offer(count: number): void {
    this.count = Math.max(1, count);
    this.input.max = String(this.count - 1);
    setText(this.of, `of ${String(count)}`);
    show(this.element, count > 1);
    if (this.value >= this.count) this.set(this.count - 1);
  }
}
