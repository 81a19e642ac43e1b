/** Cells drawn on a canvas, each as a rectangle of equal size. */

import { colorCells, type Palette } from "./colors";
import { symmetric } from "./scale";

export interface Cells {
  values: Float32Array;
  rows: number;
  columns: number;
}

/** Draw the cells over the whole canvas, which is made `width` x `height` CSS pixels large. */
export function paintCells(
  canvas: HTMLCanvasElement,
  cells: Cells,
  width: number,
  height: number,
  limit: number,
  palette: Palette,
): void {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.width = `${String(width)}px`;
  canvas.style.height = `${String(height)}px`;
  const { rows, columns, values } = cells;
  const context = canvas.getContext("2d");
  if (!context || rows * columns === 0) return;
  const small = document.createElement("canvas");
  small.width = columns;
  small.height = rows;
  const inner = small.getContext("2d");
  if (!inner) return;
  const image = inner.createImageData(columns, rows);
  new Uint32Array(image.data.buffer).set(colorCells(values, symmetric(limit), palette));
  inner.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}
