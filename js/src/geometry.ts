/** Where things lie on a heatmap: cells under points, windows of a plane, ticks. Pure. */

/** A half-open window of source cells. */
export interface Window {
  row0: number;
  row1: number;
  column0: number;
  column1: number;
}

export interface Cell {
  row: number;
  column: number;
}

export interface Size {
  width: number;
  height: number;
}

/** `[rows, columns]` of a plane as the window of all of it. */
export function wholeOf(plane: readonly number[]): Window {
  return { row0: 0, row1: plane[0] ?? 0, column0: 0, column1: plane[1] ?? 0 };
}

export function toWindow(bounds: readonly number[]): Window {
  const [row0 = 0, row1 = 0, column0 = 0, column1 = 0] = bounds;
  return { row0, row1, column0, column1 };
}

export function toBounds({ row0, row1, column0, column1 }: Window): number[] {
  return [row0, row1, column0, column1];
}

export function sameWindow(a: Window, b: Window): boolean {
  return (
    a.row0 === b.row0 && a.row1 === b.row1 && a.column0 === b.column0 && a.column1 === b.column1
  );
}

export const rowsIn = (window: Window): number => window.row1 - window.row0;
export const columnsIn = (window: Window): number => window.column1 - window.column0;

/** The source cell under a point of the picture, or null outside of it. */
export function cellAt(x: number, y: number, size: Size, window: Window): Cell | null {
  if (x < 0 || y < 0 || x >= size.width || y >= size.height) return null;
  return {
    row: window.row0 + Math.floor((y / size.height) * rowsIn(window)),
    column: window.column0 + Math.floor((x / size.width) * columnsIn(window)),
  };
}

/** Left, top, width and height of a window of cells in a picture that shows `view`. */
export function boxOf(part: Window, size: Size, view: Window): [number, number, number, number] {
  const dx = size.width / columnsIn(view);
  const dy = size.height / rowsIn(view);
  return [
    (part.column0 - view.column0) * dx,
    (part.row0 - view.row0) * dy,
    columnsIn(part) * dx,
    rowsIn(part) * dy,
  ];
}

/** The window that holds both cells. */
export function spanning(a: Cell, b: Cell): Window {
  return {
    row0: Math.min(a.row, b.row),
    row1: Math.max(a.row, b.row) + 1,
    column0: Math.min(a.column, b.column),
    column1: Math.max(a.column, b.column) + 1,
  };
}

/** Grow (factor > 1) or shrink the view around a cell, which stays where it is. */
export function zoomed(view: Window, whole: Window, at: Cell, factor: number): Window {
  const [row0, row1] = zoomSpan(view.row0, view.row1, whole.row1, at.row, factor);
  const [column0, column1] = zoomSpan(
    view.column0, view.column1, whole.column1, at.column, factor);
  return { row0, row1, column0, column1 };
}

function zoomSpan(
  from: number, to: number, limit: number, at: number, factor: number,
): [number, number] {
  const length = to - from;
  const wanted = factor < 1 ? Math.floor(length * factor) : Math.ceil(length * factor);
  const next = Math.max(1, Math.min(limit, wanted));
  const share = (at + 0.5 - from) / length;
  const start = Math.round(at + 0.5 - share * next);
  const low = Math.max(0, Math.min(limit - next, start));
  return [low, low + next];
}

/** The view moved by so many cells, as far as the plane goes. */
export function moved(view: Window, whole: Window, rows: number, columns: number): Window {
  const down = Math.max(-view.row0, Math.min(whole.row1 - view.row1, Math.round(rows)));
  const right = Math.max(-view.column0, Math.min(whole.column1 - view.column1, Math.round(columns)));
  return {
    row0: view.row0 + down,
    row1: view.row1 + down,
    column0: view.column0 + right,
    column1: view.column1 + right,
  };
}

/** Move the view by as little as shows the cell. */
export function showing(view: Window, cell: Cell): Window {
  const rows = shift(view.row0, view.row1, cell.row);
  const columns = shift(view.column0, view.column1, cell.column);
  return {
    row0: view.row0 + rows,
    row1: view.row1 + rows,
    column0: view.column0 + columns,
    column1: view.column1 + columns,
  };
}

function shift(from: number, to: number, at: number): number {
  if (at < from) return at - from;
  return at >= to ? at - to + 1 : 0;
}

/** Round numbers from `from` to `to` (half open), at most `most` of them. */
export function ticks(from: number, to: number, most: number): number[] {
  const length = to - from;
  if (length <= 0 || most < 1) return [];
  let step = 1;
  for (let scale = 1; length / step > most; scale *= 10) {
    for (const factor of [1, 2, 5]) {
      step = factor * scale;
      if (length / step <= most) break;
    }
  }
  const found: number[] = [];
  for (let at = Math.ceil(from / step) * step; at < to; at += step) found.push(at);
  return found;
}

/** The largest size a picture should have in a space: few cells do not become huge blocks. */
export function fitted(space: Size, view: Window, largest: Size): Size {
  const width = Math.min(space.width, columnsIn(view) * largest.width);
  // Cells that could be square should be: a matrix of tokens by tokens is one.
  const square = columnsIn(view) * largest.width < space.width ? largest.width : largest.height;
  return { width, height: Math.min(space.height, rowsIn(view) * square) };
}
