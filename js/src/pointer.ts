/**
 * Pointer and keys on a picture, told as intents: look at a cell, zoom to a window, go out.
 *
 * A plain wheel still scrolls the notebook; with ctrl it zooms, with shift or alt it moves. A drag
 * does what the mode says, unless shift (select) or alt (move) say otherwise.
 */

import { h, show } from "./dom";
import { boxOf, cellAt, columnsIn, moved, rowsIn, spanning, type Cell, type Size, type Window } from "./geometry";

/** A drag shorter than this along a side means the whole side. */
const SLACK = 7;

export interface Frame {
  size: Size;
  view: Window;
  whole: Window;
}

export interface Intents {
  /** null: nothing is looked at. */
  look(cell: Cell | null): void;
  zoomTo(view: Window): void;
  zoomBy(factor: number, at: Cell): void;
  reset(): void;
  select(part: Window): void;
  /** Take the selection away. Returns whether there was one. */
  deselect(): boolean;
}

export type DragMode = "zoom" | "select" | "pan";

interface Point {
  x: number;
  y: number;
}

export class Pointer {
  readonly band = h("div", { class: "lv-band", hidden: "" });
  private start: Point | null = null;
  private cursor: Cell | null = null;
  private mode: DragMode = "zoom";
  /** The view when a move began. */
  private held: Window | null = null;

  constructor(
    private readonly surface: HTMLElement,
    private readonly frame: () => Frame | null,
    private readonly intents: Intents,
    private readonly usual: () => DragMode,
    signal: AbortSignal,
  ) {
    const options = { signal };
    surface.addEventListener("pointerdown", (event) => { this.press(event); }, options);
    surface.addEventListener("pointermove", (event) => { this.move(event); }, options);
    surface.addEventListener("pointerup", (event) => { this.release(event); }, options);
    surface.addEventListener("pointercancel", () => { this.abandon(); }, options);
    surface.addEventListener("pointerleave", () => {
      if (!this.start) intents.look(null);
    }, options);
    surface.addEventListener("blur", () => { intents.look(null); }, options);
    surface.addEventListener("dblclick", () => { intents.reset(); }, options);
    surface.addEventListener("keydown", (event) => { this.key(event); }, options);
    surface.addEventListener("wheel", (event) => { this.wheel(event); }, { signal, passive: false });
  }

