/** The next-token table: the run without interventions against the run with them. */

import { h, setAttribute, setText, show } from "./dom";
import { float, percent, toNumber, visible } from "./format";
import type { Page } from "./page";
import type { Divergence, Float, NextToken, State } from "./protocol";
import { Section } from "./side";

export interface TokenRow {
  id: number;
  text: string;
  /** null: not among the tokens that the kernel sent for that run. */
  baseline: number | null;
  edited: number | null;
}

/** The union of both lists, likeliest first (by the edited run where there is one). */
export function tokenRows(baseline: readonly NextToken[], edited: readonly NextToken[]): TokenRow[] {
  const rows = new Map<number, TokenRow>();
  for (const { id, text, probability } of baseline) {
    rows.set(id, { id, text, baseline: toNumber(probability), edited: null });
  }
  for (const { id, text, probability } of edited) {
    const row = rows.get(id) ?? { id, text, baseline: null, edited: null };
    rows.set(id, { ...row, edited: toNumber(probability) });
  }
  const rank = (row: TokenRow): number =>
    edited.length > 0 ? (row.edited ?? (row.baseline ?? 0) * 1e-6) : (row.baseline ?? 0);
  return [...rows.values()].sort((a, b) => rank(b) - rank(a));
}

/** How a probability moved: an arrow and percentage points. */
export function changeText({ baseline, edited }: TokenRow): string {
  if (baseline === null) return "▲ new";
  if (edited === null) return "▼ out";
  const points = (edited - baseline) * 100;
  if (Number.isNaN(points)) return "NaN";
  if (Math.abs(points) < 0.05) return "=";
  return `${points > 0 ? "▲" : "▼"} ${Math.abs(points).toFixed(1)}`;
}

/** How far the two tables are apart, in a line; "" where there is one table. */
export function apartText(divergence: Divergence | null, first: string, second: string): string {
  if (divergence === null) return "";
  if (divergence.note !== "") return `No KL: ${divergence.note}.`;
  const nats = (value: Float | null): string => {
    const size = toNumber(value);
    return size === null ? "–" : float(size, 3);
  };
  return `KL(${first} ‖ ${second}) ${nats(divergence.forward)} · KL(${second} ‖ ${first}) ${nats(divergence.backward)} nats`;
}

export class NextTokens {
  readonly element: HTMLElement;
  private readonly apart = h("p", {
    class: "lv-apart", "data-test": "divergence", hidden: "",
    title: "Kullback-Leibler divergence over the whole vocabulary, in float64",
  });
  private readonly body = h("tbody");
  private readonly table: HTMLTableElement;
  private readonly empty = h("p", { class: "lv-empty" }, "A run fills this table.");
  private readonly head = h("tr");

  constructor(page: Page, signal: AbortSignal) {
    this.table = h("table", { class: "lv-tokens", "data-test": "next-tokens" },
      h("thead", {}, this.head), this.body);
    const section = new Section("next", "Next token", true, signal);
    this.element = section.element;
    section.body.append(this.apart,
      h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Next-token table" }, this.empty, this.table));
    let shown: State | null = null;
    page.store.watch(signal, ({ kernel, hello }) => {
      if (kernel.baseline === shown?.baseline && kernel.edited === shown.edited && kernel.pair === shown.pair) return;
      shown = kernel;
      const rows = tokenRows(kernel.baseline, kernel.edited);
      const compare = kernel.edited.length > 0;
      const [a, b] = kernel.pair;
      const pair = a !== undefined && b !== undefined;
      const [first, second] = pair ? [`A: run ${a}`, `B: run ${b}`] : ["baseline", "edited"];
      const titles = compare ? ["token", first, second, "change"] : ["token", "probability"];
      const best = rows[0];
      section.say(best ? `${visible(best.text)} ${percent(compare ? best.edited : best.baseline)}` : "");
      const apart = apartText(kernel.divergence, pair ? "A" : "baseline", pair ? "B" : "edited");
      setText(this.apart, apart);
      setAttribute(this.apart, "data-forward", String(kernel.divergence?.forward ?? ""));
      setAttribute(this.apart, "data-backward", String(kernel.divergence?.backward ?? ""));
      show(this.apart, apart !== "");
      this.head.replaceChildren(...titles.map((title) => h("th", { scope: "col" }, title)));
      this.body.replaceChildren(...rows.map((row) => line(row, compare)));
      show(this.table, rows.length > 0);
      show(this.empty, rows.length === 0);
      setText(this.empty, kernel.run > 0 && hello
        ? "This model's output has no next token."
        : "A run fills this table.");
    });
  }
}

function line(row: TokenRow, compare: boolean): HTMLElement {
  const element = h("tr", {
    "data-token": row.text,
    "data-id": String(row.id),
    "data-baseline": row.baseline === null ? "" : String(row.baseline),
    "data-edited": row.edited === null ? "" : String(row.edited),
  }, h("th", { scope: "row", class: "lv-token", title: `${visible(row.text)} (id ${row.id})` },
    h("bdi", { dir: "ltr" }, visible(row.text))), bar(row.baseline, "baseline"));
  if (compare) {
    element.append(bar(row.edited, "edited"), change(row));
  }
  return element;
}

function change(row: TokenRow): HTMLElement {
  const text = changeText(row);
  const side = text.startsWith("▲") ? " lv-up" : text.startsWith("▼") ? " lv-down" : "";
  return h("td", { class: `lv-change${side}`, title: "percentage points" }, text);
}

function bar(probability: number | null, kind: string): HTMLElement {
  const fill = h("span", { class: `lv-bar lv-bar-${kind}` });
  fill.style.width = `${Math.max(0, Math.min(1, probability ?? 0)) * 100}%`;
  const title = probability === null ? "not among the likeliest of this run" : String(probability);
  return h("td", { class: "lv-share", title }, fill, h("span", { class: "lv-share-text" }, percent(probability)));
}
