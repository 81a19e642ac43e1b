/** Regions of a value that a person picks in a picture, as a site and a torch-style index. */

import { columnsIn, rowsIn, type Window } from "./geometry";

export interface Picked {
  /** The canonical site. */
  site: string;
  /** A torch-style index over the full tensor, "0, 3:5, 10"; "" is everything. */
  index: string;
}

/** How a plane lies in its tensor: which dims are its rows and columns, and the other indices. */
export interface PlaneOf {
  shape: readonly number[];
  /** -1: the plane has no such dim in the tensor. */
  rowsDim: number;
  columnsDim: number;
  /** One index per dim; those of the plane's own dims are ignored. */
  at: readonly number[];
}

/** The index text of a window of a plane. */
export function indexText(plane: PlaneOf, part: Window): string {
  const items = plane.shape.map((length, dim) => {
    if (dim === plane.rowsDim) return span(part.row0, part.row1, rowsIn(part), length);
    if (dim === plane.columnsDim) return span(part.column0, part.column1, columnsIn(part), length);
    return String(plane.at[dim] ?? 0);
  });
  while (items.at(-1) === ":") items.pop();
  return items.join(", ");
}

function span(from: number, to: number, count: number, length: number): string {
  if (count === 1 && length > 1) return String(from);
  if (from === 0 && to === length) return ":";
  return `${from}:${to}`;
}