  private point(event: MouseEvent): Point {
    const box = this.surface.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  private cell({ x, y }: Point): Cell | null {
    const frame = this.frame();
    return frame && cellAt(x, y, frame.size, frame.view);
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.start = this.point(event);
    this.mode = event.shiftKey ? "select" : event.altKey ? "pan" : this.usual();
    this.held = this.frame()?.view ?? null;
    this.surface.setPointerCapture(event.pointerId);
  }

  private move(event: PointerEvent): void {
    const at = this.point(event);
    const frame = this.frame();
    if (!frame) return;
    if (!this.start) {
      this.cursor = this.cell(at);
      this.intents.look(this.cursor);
      return;
    }
    if (this.mode === "pan") {
      this.pan(this.start, at, frame);
      return;
    }
    const window = this.dragged(this.start, at, frame);
    show(this.band, window !== null);
    if (window) place(this.band, boxOf(window, frame.size, frame.view));
  }

  private release(event: PointerEvent): void {
    const { start, mode } = this;
    const frame = this.frame();
    this.abandon();
    if (!start || !frame || mode === "pan") return;
    const at = this.point(event);
    const window = this.dragged(start, at, frame);
    if (mode === "zoom") {
      if (window) this.intents.zoomTo(window);
      return;
    }
    // A click selects the one cell.
    const cell = this.cell(at);
    if (window) this.intents.select(window);
    else if (cell) this.intents.select(spanning(cell, cell));
  }

  private pan(from: Point, to: Point, { size, whole }: Frame): void {
    if (!this.held) return;
    const rows = ((from.y - to.y) / size.height) * rowsIn(this.held);
    const columns = ((from.x - to.x) / size.width) * columnsIn(this.held);
    this.intents.zoomTo(moved(this.held, whole, rows, columns));
  }

  private abandon(): void {
    this.start = null;
    show(this.band, false);
  }

  /** The window that a drag spans, or null while it is no more than a click. */
  private dragged(from: Point, to: Point, { size, view }: Frame): Window | null {
    const wide = Math.abs(to.x - from.x) > SLACK;
    const high = Math.abs(to.y - from.y) > SLACK;
    if (!wide && !high) return null;
    const a = cellAt(within(from.x, size.width), within(from.y, size.height), size, view);
    const b = cellAt(within(to.x, size.width), within(to.y, size.height), size, view);
    if (!a || !b) return null;
    const window = spanning(a, b);
    // A flat drag zooms in one direction; what it selects is what it spans.
    if (this.mode === "select") return window;
    if (!high) Object.assign(window, { row0: view.row0, row1: view.row1 });
    if (!wide) Object.assign(window, { column0: view.column0, column1: view.column1 });
    return window;
  }

  private wheel(event: WheelEvent): void {
    const frame = this.frame();
    if (frame && (event.shiftKey || event.altKey) && !event.ctrlKey) {
      // Some systems turn a wheel with shift sideways themselves.
      const step = Math.sign(event.deltaY || event.deltaX) / 8;
      const rows = event.altKey ? step * rowsIn(frame.view) : 0;
      const columns = event.altKey ? 0 : step * columnsIn(frame.view);
      const view = moved(frame.view, frame.whole, Math.ceil(Math.abs(rows)) * Math.sign(rows),
        Math.ceil(Math.abs(columns)) * Math.sign(columns));
      event.preventDefault();
      this.intents.zoomTo(view);
      return;
    }
    if (!event.ctrlKey) return;
    event.preventDefault();
    const cell = this.cell(this.point(event));
    if (cell && event.deltaY !== 0) this.intents.zoomBy(event.deltaY < 0 ? 0.8 : 1.25, cell);
  }

  private key(event: KeyboardEvent): void {
    const frame = this.frame();
    if (!frame || event.altKey || event.metaKey) return;
    const { view, whole } = frame;
    const from = this.cursor ?? { row: view.row0, column: view.column0 };
    const page = event.ctrlKey ? 10 : 1;
    const steps: Record<string, [number, number]> = {
      ArrowUp: [-page, 0],
      ArrowDown: [page, 0],
      ArrowLeft: [0, -page],
      ArrowRight: [0, page],
      PageUp: [-10, 0],
      PageDown: [10, 0],
      Home: [0, -Infinity],
      End: [0, Infinity],
    };
    const step = steps[event.key];
    if (step) {
      const [rows, columns] = this.cursor ? step : [0, 0];
      this.cursor = {
        row: Math.max(0, Math.min(whole.row1 - 1, from.row + rows)),
        column: Math.max(0, Math.min(whole.column1 - 1, from.column + columns)),
      };
      this.intents.look(this.cursor);
    } else if (event.key === "+" || event.key === "=") {
      this.intents.zoomBy(0.5, from);
    } else if (event.key === "-") {
      this.intents.zoomBy(2, from);
    } else if (event.key === "Enter" && this.cursor) {
      this.intents.select(spanning(from, from));
    } else if (event.key === "r" && this.cursor) {
      this.intents.select({ ...spanning(from, from), column0: 0, column1: whole.column1 });
    } else if (event.key === "c" && this.cursor) {
      this.intents.select({ ...spanning(from, from), row0: 0, row1: whole.row1 });
    } else if (event.key === "Escape" || event.key === "0") {
      this.abandon();
      if (event.key === "0" || !this.intents.deselect()) this.intents.reset();
    } else {
      return;
    }
    event.preventDefault();
  }
}

function within(at: number, length: number): number {
  return Math.max(0, Math.min(length - 0.01, at));
}

/** Lay an overlay over a box of the picture; tiny cells still get something to see. */
export function place(overlay: HTMLElement, [x, y, width, height]: readonly [number, number, number, number]): void {
  const grow = Math.max(0, 4 - Math.min(width, height)) / 2;
  overlay.style.transform = `translate(${x - (width < 4 ? grow : 0)}px, ${y - (height < 4 ? grow : 0)}px)`;
  overlay.style.width = `${Math.max(4, width)}px`;
  overlay.style.height = `${Math.max(4, height)}px`;
}
