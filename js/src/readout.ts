/** The line that says what one cell holds. Exact where the tile is; else it asks the kernel. */

import { CallCancelled } from "./client";
import { h, later, setText } from "./dom";
import { float } from "./format";
import type { Cell, Window } from "./geometry";
import { columnLabel, rowLabel } from "./gutter";
import type { Page } from "./page";
import { planeOf } from "./planeview";
import type { Tile } from "./tiles";

const REST = 180;

/** The value of the tile's cell that covers a source cell; undefined outside of the tile. */
export function valueAt(tile: Tile, { row, column }: Cell): number | undefined {
  const { window, reply } = tile;
  if (row < window.row0 || row >= window.row1) return undefined;
  if (column < window.column0 || column >= window.column1) return undefined;
  const i = Math.floor((row - window.row0) / reply.row_step);
  const j = Math.floor((column - window.column0) / reply.column_step);
  return tile.cells[i * reply.columns + j];
}

/** The source cells that share a cell of the tile with this one. */
export function blockOf(tile: Tile, { row, column }: Cell): Window {
  const { window, reply } = tile;
  const row0 = row - ((row - window.row0) % reply.row_step);
  const column0 = column - ((column - window.column0) % reply.column_step);
  return {
    row0,
    row1: Math.min(row0 + reply.row_step, window.row1),
    column0,
    column1: Math.min(column0 + reply.column_step, window.column1),
  };
}

/** The index of a plane's cell in the whole tensor. */
export function tensorIndex(tile: Tile, { row, column }: Cell): number[] {
  const { at, rowsDim, columnsDim } = planeOf(tile.reply, tile.index);
  return at.map((index, dim) => (dim === rowsDim ? row : dim === columnsDim ? column : index));
}

/** "token 3 the · feature 12" of a cell. */
export function placeText({ reply }: Tile, { row, column }: Cell): string {
  const token = rowLabel(reply, row);
  const across = columnLabel(reply, column);
  const name = (dim: number, label: string | null, otherwise: string): string => {
    const known = reply.dims[dim] ?? "";
    return known !== "" ? known : label === null ? otherwise : "token";
  };
  const rows = name(reply.rows_dim, token, "row");
  const columns = name(reply.columns_dim, across, token === null ? "column" : "feature");
  const part = (what: string, at: number, label: string | null): string =>
    `${what} ${at}${label === null ? "" : ` ${label}`}`;
  return `${part(rows, row, token)} · ${part(columns, column, across)}`;
}

/** The shortest text that reads back as this float32. */
export function float32(value: number): string {
  for (let digits = 1; digits < 9; digits += 1) {
    if (Math.fround(Number(value.toPrecision(digits))) === value) return float(value, digits);
  }
  return float(value, 9);
}

export class Readout {
  readonly element = h("output", { class: "lv-readout", "data-test": "readout", "aria-live": "polite" });
  private readonly place = h("span", { class: "lv-readout-place" });
  private readonly value = h("span", { class: "lv-readout-value", "data-test": "readout-value" });
  private readonly hint = h("span", { class: "lv-dim" });
  private stop: () => void = () => undefined;
  private asked = "";

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
  ) {
    this.element.append(this.place, this.value, this.hint);
  }

  /** `more`: what else is said of the row. */
  update(tile: Tile | null, cell: Cell | null, more = ""): void {
    this.stop();
    this.asked = "";
    const value = tile && cell ? valueAt(tile, cell) : undefined;
    if (!tile || !cell || value === undefined) {
      setText(this.place, "");
      setText(this.value, "");
      setText(this.hint, tile ? "Drag or ctrl + wheel zooms, alt + drag moves, shift + drag selects." : "");
      return;
    }
    setText(this.place, placeText(tile, cell) + more);
    const { row_step: rows, column_step: columns } = tile.reply;
    if (rows * columns === 1) {
      setText(this.value, float32(value));
      setText(this.hint, "");
      return;
    }
    setText(this.value, "…");
    setText(this.hint, `largest of ${rows} × ${columns} here: ${float(value)}`);
    this.stop = later(this.signal, REST, () => { void this.ask(tile, cell); });
  }

  private async ask(tile: Tile, cell: Cell): Promise<void> {
    const params = { site: tile.reply.site, which: tile.which, index: tensorIndex(tile, cell), rank: tile.rank };
    const asked = JSON.stringify(params);
    this.asked = asked;
    try {
      const { result } = await this.page.client.call("value", params, { key: "value" }).answer;
      if (this.asked === asked) setText(this.value, result.text.replace(/^-/, "−"));
    } catch (error) {
      if (error instanceof CallCancelled || this.asked !== asked) return;
      setText(this.value, error instanceof Error ? error.message : String(error));
    }
  }
}
