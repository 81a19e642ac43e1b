/** From values to places on a colour scale: where it ends, and how it bends. Knows no colours. */

import { toNumber } from "./format";
import type { TileReply } from "./protocol";

export type Curve = "linear" | "arcsinh";

export interface Scale {
  /** The values at the ends; the middle of the palette lies half way between. */
  low: number;
  high: number;
  curve: Curve;
}

/** Below this part of the end, arcsinh is near to linear; above, near to a logarithm. */
export const BEND = 0.01;

export function symmetric(limit: number, curve: Curve = "linear"): Scale {
  return { low: -limit, high: limit, curve };
}

export function middle({ low, high }: Scale): number {
  return low === -high ? 0 : low / 2 + high / 2;
}

/** The place of a value, from -1 at the low end over 0 in the middle to 1; NaN for NaN. */
export function placeOf(value: number, scale: Scale): number {
  if (Number.isNaN(value)) return NaN;
  const centre = middle(scale);
  const half = scale.low === -scale.high ? scale.high : scale.high - centre;
  if (!(half > 0)) return 0;
  const share = Math.max(-1, Math.min(1, (value - centre) / half));
  return scale.curve === "linear" ? share : Math.asinh(share / BEND) / Math.asinh(1 / BEND);
}

/** Where a scale may end: at the largest magnitude, at one of a share of the values, or as told. */
export type Range = { kind: "max" } | { kind: "percentile"; percent: number } | { kind: "fixed"; low: number; high: number };

/** The scale of a tile under a range; null where nothing is finite. */
export function scaleOf(reply: TileReply, range: Range, curve: Curve): Scale | null {
  const low = toNumber(reply.low);
  const high = toNumber(reply.high);
  if (range.kind === "fixed") return { low: range.low, high: range.high, curve };
  if (low === null || high === null) return null;
  const largest = Math.max(Math.abs(low), Math.abs(high));
  if (range.kind === "max") return symmetric(largest, curve);
  const reach = toNumber(reply.reach);
  // Where most values are 0, so is the percentile: then only the largest says anything.
  return symmetric(reach === null || reach === 0 ? largest : reach, curve);
}
