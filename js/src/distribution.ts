/** The distribution of a site's numbers: counts per bin of both runs, and quantiles. */

import type { Answer } from "./client";
import { h, setText } from "./dom";
import { exact, float, toNumber } from "./format";
import type { Page } from "./page";
import type { DistributionReply, Params } from "./protocol";
import { SiteView, needsRun } from "./siteview";
import type { PageState } from "./state";

const BINS = 96;

/** The height of a bin as a share of the highest, on a linear or a logarithmic scale. */
export function barShare(count: number, most: number, log: boolean): number {
  if (count <= 0 || most <= 0) return 0;
  return log ? Math.log1p(count) / Math.log1p(most) : count / most;
}

/** The edges of bin `at`. */
export function binEdges(low: number, high: number, bins: number, at: number): [number, number] {
  const edge = (i: number): number => low + (high - low) * (i / bins);
  return [edge(at), edge(at + 1)];
}

export class DistributionView extends SiteView<"distribution"> {
  private reply: DistributionReply | null = null;
  private readonly log = h("input", { type: "checkbox", "data-test": "log-counts" });
  private readonly plot = h("div", { class: "lv-bins", "data-test": "bins", role: "img" });
  private readonly axis = h("div", { class: "lv-bins-axis" });
  private readonly readout = h("output", { class: "lv-readout", "data-test": "distribution-readout" });
  private readonly legend = h("div", { class: "lv-legend" });
  private readonly table = h("table", { class: "lv-quantiles", "data-test": "quantiles" });

  constructor(page: Page, signal: AbortSignal) {
    super(page, signal, "distribution");
    this.log.addEventListener("change", () => { this.render(); }, { signal });
    this.tools.append(h("label", { class: "lv-dim-label" }, this.log, "log counts"), this.legend);
    this.body.classList.add("lv-distribution");
    this.body.append(this.plot, this.axis, this.readout,
      h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Quantiles" }, this.table));
    this.plot.addEventListener("pointermove", (event) => {
      const bin = (event.target as Element).closest<HTMLElement>("[data-bin]");
      this.read(bin ? Number(bin.dataset["bin"]) : -1);
    }, { signal });
    this.plot.addEventListener("pointerleave", () => { this.read(-1); }, { signal });
  }

  protected heading(state: PageState): string {
    return state.selected;
  }

  protected params(state: PageState): Params["distribution"] | string {
    return needsRun(state) || { site: state.selected, bins: BINS };
  }

  protected draw({ result }: Answer<"distribution">): void {
    this.reply = result;
    setText(this.facts, [result.stats, result.note].filter((part) => part !== "").join(" · "));
    this.render();
  }

  private render(): void {
    const { reply } = this;
    if (!reply) return;
    const compare = reply.baseline_counts.length > 0;
    const most = Math.max(1, ...reply.counts, ...reply.baseline_counts);
    const fill = (kind: string, count: number): HTMLElement => {
      const bar = h("span", { class: `lv-bin-${kind}` });
      bar.style.height = `${String(barShare(count, most, this.log.checked) * 100)}%`;
      return bar;
    };
    this.plot.replaceChildren(...reply.counts.map((count, at) => h("div", { class: "lv-bin", "data-bin": String(at) },
      compare && fill("baseline", reply.baseline_counts[at] ?? 0), fill("latest", count))));
    this.plot.setAttribute("aria-label",
      `Histogram of ${exact(reply.finite)} finite elements from ${float(toNumber(reply.low) ?? 0)} to ${float(toNumber(reply.high) ?? 0)}`);
    this.axis.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map((share) => {
      const [low, high] = [toNumber(reply.low) ?? 0, toNumber(reply.high) ?? 0];
      return h("span", {}, float(low + (high - low) * share, 3));
    }));
    const chip = (kind: string, name: string): HTMLElement =>
      h("span", { class: "lv-chip" }, h("span", { class: `lv-swatch lv-bin-${kind}` }), name);
    const odd = (name: string, now: number, before: number): HTMLElement | false => (now > 0 || before > 0)
      && h("span", { class: "lv-chip lv-odd", "data-test": `count-${name}` },
        `${name} × ${exact(now)}${compare ? ` (baseline ${exact(before)})` : ""}`);
    this.legend.replaceChildren(...[
      chip("latest", "latest"), compare && chip("baseline", "baseline"),
      odd("NaN", reply.nan, reply.baseline_nan), odd("∞", reply.inf, reply.baseline_inf),
    ].filter((part) => part instanceof HTMLElement));
    this.quantiles(reply, compare);
    this.read(-1);
  }

  private quantiles(reply: DistributionReply, compare: boolean): void {
    const name = (share: number): string =>
      share === 0 ? "min" : share === 1 ? "max" : share === 0.5 ? "median" : `${String(share * 100)} %`;
    const cell = (value: number | null): HTMLElement =>
      h("td", { title: String(value ?? "") }, value === null ? "–" : float(value));
    this.table.replaceChildren(
      h("thead", {}, h("tr", {}, ...["quantile", "latest", ...(compare ? ["baseline"] : [])]
        .map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, ...reply.shares.map((share, i) => h("tr", {},
        h("th", { scope: "row" }, name(toNumber(share) ?? 0)),
        cell(toNumber(reply.values[i] ?? null)),
        compare && cell(toNumber(reply.baseline_values[i] ?? null))))));
  }

  private read(bin: number): void {
    const { reply } = this;
    if (!reply || bin < 0) {
      setText(this.readout, "Point at a bin to read it.");
      return;
    }
    const [low, high] = binEdges(toNumber(reply.low) ?? 0, toNumber(reply.high) ?? 0, reply.counts.length, bin);
    const before = reply.baseline_counts[bin];
    setText(this.readout, `${float(low)} to ${float(high)}: ${exact(reply.counts[bin] ?? 0)}`
      + (before === undefined ? "" : ` (baseline ${exact(before)})`));
  }
}
