/** The logit lens: what each layer would predict, layers down the side and tokens across. */

import type { Answer } from "./client";
import { h, setText, show } from "./dom";
import { float, percent, toNumber, visible } from "./format";
import { NumberField } from "./numberfield";
import type { Page } from "./page";
import type { LensReply, Params, Which } from "./protocol";
import { SiteView, needsRun } from "./siteview";
import type { PageState } from "./state";
import { WhichRun } from "./whichrun";

/** Colours keep enough of the background for the text on them to be read. */
const DEEPEST = 45;

export interface LensCell {
  layer: number;
  token: number;
  text: string;
  probability: number;
  /** The change of probability against the run without interventions; null without one. */
  change: number | null;
  top: { text: string; probability: number; before: number | null }[];
}

/** One cell of a reply's flat lists. */
export function lensCell(reply: LensReply, texts: ReadonlyMap<number, string>, layer: number, token: number): LensCell {
  const width = reply.sites.length === 0 ? 0 : reply.ids.length / reply.k / reply.sites.length;
  const first = (layer * width + token) * reply.k;
  const top = Array.from({ length: reply.k }, (_, i) => ({
    text: texts.get(reply.ids[first + i] ?? -1) ?? "?",
    probability: toNumber(reply.probabilities[first + i] ?? null) ?? NaN,
    before: toNumber(reply.before[first + i] ?? null),
  }));
  const best = top[0] ?? { text: "?", probability: NaN, before: null };
  return {
    layer, token, top, text: best.text, probability: best.probability,
    change: best.before === null ? null : best.probability - best.before,
  };
}

/** What all sites begin with, up to the last dot: "model.layers.". */
export function stemOf(sites: readonly string[]): string {
  const stem = (sites[0] ?? "").replace(/[^.]*$/, "");
  return sites.every((site) => site.startsWith(stem)) ? stem : "";
}

/** The background of a cell. */
export function lensColour({ probability, change }: LensCell, which: Which): string {
  const amount = which === "difference" ? (change ?? 0) : probability;
  const share = Math.round(Math.min(1, Math.abs(Number.isFinite(amount) ? amount : 0)) * DEEPEST);
  return `color-mix(in srgb, var(${amount < 0 ? "--lv-bad" : "--lv-accent"}) ${String(share)}%, var(--lv-bg))`;
}

export class LensView extends SiteView<"lens"> {
  private reply: LensReply | null = null;
  private start = 0;
  private prompt = "";
  private cells: LensCell[][] = [];
  private readonly which: WhichRun;
  private readonly row: NumberField;
  private readonly back = h("button", { type: "button", class: "lv-button lv-small", "data-test": "lens-back" }, "◀");
  private readonly on = h("button", { type: "button", class: "lv-button lv-small", "data-test": "lens-on" }, "▶");
  private readonly range = h("span", { class: "lv-dim" });
  private readonly table = h("table", { class: "lv-lens", role: "grid", "aria-label": "Logit lens", "data-test": "lens-table" });
  private readonly readout = h("output", { class: "lv-readout lv-lens-readout", "data-test": "lens-readout", "aria-live": "polite" });

  constructor(page: Page, signal: AbortSignal) {
    super(page, signal, "lens");
    this.which = new WhichRun(page, signal);
    this.row = new NumberField("batch row", "lens-row", signal, () => { this.again(); });
    for (const [button, name, by] of [[this.back, "Earlier tokens", -1], [this.on, "Later tokens", 1]] as const) {
      button.setAttribute("aria-label", name);
      button.addEventListener("click", () => { this.move(by); }, { signal });
    }
    this.tools.append(this.which.element, this.row.element, this.back, this.range, this.on);
    this.body.append(h("div", { class: "lv-scroll lv-lens-scroll" }, this.table), this.readout);
    this.table.addEventListener("pointermove", (event) => { this.look(this.cellOf(event.target)); }, { signal });
    this.table.addEventListener("focusin", (event) => { this.look(this.cellOf(event.target)); }, { signal });
    this.table.addEventListener("click", (event) => { this.pick(event.target); }, { signal });
    this.table.addEventListener("keydown", (event) => { this.key(event); }, { signal });
    page.store.watch(signal, (now, before) => {
      this.which.update(now);
      // The difference is in what the latest run's answer holds: nothing is asked for it.
      if (now.which !== before.which && this.reply) this.render(this.reply);
      this.mark(now.selected);
    });
  }

  protected heading(): string {
    return "Logit lens: what the model would say after each layer";
  }

  protected params(state: PageState): Params["lens"] | string {
    const tokens = JSON.stringify(state.kernel.tokens);
    if (tokens !== this.prompt) this.start = 0;
    this.prompt = tokens;
    const why = state.kernel.run === 0 ? needsRun({ ...state, selected: "x" }) : "";
    return why || { which: state.which === "baseline" ? "baseline" : "latest", row: this.row.value, start: this.start };
  }

