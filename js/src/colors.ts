/**
 * The diverging palette: 511 colours, centred at 0, and a tile's cells as pixels.
 *
 * Built in OKLCH, so that equal steps of a value look like equal steps and a negative value looks
 * as strong as the positive one of its size. Blue against red (orange in the dark) stays apart for
 * colour-blind readers. In the dark the centre is dark: large values glow, zero recedes.
 */

import { placeOf, type Scale } from "./scale";
import type { Theme } from "./theme";

export interface Palette {
  /** ABGR words, as a little-endian ImageData holds them: from -limit over 0 (at 255) to limit. */
  words: Uint32Array;
  /** What no number of the scale looks like. NaN is hatched with the other colour besides. */
  nan: number;
  hatch: number;
  inf: number;
}

export const CENTRE = 255;
const SIZE = 2 * CENTRE + 1;

interface Ramp {
  light: readonly [number, number];
  chroma: number;
  cold: number;
  warm: number;
}

const RAMPS: Record<Theme, Ramp> = {
  light: { light: [0.985, 0.37], chroma: 0.17, cold: 258, warm: 27 },
  dark: { light: [0.235, 0.83], chroma: 0.15, cold: 245, warm: 45 },
};

export function paletteOf(theme: Theme): Palette {
  const ramp = RAMPS[theme];
  const words = new Uint32Array(SIZE);
  for (let i = 0; i < SIZE; i += 1) {
    const strength = Math.abs(i - CENTRE) / CENTRE;
    const [from, to] = ramp.light;
    const light = from + (to - from) * strength;
    // Colour comes quickly, so that small values still have a side.
    const chroma = ramp.chroma * Math.min(1, 1.9 * strength ** 0.85);
    words[i] = word(inGamut(light, chroma, i < CENTRE ? ramp.cold : ramp.warm));
  }
  const dark = theme === "dark";
  return {
    words,
    nan: word([255, 236, 61]),
    hatch: word([214, 0, 190]),
    inf: word(dark ? [255, 255, 255] : [0, 0, 0]),
  };
}

/** Index into the palette of a value on a scale. NaN has none: -1. */
export function colorIndex(value: number, scale: Scale): number {
  const at = placeOf(value, scale);
  if (Number.isNaN(at)) return -1;
  // Rounded by magnitude: a value and its negative are equally far from the centre.
  const steps = Math.round(Math.abs(at) * CENTRE);
  return at < 0 ? CENTRE - steps : CENTRE + steps;
}

/** The pixels of a tile, one word a cell. */
export function colorCells(cells: Float32Array, scale: Scale, palette: Palette): Uint32Array {
  const pixels = new Uint32Array(cells.length);
  for (let i = 0; i < cells.length; i += 1) {
    const value = cells[i] ?? NaN;
    if (Number.isFinite(value)) pixels[i] = palette.words[colorIndex(value, scale)] ?? 0;
    else pixels[i] = Number.isNaN(value) ? palette.nan : palette.inf;
  }
  return pixels;
}

export function cssColor(abgr: number): string {
  return `rgb(${abgr & 255}, ${(abgr >> 8) & 255}, ${(abgr >> 16) & 255})`;
}

/** A cheap fingerprint of what was drawn (FNV-1a over words). */
export function fingerprint(pixels: Uint32Array): string {
  let hash = 0x811c9dc5;
  for (const pixel of pixels) hash = Math.imul(hash ^ pixel, 0x01000193);
  return (hash >>> 0).toString(16).padStart(8, "0");
}

type Rgb = readonly [number, number, number];

function word([red, green, blue]: Rgb): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** The colour of that lightness and hue with as much of the chroma as sRGB has. */
function inGamut(light: number, chroma: number, hue: number): Rgb {
  let share = chroma;
  for (let tries = 0; tries < 40; tries += 1) {
    const linear = oklch(light, share, hue);
    if (linear.every((part) => part >= -0.0005 && part <= 1.0005)) break;
    share *= 0.95;
  }
  const [red, green, blue] = oklch(light, share, hue).map(encode);
  return [red ?? 0, green ?? 0, blue ?? 0];
}

/** OKLCH to linear sRGB (Ottosson's matrices). */
function oklch(light: number, chroma: number, hue: number): Rgb {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
}

function encode(linear: number): number {
  const part = Math.max(0, Math.min(1, linear));
  const gamma = part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055;
  return Math.round(gamma * 255);
}
