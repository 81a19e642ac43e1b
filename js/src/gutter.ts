/** The labels around a picture: tokens (or row numbers) at its left, column numbers below. */

import { h } from "./dom";
import { columnsIn, rowsIn, ticks, type Size, type Window } from "./geometry";
import { visible } from "./format";
import type { TileReply } from "./protocol";

const LINE = 15;
const TICK_ROOM = 52;

/** The label of a source row, or null where rows are no tokens. */
export function rowLabel(reply: TileReply, row: number): string | null {
  const label = reply.row_labels[row - (reply.window[0] ?? 0)];
  return label === undefined ? null : visible(label);
}

/** The gutter's width in pixels: what the longest label needs, within reason. */
export function gutterWidth(reply: Pick<TileReply, "row_labels" | "plane">): number {
  const most = Math.min(reply.row_labels.length, 400);
  let longest = reply.row_labels.length === 0 ? String(reply.plane[0] ?? 0).length : 3;
  for (let i = 0; i < most; i += 1) {
    longest = Math.max(longest, visible(reply.row_labels[i] ?? "").length);
  }
  return Math.max(26, Math.min(112, Math.ceil(longest * 7.1) + 10));
}

export class Gutter {
  readonly rows = h("div", { class: "lv-gutter", "data-test": "gutter", "aria-hidden": "true" });
  readonly columns = h("div", { class: "lv-axis", "data-test": "axis", "aria-hidden": "true" });

  update(reply: TileReply, view: Window, size: Size): void {
    const rowHeight = size.height / rowsIn(view);
    this.rows.replaceChildren(
      ...ticks(view.row0, view.row1, Math.floor(size.height / LINE)).map((row) => {
        const label = rowLabel(reply, row);
        const element = h("span", {
          class: label === null ? "lv-label lv-label-number" : "lv-label",
          "data-test": "gutter-label",
          "data-row": String(row),
          title: label === null ? `row ${row}` : `${row}: ${label}`,
        }, label ?? String(row));
        const middle = (row - view.row0 + 0.5) * rowHeight;
        element.style.top = `${Math.max(LINE / 2, Math.min(size.height - LINE / 2, middle))}px`;
        return element;
      }),
    );
    const columnWidth = size.width / columnsIn(view);
    this.columns.replaceChildren(
      ...ticks(view.column0, view.column1, Math.floor(size.width / TICK_ROOM)).map((column) => {
        const element = h("span", { class: "lv-tick" }, String(column));
        element.style.left = `${(column - view.column0 + 0.5) * columnWidth}px`;
        return element;
      }),
    );
  }

  clear(): void {
    this.rows.replaceChildren();
    this.columns.replaceChildren();
  }
}