  protected draw({ result }: Answer<"lens">): void {
    this.reply = result;
    const shown = result.labels.length;
    this.row.offer(result.batch);
    setText(this.facts, `through ${result.way} · at the last layer ${difference(toNumber(result.difference) ?? NaN)} · the deeper the colour, the likelier`);
    const all = shown >= result.total;
    for (const part of [this.back, this.on, this.range]) show(part, !all);
    setText(this.range, `tokens ${String(result.start)}–${String(result.start + shown - 1)} of ${String(result.total)}`);
    this.back.disabled = result.start === 0;
    this.on.disabled = result.start + shown >= result.total;
    this.render(result);
    this.look(null);
    this.mark(this.page.store.now.selected);
  }

  private render(reply: LensReply): void {
    const { which } = this.page.store.now;
    const texts = new Map(reply.vocabulary.map((id, i) => [id, reply.texts[i] ?? `#${String(id)}`]));
    const width = reply.sites.length === 0 ? 0 : reply.ids.length / reply.k / reply.sites.length;
    this.cells = reply.sites.map((_, layer) =>
      Array.from({ length: width }, (_unused, token) => lensCell(reply, texts, layer, token)));
    const stem = stemOf(reply.sites);
    const head = h("tr", { role: "row" }, h("th", { role: "columnheader", scope: "col" }, `${stem} ↓`),
      ...Array.from({ length: width }, (_, token) => h("th", { role: "columnheader", scope: "col", title: `token ${String(reply.start + token)}` },
        h("bdi", { dir: "ltr" }, visible(reply.labels[token] ?? String(reply.start + token))))));
    const rows = this.cells.map((cells, layer) => h("tr", { role: "row", "data-site": reply.sites[layer] ?? "" },
      h("th", { role: "rowheader", scope: "row", title: reply.sites[layer] ?? "" },
        (reply.sites[layer] ?? "").slice(stem.length)),
      ...cells.map((cell) => {
        const value = which === "difference" ? (cell.change ?? 0) : cell.probability;
        const element = h("td", {
          role: "gridcell", tabindex: "-1", "data-test": "lens-cell", "data-layer": String(cell.layer),
          "data-token": String(cell.token), "data-value": String(value),
        }, h("bdi", { dir: "ltr" }, visible(cell.text)));
        element.style.background = lensColour(cell, which);
        return element;
      })));
    // The last layer on top, next to what the model says.
    this.table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...rows.reverse()));
    this.at(reply.sites.length - 1, 0)?.setAttribute("tabindex", "0");
  }

  private at(layer: number, token: number): HTMLElement | null {
    return this.table.querySelector(`td[data-layer="${String(layer)}"][data-token="${String(token)}"]`);
  }

  private cellOf(target: EventTarget | null): LensCell | null {
    const td = target instanceof Element ? target.closest("td") : null;
    return td ? (this.cells[Number(td.dataset["layer"])]?.[Number(td.dataset["token"])] ?? null) : null;
  }

  private look(cell: LensCell | null): void {
    const { reply } = this;
    if (!reply || !cell) {
      setText(this.readout, "Point at a cell for its five likeliest tokens. A click selects the layer.");
      return;
    }
    const compare = reply.before.length > 0;
    const said = cell.top.map(({ text, probability, before }) =>
      `${visible(text)} ${percent(probability)}${compare ? ` (baseline ${percent(before)})` : ""}`);
    setText(this.readout, `${reply.sites[cell.layer] ?? ""} at ${visible(reply.labels[cell.token] ?? "")}: ${said.join(" · ")}`);
  }

  private pick(target: EventTarget | null): void {
    const row = target instanceof Element ? target.closest<HTMLElement>("tr[data-site]") : null;
    const site = row?.dataset["site"];
    if (site !== undefined) void this.page.select(site);
  }

  private key(event: KeyboardEvent): void {
    const cell = this.cellOf(event.target);
    if (!cell) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.pick(event.target);
      return;
    }
    const width = this.cells[0]?.length ?? 0;
    const move = { ArrowUp: [1, 0], ArrowDown: [-1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
      Home: [0, -cell.token], End: [0, width - 1 - cell.token] }[event.key];
    const next = move && this.at(cell.layer + (move[0] ?? 0), cell.token + (move[1] ?? 0));
    if (!next) return;
    event.preventDefault();
    this.at(cell.layer, cell.token)?.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  }

  private move(by: number): void {
    const { reply } = this;
    if (!reply) return;
    this.start = Math.max(0, reply.start + by * reply.labels.length);
    this.again();
  }

  private mark(selected: string): void {
    for (const row of this.table.querySelectorAll<HTMLElement>("tr[data-site]")) {
      row.classList.toggle("lv-current", row.dataset["site"] === selected);
    }
  }
}

/** How far a recomputation is from what the model itself got. */
export function difference(value: number): string {
  return value === 0 ? "equal to the model's own, bit for bit" : `off from the model's own by at most ${float(value, 2)}`;
}
