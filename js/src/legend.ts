/** What the colours mean: the bar with its numbers, and counts of what has no place on it. */

import { CENTRE, cssColor, type Palette } from "./colors";
import { h, setText, show } from "./dom";
import { exact, float } from "./format";

export class Legend {
  readonly element: HTMLElement;
  private readonly bar = h("div", { class: "lv-legend-bar", role: "presentation" });
  private readonly low = h("span", { class: "lv-number" });
  private readonly high = h("span", { class: "lv-number" });
  private readonly nan = h("span");
  private readonly inf = h("span");
  private readonly nanChip = h("span", { class: "lv-chip", "data-test": "legend-nan" },
    h("span", { class: "lv-swatch lv-swatch-nan" }), this.nan);
  private readonly infChip = h("span", { class: "lv-chip", "data-test": "legend-inf" },
    h("span", { class: "lv-swatch lv-swatch-inf" }), this.inf);
  private readonly none = h("span", { class: "lv-chip" });
  private readonly range = h("select", {
    class: "lv-small",
    "aria-label": "Where the scale ends",
    title: "Where the scale ends, as a share of the largest magnitude. Beyond it colours are full.",
    "data-test": "range",
  });
  private readonly scale = h("div", { class: "lv-legend-scale" }, this.low,
    h("div", { class: "lv-legend-ramp" }, this.bar, h("span", { class: "lv-legend-zero" }, "0")),
    this.high);
  private painted: Palette | null = null;

  constructor(signal: AbortSignal, changed: () => void) {
    for (const [share, text] of [["1", "full range"], ["4", "¼ range"], ["16", "¹⁄₁₆ range"], ["64", "¹⁄₆₄ range"]]) {
      this.range.append(h("option", { value: share }, text));
    }
    this.range.addEventListener("change", changed, { signal });
    this.element = h("div", { class: "lv-legend", "data-test": "legend" },
      this.scale, this.range, this.none, this.nanChip, this.infChip);
  }

  /** The part of the full range that the scale spans: 1, 1/4, ... */
  get share(): number {
    return 1 / Number(this.range.value || "1");
  }

  /** `limit` is the largest finite magnitude, or null where nothing is finite. */
  update(palette: Palette, limit: number | null, nan: number, inf: number): void {
    if (this.painted !== palette) {
      const stops: string[] = [];
      for (let i = 0; i <= 2 * CENTRE; i += 15) stops.push(cssColor(palette.words[i] ?? 0));
      this.bar.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
      this.painted = palette;
    }
    const end = (limit ?? 0) * this.share;
    const beyond = this.share < 1 && end > 0;
    setText(this.low, `${beyond ? "≤ " : ""}${float(-end, 3)}`);
    setText(this.high, `${beyond ? "≥ " : ""}${end > 0 ? "+" : ""}${float(end, 3)}`);
    show(this.scale, limit !== null && limit > 0);
    show(this.range, limit !== null && limit > 0);
    show(this.none, limit === null || limit === 0);
    setText(this.none, noScale(limit, nan, inf));
    setText(this.nan, `NaN × ${exact(nan)}`);
    setText(this.inf, `∞ × ${exact(inf)}`);
    show(this.nanChip, nan > 0);
    show(this.infChip, inf > 0);
  }
}

/** Why there is no scale to show. */
function noScale(limit: number | null, nan: number, inf: number): string {
  if (limit !== null) return nan + inf > 0 ? "every finite value is 0" : "every value is 0";
  return inf === 0 ? "every value is NaN" : "no finite value";
}
