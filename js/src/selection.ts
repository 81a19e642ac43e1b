/** The region selected on a picture: its box, what it is in words, and the way to edit it. */

import { h, setText, show } from "./dom";
import { exact } from "./format";
import { boxOf, columnsIn, rowsIn, type Window } from "./geometry";
import type { Page } from "./page";
import { indexText } from "./picks";
import { planeOf } from "./planeview";
import { place, type Frame } from "./pointer";
import type { Tile } from "./tiles";

export class Selection {
  readonly box = h("div", { class: "lv-box", hidden: "", "data-test": "selection-box" });
  readonly bar: HTMLElement;
  private readonly text = h("span", { class: "lv-selection-text", "data-test": "selection" });
  private readonly edit = h("button", {
    type: "button", class: "lv-button lv-small", "data-test": "edit-selection",
    title: "Make an intervention on the selected region",
  }, "Edit this");
  private part: Window | null = null;
  private tile: Tile | null = null;

  constructor(page: Page, signal: AbortSignal) {
    const clear = h("button", {
      type: "button", class: "lv-icon", "aria-label": "Clear the selection", title: "Clear the selection (Escape)",
    }, "×");
    this.bar = h("div", { class: "lv-selection", hidden: "" }, this.text, this.edit, clear);
    this.edit.addEventListener("click", () => {
      if (this.tile && this.part) page.pick({ site: this.tile.reply.site, index: this.index() });
    }, { signal });
    clear.addEventListener("click", () => { this.set(null, null); }, { signal });
  }

  get chosen(): boolean {
    return this.part !== null;
  }

  private index(): string {
    const { tile, part } = this;
    return tile && part ? indexText(planeOf(tile.reply, tile.index), part) : "";
  }

  set(tile: Tile | null, part: Window | null): void {
    this.tile = tile;
    this.part = part;
    show(this.bar, part !== null);
    // The cells of one rank's piece are not those of the whole, which is what is edited.
    show(this.edit, tile?.rank === null);
    if (part === null) {
      show(this.box, false);
      return;
    }
    const count = rowsIn(part) * columnsIn(part);
    setText(this.text, `[${this.index()}] · ${exact(count)} element${count === 1 ? "" : "s"}`);
  }

  /** A tile of the same plane keeps the selection; of another, it is gone. */
  follow(tile: Tile | null): void {
    if (this.tile === null || this.tile === tile) return;
    if (tile && samePlane(tile, this.tile)) this.set(tile, this.part);
    else this.set(null, null);
  }

  draw({ size, view }: Frame): void {
    const seen = this.part && within(this.part, view);
    show(this.box, seen !== null);
    if (seen) place(this.box, boxOf(seen, size, view));
  }
}

function samePlane(a: Tile, b: Tile): boolean {
  const key = ({ reply, index, rank }: Tile): string =>
    JSON.stringify([reply.site, reply.shape, reply.rows_dim, reply.columns_dim, index, rank]);
  return key(a) === key(b);
}

/** The part of a window that lies in the view; null where none does. */
function within(part: Window, view: Window): Window | null {
  const seen = {
    row0: Math.max(part.row0, view.row0),
    row1: Math.min(part.row1, view.row1),
    column0: Math.max(part.column0, view.column0),
    column1: Math.min(part.column1, view.column1),
  };
  return rowsIn(seen) > 0 && columnsIn(seen) > 0 ? seen : null;
}
