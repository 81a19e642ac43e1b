import { describe, expect, it } from "vitest";
import { boxOf, cellAt, fitted, showing, spanning, ticks, wholeOf, zoomed } from "../src/geometry";
import { blockOf, float32, tensorIndex, valueAt } from "../src/readout";
import type { Tile } from "../src/tiles";
import { TILE } from "./fakemodel";

const whole = wholeOf([4, 100]);
const size = { width: 200, height: 80 };

describe("cells and points", () => {
  it("finds the cell under a point, also in a window", () => {
    expect(cellAt(0, 0, size, whole)).toEqual({ row: 0, column: 0 });
    expect(cellAt(199.9, 79.9, size, whole)).toEqual({ row: 3, column: 99 });
    expect(cellAt(200, 0, size, whole)).toBeNull();
    expect(cellAt(-1, 0, size, whole)).toBeNull();
    expect(cellAt(100, 40, size, { row0: 2, row1: 4, column0: 50, column1: 60 })).toEqual({ row: 3, column: 55 });
  });

  it("lays a box where its cells are drawn", () => {
    const [x, y, width, height] = boxOf({ row0: 1, row1: 2, column0: 10, column1: 20 }, size, whole);
    expect([x, y, width, height]).toEqual([20, 20, 20, 20]);
    expect(cellAt(x, y, size, whole)).toEqual({ row: 1, column: 10 });
  });
});

describe("zoom", () => {
  it("spans a drag in any direction", () => {
    expect(spanning({ row: 3, column: 9 }, { row: 1, column: 20 }))
      .toEqual({ row0: 1, row1: 4, column0: 9, column1: 21 });
  });

  it("keeps the cell under the pointer and stays inside the plane", () => {
    const view = zoomed(whole, whole, { row: 1, column: 50 }, 0.5);
    expect(view).toEqual({ row0: 1, row1: 3, column0: 25, column1: 75 });
    const corner = zoomed(whole, whole, { row: 3, column: 99 }, 0.5);
    expect([corner.row1, corner.column1]).toEqual([4, 100]);
    expect(zoomed(view, whole, { row: 1, column: 30 }, 100)).toEqual(whole);
    let tiny = whole;
    for (let i = 0; i < 30; i += 1) tiny = zoomed(tiny, whole, { row: 2, column: 7 }, 0.5);
    expect(tiny).toEqual({ row0: 2, row1: 3, column0: 7, column1: 8 });
  });

  it("moves a view no more than needed", () => {
    const view = { row0: 0, row1: 2, column0: 10, column1: 20 };
    expect(showing(view, { row: 1, column: 15 })).toEqual(view);
    expect(showing(view, { row: 3, column: 9 })).toEqual({ row0: 2, row1: 4, column0: 9, column1: 19 });
  });
});

describe("ticks and sizes", () => {
  it("are round, inside, and not too many", () => {
    expect(ticks(0, 576, 6)).toEqual([0, 100, 200, 300, 400, 500]);
    expect(ticks(0, 5, 20)).toEqual([0, 1, 2, 3, 4]);
    expect(ticks(203, 326, 5)).toEqual([250, 300]);
    expect(ticks(0, 49152, 5)).toEqual([0, 10000, 20000, 30000, 40000]);
    expect(ticks(0, 0, 5)).toEqual([]);
    expect(ticks(0, 10, 0)).toEqual([]);
  });

  it("do not blow a few cells up, and keep matrices square", () => {
    const largest = { width: 44, height: 64 };
    expect(fitted({ width: 400, height: 300 }, wholeOf([1, 576]), largest)).toEqual({ width: 400, height: 64 });
    expect(fitted({ width: 400, height: 300 }, wholeOf([5, 5]), largest)).toEqual({ width: 220, height: 220 });
    expect(fitted({ width: 400, height: 300 }, wholeOf([900, 900]), largest)).toEqual({ width: 400, height: 300 });
  });
});

describe("reading a tile", () => {
  const tile = (reply: object, index: number[] = []): Tile => {
    const merged = { ...TILE, ...reply };
    return {
      reply: merged, cells: new Float32Array([1, 2, 3, 4, 5, 6]), which: "latest", index, rowsDim: null, columnsDim: null, percentile: null, rank: null,
      window: { row0: 4, row1: 7, column0: 10, column1: 15 }, whole: wholeOf([9, 99]),
    };
  };

  it("finds the tile's cell for a source cell, and the block it stands for", () => {
    const coarse = tile({ row_step: 2, column_step: 2 });
    expect(valueAt(coarse, { row: 4, column: 10 })).toBe(1);
    expect(valueAt(coarse, { row: 6, column: 14 })).toBe(6);
    expect(valueAt(coarse, { row: 7, column: 10 })).toBeUndefined();
    expect(valueAt(coarse, { row: 4, column: 9 })).toBeUndefined();
    expect(blockOf(coarse, { row: 6, column: 14 })).toEqual({ row0: 6, row1: 7, column0: 14, column1: 15 });
    expect(blockOf(coarse, { row: 5, column: 13 })).toEqual({ row0: 4, row1: 6, column0: 12, column1: 14 });
  });

  it("knows the element's index in the tensor", () => {
    expect(tensorIndex(tile({ shape: [2, 3, 9, 99], rows_dim: 2, columns_dim: 3 }, [1]), { row: 5, column: 11 })).toEqual([1, 0, 5, 11]);
    expect(tensorIndex(tile({ shape: [99], plane: [1, 99], rows_dim: -1, columns_dim: 0 }), { row: 0, column: 11 })).toEqual([11]);
    expect(tensorIndex(tile({ shape: [], rows_dim: -1, columns_dim: -1 }), { row: 0, column: 0 })).toEqual([]);
  });

  it("writes the shortest text that is this float32", () => {
    expect(float32(Math.fround(0.1))).toBe("0.1");
    expect(float32(Math.fround(-1 / 3))).toBe("−0.33333334");
    expect(float32(Math.fround(1e-30))).toBe("1e-30".replace("-", "−"));
    expect(float32(NaN)).toBe("NaN");
    expect(float32(-Infinity)).toBe("−∞");
  });
});
