import { describe, expect, it } from "vitest";
import { moved } from "../src/geometry";
import { indexText } from "../src/picks";
import { planeOf, PlaneView } from "../src/planeview";
import { TILE } from "./fakemodel";

const MAPS = { ...TILE, shape: [2, 4, 9, 9], rows_dim: 2, columns_dim: 3, dims: ["batch", "head", "token", "token"] };

describe("PlaneView", () => {
  it("names dims, tells two of one name apart, and keeps indices that fit", () => {
    const view = new PlaneView();
    expect(view.follow(MAPS)).toBe(true);
    expect(view.follow(MAPS)).toBe(false);
    expect([0, 1, 2, 3].map((dim) => view.nameOf(dim))).toEqual(["batch", "head", "token (dim 2)", "token (dim 3)"]);
    expect(view.setIndex(1, 99)).toBe(3);
    view.follow({ ...MAPS, shape: [2, 3, 9, 9] });
    expect(view.params()).toEqual({ rows_dim: null, columns_dim: null, index: [0, 2] });
  });

  it("shows any dim at either side; what was there changes places", () => {
    const view = new PlaneView();
    view.follow(MAPS);
    view.show("rows", 3);
    expect(view.params()).toMatchObject({ rows_dim: 3, columns_dim: 2 });
    view.show("rows", 1);
    view.setIndex(3, 5);
    expect(view.params()).toEqual({ rows_dim: 1, columns_dim: 2, index: [0, 5] });
    view.show("columns", 3);
    view.show("rows", 2);
    expect(view.params().rows_dim).toBeNull();
    view.reset();
    expect(view.plain).toBe(true);
  });

  it("knows where the plane of a tile lies", () => {
    expect(planeOf({ ...MAPS, rows_dim: 3, columns_dim: 1 }, [1, 7])).toEqual({
      shape: MAPS.shape, rowsDim: 3, columnsDim: 1, at: [1, 0, 7, 0],
    });
  });
});

describe("indexText", () => {
  const part = { row0: 3, row1: 5, column0: 0, column1: 9 };

  it.each([
    [part, "1, 2, 3:5"],
    [{ ...part, row1: 4, column0: 4, column1: 5 }, "1, 2, 3, 4"],
    [{ ...part, row0: 0, row1: 9, column0: 4, column1: 6 }, "1, 2, :, 4:6"],
    [{ ...part, row0: 0, row1: 9 }, "1, 2"],
  ])("of %j is %s", (window, text) => {
    expect(indexText(planeOf(MAPS, [1, 2]), window)).toBe(text);
  });

  it("follows turned planes, vectors and scalars", () => {
    expect(indexText(planeOf({ ...MAPS, rows_dim: 3, columns_dim: 0 }, [2, 7]), { row0: 1, row1: 2, column0: 0, column1: 2 }))
      .toBe(":, 2, 7, 1");
    expect(indexText(planeOf({ ...TILE, shape: [8], rows_dim: -1, columns_dim: 0 }, []), { row0: 0, row1: 1, column0: 2, column1: 3 }))
      .toBe("2");
    expect(indexText(planeOf({ ...TILE, shape: [], rows_dim: -1, columns_dim: -1 }, []), { row0: 0, row1: 1, column0: 0, column1: 1 }))
      .toBe("");
  });
});

describe("moved", () => {
  it("stops at the plane's edges", () => {
    const whole = { row0: 0, row1: 10, column0: 0, column1: 10 };
    const view = { row0: 2, row1: 5, column0: 6, column1: 9 };
    expect(moved(view, whole, 1, -2)).toEqual({ row0: 3, row1: 6, column0: 4, column1: 7 });
    expect(moved(view, whole, 99, 99)).toEqual({ row0: 7, row1: 10, column0: 7, column1: 10 });
    expect(moved(view, whole, -99, -99)).toEqual({ row0: 0, row1: 3, column0: 0, column1: 3 });
  });
});
