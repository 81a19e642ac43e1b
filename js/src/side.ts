/** The side column: sections that fold, so that each has room when it is wanted. */

import { h, setAttribute, setText, uniqueId } from "./dom";

export class Section {
  readonly element: HTMLElement;
  readonly body: HTMLElement;
  private readonly fold: HTMLButtonElement;
  private readonly summary = h("span", { class: "lv-fold-summary" });

  /** `tools` stand at the right of the title while the section is open. */
  constructor(
    private readonly name: string,
    title: string,
    open: boolean,
    signal: AbortSignal,
    ...tools: HTMLElement[]
  ) {
    const id = uniqueId(name);
    this.fold = h("button", { type: "button", class: "lv-fold", "aria-controls": id, "data-test": `fold-${name}` },
      h("span", { class: "lv-fold-mark", "aria-hidden": "true" }, "▸"), title, this.summary);
    this.body = h("div", { class: "lv-fold-body", id });
    this.element = h("section", { class: `lv-panel lv-section lv-${name}`, "aria-label": title, "data-test": name },
      h("div", { class: "lv-titlebar" }, h("h3", { class: "lv-fold-title" }, this.fold),
        h("span", { class: "lv-fold-tools" }, ...tools)),
      this.body);
    this.fold.addEventListener("click", () => {
      this.open(this.element.dataset["open"] !== "true");
      keep(this.name, this.element.dataset["open"] === "true");
    }, { signal });
    this.open(kept(name) ?? open);
  }

  open(open: boolean): void {
    setAttribute(this.element, "data-open", String(open));
    setAttribute(this.fold, "aria-expanded", String(open));
    this.body.hidden = !open;
  }

  /** A word beside the title, also while the section is folded. */
  say(text: string, tone: "" | "good" | "warn" = ""): void {
    setText(this.summary, text);
    setAttribute(this.summary, "data-tone", tone === "" ? null : tone);
  }
}

/** The sections, in two columns where the explorer is too narrow for a side column. */
export function side(left: readonly HTMLElement[], right: readonly HTMLElement[]): HTMLElement {
  return h("div", { class: "lv-side" },
    h("div", { class: "lv-side-half" }, ...left), h("div", { class: "lv-side-half" }, ...right));
}

// What is folded is kept by the browser, so that a reload does not unfold it. Hosts may forbid it.
function keep(name: string, open: boolean): void {
  try {
    localStorage.setItem(`lensview.side.${name}`, String(open));
  } catch {
    return;
  }
}

function kept(name: string): boolean | null {
  try {
    const text = localStorage.getItem(`lensview.side.${name}`);
    return text === null ? null : text === "true";
  } catch {
    return null;
  }
}
