import { describe, expect, it } from "vitest";
import { placeOf, scaleOf, symmetric } from "../src/scale";
import { TILE } from "./fakemodel";

describe("placeOf", () => {
  it("is linear between the ends, and full beyond them", () => {
    const scale = { low: 2, high: 6, curve: "linear" } as const;
    expect([2, 3, 4, 6, 9, -9].map((value) => placeOf(value, scale))).toEqual([-1, -0.5, 0, 1, 1, -1]);
    expect(placeOf(NaN, scale)).toBeNaN();
    expect(placeOf(Infinity, scale)).toBe(1);
  });

  it("bends by arcsinh, oddly and steadily", () => {
    const scale = symmetric(100, "arcsinh");
    expect(placeOf(0, scale)).toBe(0);
    expect(placeOf(100, scale)).toBe(1);
    expect(placeOf(-7, scale)).toBe(-placeOf(7, scale));
    // asinh(x / 1) over asinh(100), by hand.
    expect(placeOf(1, scale)).toBeCloseTo(Math.log(1 + Math.SQRT2) / Math.log(100 + Math.sqrt(10001)), 12);
    expect(placeOf(1, scale)).toBeGreaterThan(0.15);
  });
});

describe("scaleOf", () => {
  it("ends at the largest magnitude, at a percentile or as told", () => {
    const reply = { ...TILE, low: -3, high: 2, reach: 0.5 };
    expect(scaleOf(reply, { kind: "max" }, "linear")).toEqual(symmetric(3));
    expect(scaleOf(reply, { kind: "percentile", percent: 99 }, "arcsinh")).toEqual(symmetric(0.5, "arcsinh"));
    expect(scaleOf({ ...reply, reach: 0 }, { kind: "percentile", percent: 50 }, "linear")).toEqual(symmetric(3));
    expect(scaleOf(reply, { kind: "fixed", low: 0, high: 1 }, "linear")).toEqual({ low: 0, high: 1, curve: "linear" });
    expect(scaleOf({ ...reply, low: null, high: null }, { kind: "max" }, "linear")).toBeNull();
  });
});
