/** Which run a view shows: the latest, the one without interventions, or their difference. */

import { show } from "./dom";
import type { Page } from "./page";
import { hasEdits, type PageState } from "./state";
import { Toggle } from "./toggle";

export class WhichRun {
  readonly element: HTMLElement;
  private readonly toggle;

  constructor(page: Page, signal: AbortSignal) {
    this.toggle = new Toggle("Which run", [
      ["latest", "latest", "The latest run, with its interventions"],
      ["baseline", "baseline", "The same run without interventions"],
      ["difference", "difference", "latest − baseline"],
    ], signal, (which) => { page.compare(which); });
    this.element = this.toggle.element;
    this.element.dataset["test"] = "view-which";
  }

  update(state: PageState): void {
    this.toggle.update(state.which);
    show(this.element, hasEdits(state));
  }
}

/** A field for one of several things by its number: a batch row, a head. */
export function clampedIndex(text: string, count: number): number {
  const wanted = Math.round(Number(text));
  return Math.max(0, Math.min(count - 1, Number.isFinite(wanted) ? wanted : 0));
}
