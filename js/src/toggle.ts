/** A row of buttons of which one is pressed: a radio group, for mouse and keys. */

import { h, setAttribute, setText } from "./dom";

/** A value, its text and its explanation. */
type Choice<T> = readonly [T, string, string];

export class Toggle<T extends string> {
  readonly element: HTMLElement;
  private readonly buttons = new Map<T, HTMLButtonElement>();
  private value: T;

  constructor(
    name: string,
    choices: readonly [Choice<T>, ...Choice<T>[]],
    signal: AbortSignal,
    chosen: (value: T) => void,
  ) {
    this.element = h("div", { class: "lv-toggle", role: "radiogroup", "aria-label": name });
    this.value = choices[0][0];
    for (const [value, text, title] of choices) {
      const button = h("button", {
        type: "button", role: "radio", class: "lv-toggle-button", title, "data-value": value,
      }, text);
      button.addEventListener("click", () => { chosen(value); }, { signal });
      this.buttons.set(value, button);
      this.element.append(button);
    }
    this.element.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const values = [...this.buttons.keys()];
      const next = values[(values.indexOf(this.value) + step + values.length) % values.length];
      if (next === undefined) return;
      this.buttons.get(next)?.focus();
      chosen(next);
    }, { signal });
  }

  /** Give a choice another text and explanation. */
  rename(value: T, text: string, title: string): void {
    const button = this.buttons.get(value);
    if (!button) return;
    setText(button, text);
    setAttribute(button, "title", title);
  }

  update(value: T, enabled = true): void {
    this.value = value;
    for (const [name, button] of this.buttons) {
      const on = name === value;
      setAttribute(button, "aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
      button.disabled = !enabled;
    }
  }
}
