/**
 * The tile that the heatmap shows: which one is wanted, asking for it, holding it.
 *
 * Draws nothing. A tile at full detail that covers a wanted window is used as it is.
 */

import { CallCancelled } from "./client";
import { floats } from "./buffers";
import { columnsIn, rowsIn, sameWindow, toBounds, toWindow, wholeOf, type Window } from "./geometry";
import type { Page } from "./page";
import type { TileReply, Which } from "./protocol";

export interface Tile {
  reply: TileReply;
  cells: Float32Array;
  which: Which;
  index: readonly number[];
  rank: number | null;
  rowsDim: number | null;
  columnsDim: number | null;
  percentile: number | null;
  window: Window;
  whole: Window;
}

export interface Wanted {
  site: string;
  which: Which;
  run: number;
  index: readonly number[];
  /** Whose piece; null: the whole. */
  rank: number | null;
  rowsDim: number | null;
  columnsDim: number | null;
  /** Also find the magnitude that so many percent of the values do not exceed. */
  percentile: number | null;
  /** null: all of the plane. */
  view: Window | null;
  rows: number;
  columns: number;
}

export type TileStatus = "empty" | "loading" | "shown" | "error";

export class Tiles {
  tile: Tile | null = null;
  status: TileStatus = "empty";
  problem = "";
  private wanted: Wanted | null = null;

  constructor(
    private readonly page: Page,
    private readonly changed: () => void,
  ) {}

  /** Show nothing. */
  clear(): void {
    this.wanted = null;
    this.tile = null;
    this.status = "empty";
  }

  /** Make this the wanted tile: asks for it unless it is here or on its way. */
  want(wanted: Wanted): void {
    if (this.wanted && JSON.stringify(this.wanted) === JSON.stringify(wanted)) return;
    this.wanted = wanted;
    if (this.status === "shown" && this.tile && serves(this.tile, wanted)) return;
    this.status = "loading";
    this.changed();
    void this.load(wanted);
  }

  private async load(wanted: Wanted): Promise<void> {
    const { site, which, index, view, rows, columns, rowsDim, columnsDim, percentile } = wanted;
    try {
      const { result, buffers } = await this.page.ask(
        "tile",
        {
          site,
          which,
          window: view ? toBounds(view) : null,
          max_rows: rows,
          max_columns: columns,
          index: [...index],
          rank: wanted.rank,
          rows_dim: rowsDim,
          columns_dim: columnsDim,
          percentile,
        },
        { key: "tile" },
      );
      if (this.wanted !== wanted) return;
      this.tile = {
        reply: result,
        cells: floats(buffers[0], result.rows * result.columns),
        which,
        index,
        rank: wanted.rank,
        rowsDim,
        columnsDim,
        percentile,
        window: toWindow(result.window),
        whole: wholeOf(result.plane),
      };
      this.status = "shown";
      this.problem = "";
    } catch (error) {
      if (this.wanted !== wanted || error instanceof CallCancelled) return;
      this.tile = null;
      this.status = "error";
      this.problem = error instanceof Error ? error.message : String(error);
    }
    this.changed();
  }
}

/** Whether the tile already has every cell of what is wanted. */
function serves(tile: Tile, wanted: Wanted): boolean {
  const { reply } = tile;
  const view = wanted.view ?? tile.whole;
  return (
    reply.site === wanted.site &&
    reply.run === wanted.run &&
    tile.which === wanted.which &&
    tile.rank === wanted.rank &&
    tile.index.join() === wanted.index.join() &&
    tile.rowsDim === wanted.rowsDim &&
    tile.columnsDim === wanted.columnsDim &&
    (wanted.percentile === null || tile.percentile === wanted.percentile) &&
    (sameWindow(view, tile.window)
      ? reply.row_step === step(rowsIn(view), wanted.rows) &&
        reply.column_step === step(columnsIn(view), wanted.columns)
      : reply.row_step === 1 && reply.column_step === 1 && within(view, tile.window))
  );
}

/** How many source cells share a cell of a tile of at most `most`. */
function step(length: number, most: number): number {
  return Math.max(1, Math.ceil(length / most));
}

function within(inner: Window, outer: Window): boolean {
  return (
    inner.row0 >= outer.row0 &&
    inner.row1 <= outer.row1 &&
    inner.column0 >= outer.column0 &&
    inner.column1 <= outer.column1
  );
}
