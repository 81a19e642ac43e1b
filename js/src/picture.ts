/** Paints a tile on a canvas. Knows cells and pixels, not where they come from. */

import { colorCells, cssColor, fingerprint, type Palette } from "./colors";
import { h } from "./dom";
import { boxOf, columnsIn, rowsIn, type Size, type Window } from "./geometry";
import type { Scale } from "./scale";
import type { Tile } from "./tiles";

/** From this many device pixels on, a cell has room for the sign of an infinity. */
const ROOM_FOR_SIGN = 22;
const MOST_MARKS = 20_000;

export interface Scene {
  tile: Tile;
  view: Window;
  size: Size;
  palette: Palette;
  scale: Scale;
}

export class Picture {
  readonly canvas = h("canvas", { class: "lv-canvas", "data-test": "heatmap" });
  private readonly cells = document.createElement("canvas");
  private drawn: { tile: Tile; palette: Palette; scale: string; hash: string } | null = null;

  /** Paint, and return a fingerprint of the cells' colours; null where there is no canvas. */
  paint(scene: Scene): string | null {
    const { size, tile, view } = scene;
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(size.width * ratio));
    const height = Math.max(1, Math.round(size.height * ratio));
    this.canvas.width = width;
    this.canvas.height = height;
    this.canvas.style.width = `${size.width}px`;
    this.canvas.style.height = `${size.height}px`;
    const context = this.canvas.getContext("2d");
    if (!context) return null;
    const hash = this.colour(scene);
    if (hash === null) return null;
    const { row_step: rowStep, column_step: columnStep } = tile.reply;
    context.imageSmoothingEnabled = false;
    context.drawImage(
      this.cells,
      (view.column0 - tile.window.column0) / columnStep,
      (view.row0 - tile.window.row0) / rowStep,
      columnsIn(view) / columnStep,
      rowsIn(view) / rowStep,
      0,
      0,
      width,
      height,
    );
    if (tile.reply.nan + tile.reply.inf > 0) markOdd(context, scene, { width, height });
    return hash;
  }

  clear(): void {
    this.canvas.width = 0;
    this.canvas.height = 0;
  }

  /** One pixel a cell, kept until the tile or its colours change. */
  private colour({ tile, palette, scale }: Scene): string | null {
    const { drawn } = this;
    const key = `${scale.low} ${scale.high} ${scale.curve}`;
    if (drawn?.tile === tile && drawn.palette === palette && drawn.scale === key) {
      return drawn.hash;
    }
    const { rows, columns } = tile.reply;
    if (rows * columns === 0) return null;
    this.cells.width = columns;
    this.cells.height = rows;
    const context = this.cells.getContext("2d");
    if (!context) return null;
    const pixels = colorCells(tile.cells, scale, palette);
    const image = context.createImageData(columns, rows);
    image.data.set(new Uint8ClampedArray(pixels.buffer));
    context.putImageData(image, 0, 0);
    const hash = fingerprint(pixels);
    this.drawn = { tile, palette, scale: key, hash };
    return hash;
  }
}

/** Hatch over NaN, run by run of cells, and a sign on infinities where there is room. */
function markOdd(context: CanvasRenderingContext2D, scene: Scene, size: Size): void {
  const { tile, view, palette } = scene;
  const { rows, columns, row_step: rowStep, column_step: columnStep } = tile.reply;
  const box = (row: number, from: number, to: number): [number, number, number, number] => {
    const row0 = tile.window.row0 + row * rowStep;
    const column0 = tile.window.column0 + from * columnStep;
    const column1 = tile.window.column0 + to * columnStep;
    return boxOf({ row0, row1: row0 + rowStep, column0, column1 }, size, view);
  };
  const [, , cellWidth, cellHeight] = box(0, 0, 1);
  const roomy = cellWidth >= ROOM_FOR_SIGN && cellHeight >= ROOM_FOR_SIGN / 2;
  const hatch = hatching(context, palette);
  context.font = `${Math.min(cellWidth / 2, cellHeight * 0.8, 22)}px sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  let marks = 0;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns && marks < MOST_MARKS; column += 1) {
      const value = tile.cells[row * columns + column] ?? 0;
      if (Number.isFinite(value)) continue;
      marks += 1;
      if (Number.isNaN(value)) {
        const from = column;
        while (column + 1 < columns && Number.isNaN(tile.cells[row * columns + column + 1])) column += 1;
        context.fillStyle = hatch;
        context.fillRect(...box(row, from, column + 1));
      } else if (roomy) {
        const [x, y] = box(row, column, column + 1);
        context.fillStyle = palette.inf === 0xffffffff ? "#000" : "#fff";
        context.fillText(value > 0 ? "+∞" : "−∞", x + cellWidth / 2, y + cellHeight / 2);
      }
    }
  }
}

/** Diagonal stripes that run on from cell to cell. */
function hatching(context: CanvasRenderingContext2D, palette: Palette): CanvasPattern | string {
  const side = 8;
  const stamp = document.createElement("canvas");
  stamp.width = side;
  stamp.height = side;
  const ground = cssColor(palette.nan);
  const brush = stamp.getContext("2d");
  if (!brush) return ground;
  brush.fillStyle = ground;
  brush.fillRect(0, 0, side, side);
  brush.strokeStyle = cssColor(palette.hatch);
  brush.lineWidth = 2.5;
  brush.beginPath();
  for (const offset of [-side, 0, side]) {
    brush.moveTo(offset - 1, side + 1);
    brush.lineTo(offset + side + 1, -1);
  }
  brush.stroke();
  return context.createPattern(stamp, "repeat") ?? ground;
}
