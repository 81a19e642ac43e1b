/** Numbers and tokens as short texts for people. */

import type { Float } from "./protocol";

const UNITS = ["", "k", "M", "B", "T"];

/** 1234567 -> "1.2M"; exact below a thousand. */
export function human(count: number): string {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  if (unit === 0) return String(count);
  return `${value < 99.95 ? value.toFixed(1) : value.toFixed(0)}${UNITS[unit] ?? ""}`;
}

/** 1234567 -> "1,234,567", whatever the reader's locale. */
export function exact(count: number): string {
  return String(count).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** 1536 -> "1.5 KiB". */
export function bytesText(bytes: number | null): string {
  if (bytes === null) return "unknown";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit] ?? ""}`;
}

/** What the dialog says of a run as it would be now. */

export function toNumber(value: Float | null): number | null {
  if (value === null) return null;
  if (typeof value === "number") return value;
  return value === "nan" ? NaN : value === "inf" ? Infinity : -Infinity;
}

/** A float32 with `digits` significant digits and a true minus sign. */
export function float(value: number, digits = 4): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text =
    size >= 1e-3 && size < 1e6
      ? String(Number(value.toPrecision(digits)))
      : value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("e+", "e");
  return text.replaceAll("-", "−");
}

/** 0.7712 -> "77.1 %"; what is not a number stays visible. */
export function percent(probability: number | null): string {
  if (probability === null) return "–";
  if (Number.isNaN(probability)) return "NaN";
  const share = probability * 100;
  if (share > 0 && share < 0.05) return "<0.1 %";
  return `${share.toFixed(1)} %`;
}

const NAMED: Record<string, string> = { "\n": "↵", "\r": "␍", "\t": "⇥", "\u00a0": "⍽" };

/** Controls, zero-width marks and bidi overrides: characters that hide or move other text. */
// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** A token with its white space and controls made visible. */
export function visible(token: string): string {
  const text = token
    .replace(HIDDEN, (mark) => NAMED[mark] ?? `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .replace(/^ +| +$| {2,}/g, (spaces) => "␣".repeat(spaces.length));
  return text === "" ? "∅" : text;
}

/** [1, 6, 576] -> "1 × 6 × 576". */
export function shapeText(shape: readonly number[]): string {
  return shape.length === 0 ? "scalar" : shape.join(" × ");
}
