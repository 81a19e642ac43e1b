/** The labels around a picture: tokens (or row numbers) at its left, column numbers below. */

import { h } from "./dom";
import { cellAt, columnsIn, rowsIn, ticks, type Size, type Window } from "./geometry";
import { visible } from "./format";
import type { Frame } from "./pointer";
import type { TileReply } from "./protocol";

const LINE = 15;
const TICK_ROOM = 52;

/** The label of a source row, or null where rows are no tokens. */
export function rowLabel(reply: TileReply, row: number): string | null {
  const label = reply.row_labels[row - (reply.window[0] ?? 0)];
  return label === undefined ? null : visible(label);
}

/** The label of a source column, or null where columns are no tokens. */
export function columnLabel(reply: TileReply, column: number): string | null {
  const label = reply.column_labels[column - (reply.window[2] ?? 0)];
  return label === undefined ? null : visible(label);
}

/** The height that the labels below a picture need. */
export function axisHeight(reply: Pick<TileReply, "column_labels"> | null): number {
  return reply && reply.column_labels.length > 0 ? 58 : 20;
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
    const room = reply.column_labels.length > 0 ? LINE : TICK_ROOM;
    this.columns.replaceChildren(
      ...ticks(view.column0, view.column1, Math.floor(size.width / room)).map((column) => {
        const label = columnLabel(reply, column);
        const element = h("span", {
          class: label === null ? "lv-tick" : "lv-tick lv-tick-token",
          "data-test": label === null ? undefined : "axis-label",
          "data-column": String(column),
          title: label === null ? undefined : `${column}: ${label}`,
        }, label ?? String(column));
        element.style.left = `${(column - view.column0 + 0.5) * columnWidth}px`;
        return element;
      }),
    );
  }

  /** Call `pick` with the whole row or column whose label is clicked. */
  onPick(signal: AbortSignal, frame: () => Frame | null, pick: (part: Window) => void): void {
    this.rows.addEventListener("click", (event) => {
      const shown = frame();
      const cell = shown && cellAt(0, event.clientY - this.rows.getBoundingClientRect().top, shown.size, shown.view);
      if (!cell) return;
      const row = labelled(event, "data-row") ?? cell.row;
      pick({ row0: row, row1: row + 1, column0: 0, column1: shown.whole.column1 });
    }, { signal });
    this.columns.addEventListener("click", (event) => {
      const shown = frame();
      const cell = shown && cellAt(event.clientX - this.columns.getBoundingClientRect().left, 0, shown.size, shown.view);
      if (!cell) return;
      const column = labelled(event, "data-column") ?? cell.column;
      pick({ row0: 0, row1: shown.whole.row1, column0: column, column1: column + 1 });
    }, { signal });
  }

  clear(): void {
    this.rows.replaceChildren();
    this.columns.replaceChildren();
  }
}

/** The row or column of the label that was clicked; undefined beside the labels. */
function labelled(event: Event, name: string): number | undefined {
  const label = event.target instanceof Element ? event.target.getAttribute(name) : null;
  return label === null ? undefined : Number(label);
}
