import { describe, expect, it } from "vitest";
import { CENTRE, colorCells, colorIndex, fingerprint, paletteOf } from "../src/colors";
import { symmetric } from "../src/scale";
import { luminance } from "../src/theme";

const parts = (word: number): [number, number, number] => [word & 255, (word >> 8) & 255, (word >> 16) & 255];
const light = (word: number): number => luminance(`rgb(${parts(word).join(", ")})`) ?? NaN;

describe("the scale", () => {
  it("has 0 at its centre, whatever the limit", () => {
    for (const limit of [0, 1e-30, 1, 1e30, Infinity]) expect(colorIndex(0, symmetric(limit))).toBe(CENTRE);
  });

  it("is symmetric and ends at its limit", () => {
    for (const limit of [1e-30, 1, 1e30]) {
      expect(colorIndex(limit, symmetric(limit))).toBe(2 * CENTRE);
      expect(colorIndex(-limit, symmetric(limit))).toBe(0);
      expect(colorIndex(limit / 2, symmetric(limit)) - CENTRE).toBe(CENTRE - colorIndex(-limit / 2, symmetric(limit)));
      expect(colorIndex(5 * limit, symmetric(limit))).toBe(2 * CENTRE);
    }
    expect(colorIndex(NaN, symmetric(1))).toBe(-1);
  });
});

describe.each(["light", "dark"] as const)("the %s palette", (theme) => {
  const { words, nan, inf } = paletteOf(theme);

  it("is neutral in the middle, cold below and warm above", () => {
    const [red, green, blue] = parts(words[CENTRE] ?? 0);
    expect(Math.max(red, green, blue) - Math.min(red, green, blue)).toBeLessThan(6);
    const [coldRed, , coldBlue] = parts(words[60] ?? 0);
    const [warmRed, , warmBlue] = parts(words[450] ?? 0);
    expect(coldBlue).toBeGreaterThan(coldRed + 40);
    expect(warmRed).toBeGreaterThan(warmBlue + 40);
  });

  it("changes lightness one way from the middle, alike on both sides", () => {
    const sign = theme === "light" ? -1 : 1;
    for (let i = 8; i <= CENTRE; i += 8) {
      const near = CENTRE + i - 8;
      expect(sign * (light(words[CENTRE + i] ?? 0) - light(words[near] ?? 0))).toBeGreaterThan(-0.002);
      expect(Math.abs(light(words[CENTRE + i] ?? 0) - light(words[CENTRE - i] ?? 0))).toBeLessThan(0.09);
    }
  });

  it("has no colour of NaN or an infinity", () => {
    expect([...words]).not.toContain(nan);
    expect([...words]).not.toContain(inf);
  });

  it("gives the edge cases their pixels", () => {
    const palette = paletteOf(theme);
    const pixels = colorCells(new Float32Array([0, NaN, Infinity, -Infinity, 1e-30, -1e-30]), symmetric(1e-30), palette);
    expect([...pixels]).toEqual([
      words[CENTRE], nan, inf, inf, words[2 * CENTRE], words[0],
    ]);
    expect(new Set(colorCells(new Float32Array(9).fill(NaN), symmetric(0), palette))).toEqual(new Set([nan]));
    expect(new Set(colorCells(new Float32Array(9).fill(4), symmetric(4), palette)).size).toBe(1);
    expect(new Set(colorCells(new Float32Array(9), symmetric(0), palette))).toEqual(new Set([words[CENTRE]]));
  });
});

describe("fingerprint", () => {
  it("tells pictures apart", () => {
    expect(fingerprint(new Uint32Array([1, 2]))).not.toBe(fingerprint(new Uint32Array([2, 1])));
    expect(fingerprint(new Uint32Array([1, 2]))).toBe(fingerprint(new Uint32Array([1, 2])));
  });
});
