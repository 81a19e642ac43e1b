/** What the colours mean, and the choices of it: the bar with its numbers, counts of the rest. */

import { CENTRE, cssColor, type Palette } from "./colors";
import { h, setAttribute, setText, show } from "./dom";
import { exact, float, toNumber } from "./format";
import type { TileReply } from "./protocol";
import { BEND, middle, scaleOf, type Curve, type Range, type Scale } from "./scale";

const RANGES: readonly [string, string][] = [
  ["max", "to the largest"], ["99.9", "to 99.9 %"], ["99", "to 99 %"], ["95", "to 95 %"], ["fixed", "fixed…"],
];

export class Legend {
  readonly element: HTMLElement;
  private readonly bar = h("div", { class: "lv-legend-bar", role: "presentation" });
  private readonly low = h("span", { class: "lv-number" });
  private readonly high = h("span", { class: "lv-number" });
  private readonly middle = h("span", { class: "lv-legend-zero" }, "0");
  private readonly nan = h("span");
  private readonly inf = h("span");
  private readonly nanChip = h("span", { class: "lv-chip", "data-test": "legend-nan" },
    h("span", { class: "lv-swatch lv-swatch-nan" }), this.nan);
  private readonly infChip = h("span", { class: "lv-chip", "data-test": "legend-inf" },
    h("span", { class: "lv-swatch lv-swatch-inf" }), this.inf);
  private readonly none = h("span", { class: "lv-chip" });
  private readonly told = h("span", { class: "lv-chip lv-dim", "data-test": "legend-range" });
  private readonly range = h("select", {
    class: "lv-small", "aria-label": "Where the scale ends", "data-test": "range",
    title: "Where the scale ends: at the largest magnitude, at the magnitude that so many of the " +
      "plane's finite values do not exceed, or at numbers of yours. Beyond it colours are full.",
  });
  private readonly curve = h("select", {
    class: "lv-small", "aria-label": "How the scale bends", "data-test": "curve",
    title: `arcsinh shows small values beside large ones: linear below ${BEND * 100} % of the end, like a logarithm above`,
  });
  private readonly from = numberInput("Low end of the scale", "range-low", "-1");
  private readonly to = numberInput("High end of the scale", "range-high", "1");
  private readonly fixed = h("span", { class: "lv-legend-fixed", hidden: "" }, this.from, "to", this.to);
  private readonly scale = h("div", { class: "lv-legend-scale" }, this.low,
    h("div", { class: "lv-legend-ramp" }, this.bar, this.middle), this.high);
  private painted: Palette | null = null;
  private shown: Scale | null = null;

  /** `changed`: the choice has, so another tile may be needed. */
  constructor(signal: AbortSignal, changed: () => void) {
    for (const [value, text] of RANGES) this.range.append(h("option", { value }, text));
    for (const value of ["linear", "arcsinh"]) this.curve.append(h("option", { value }, value));
    const choose = (): void => {
      if (this.range.value === "fixed" && this.fixed.hidden) this.adopt();
      show(this.fixed, this.range.value === "fixed");
      const { low, high } = this.ends();
      setAttribute(this.to, "aria-invalid", low < high ? null : "true");
      changed();
    };
    for (const input of [this.range, this.curve, this.from, this.to]) {
      input.addEventListener("change", choose, { signal });
    }
    this.element = h("div", { class: "lv-legend", "data-test": "legend" },
      this.scale, this.range, this.fixed, this.curve, this.told, this.none, this.nanChip, this.infChip);
  }

  /** The percentage of values that the kernel is asked about; null where none is. */
  get percentile(): number | null {
    const percent = Number(this.range.value);
    return Number.isFinite(percent) ? percent : null;
  }

  private ends(): { low: number; high: number } {
    return { low: Number(this.from.value), high: Number(this.to.value) };
  }

  /** Start fixed ends where the scale is. */
  private adopt(): void {
    if (!this.shown) return;
    this.from.value = String(Number(this.shown.low.toPrecision(3)));
    this.to.value = String(Number(this.shown.high.toPrecision(3)));
  }

  private chosen(): Range {
    if (this.range.value === "fixed") {
      const { low, high } = this.ends();
      return low < high ? { kind: "fixed", low, high } : { kind: "max" };
    }
    const percent = this.percentile;
    return percent === null ? { kind: "max" } : { kind: "percentile", percent };
  }

  /** The scale for a tile; null where nothing is finite. */
  scaleOf(reply: TileReply): Scale | null {
    return scaleOf(reply, this.chosen(), this.curve.value as Curve);
  }

  update(palette: Palette, reply: TileReply): void {
    if (this.painted !== palette) {
      const stops: string[] = [];
      for (let i = 0; i <= 2 * CENTRE; i += 15) stops.push(cssColor(palette.words[i] ?? 0));
      this.bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
      this.painted = palette;
    }
    const scale = this.scaleOf(reply);
    this.shown = scale;
    const low = toNumber(reply.low);
    const high = toNumber(reply.high);
    const spans = scale !== null && scale.high > scale.low;
    show(this.scale, spans);
    show(this.range, spans);
    show(this.curve, spans);
    show(this.none, !spans);
    setText(this.none, spans ? "" : noScale(low, reply.nan, reply.inf));
    if (spans) {
      const below = low !== null && low < scale.low;
      const above = high !== null && high > scale.high;
      const sign = scale.high > 0 ? "+" : "";
      setText(this.low, `${below ? "≤ " : ""}${float(scale.low, 3)}`);
      setText(this.high, `${above ? "≥ " : ""}${sign}${float(scale.high, 3)}`);
      setText(this.middle, float(middle(scale), 3));
    }
    setText(this.told, spans ? this.tell(reply) : "");
    show(this.told, this.told.textContent !== "");
    setText(this.nan, `NaN × ${exact(reply.nan)}`);
    setText(this.inf, `∞ × ${exact(reply.inf)}`);
    show(this.nanChip, reply.nan > 0);
    show(this.infChip, reply.inf > 0);
  }

  /** What the ends are, where that is not plain to see. */
  private tell(reply: TileReply): string {
    const range = this.chosen();
    if (range.kind === "max") return this.range.value === "fixed" ? "low end is not below high end" : "";
    if (range.kind === "fixed") return "fixed ends";
    const reach = toNumber(reply.reach);
    if (reach === null) return "…";
    if (reach === 0) return `${range.percent} % of the values are 0: ends at the largest`;
    return `${range.percent} % of magnitudes, ${reply.sampled ? "of a sample" : "exact"}`;
  }
}

function numberInput(name: string, mark: string, value: string): HTMLInputElement {
  return h("input", {
    type: "number", step: "any", class: "lv-input lv-range-end", "aria-label": name, "data-test": mark, value,
  });
}

/** Why there is no scale to show. */
function noScale(low: number | null, nan: number, inf: number): string {
  if (low !== null) return nan + inf > 0 ? "every finite value is 0" : "every value is 0";
  return inf === 0 ? "every value is NaN" : "no finite value";
}
