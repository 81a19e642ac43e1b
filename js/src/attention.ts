/** Attention: one head's pattern, small pictures of all heads, and token to token under the pointer. */

import { floats } from "./buffers";
import type { Answer } from "./client";
import { paintCells } from "./cells";
import { paletteOf, type Palette } from "./colors";
import { h, later, onResize, setAttribute, setText } from "./dom";
import { float, toNumber, visible } from "./format";
import { difference } from "./lens";
import { NumberField } from "./numberfield";
import type { Page } from "./page";
import type { AttentionReply, Params } from "./protocol";
import { SiteView, needsRun } from "./siteview";
import type { PageState } from "./state";
import type { Theme } from "./theme";
import { WhichRun } from "./whichrun";

const SMALL = 34;
const LINE = 13;
const LARGEST = 34;
const MOST_TOKENS = 400;

/** The value of the cell that covers a query and a key. */
export function weightAt(reply: AttentionReply, cells: Float32Array, query: number, key: number): number {
  const row = Math.floor(query / reply.row_step);
  const column = Math.floor(key / reply.column_step);
  return cells[row * reply.columns + column] ?? NaN;
}

/** How long a host may hide the page when its theme changes. */
const HIDDEN = 200;

export class AttentionView extends SiteView<"attention"> {
  private reply: AttentionReply | null = null;
  private cells: Float32Array = new Float32Array(0);
  private small: Float32Array = new Float32Array(0);
  private palette: Palette = paletteOf("light");
  private head = 0;
  private query = 0;
  private key = 0;
  private readonly which: WhichRun;
  private readonly row: NumberField;
  private readonly canvas = h("canvas", { class: "lv-canvas" });
  private readonly queries = h("div", { class: "lv-queries", "aria-hidden": "true" });
  private readonly surface: HTMLElement;
  private readonly stage: HTMLElement;
  private readonly heads = h("div", { class: "lv-heads", role: "radiogroup", "aria-label": "Attention heads", "data-test": "heads" });
  private readonly words = h("div", { class: "lv-words", "data-test": "words" });
  private readonly readout = h("output", { class: "lv-readout", "data-test": "attention-readout", "aria-live": "polite" });

  constructor(page: Page, signal: AbortSignal) {
    super(page, signal, "attention");
    this.which = new WhichRun(page, signal);
    this.row = new NumberField("batch row", "attention-row", signal, () => { this.again(); });
    this.tools.append(this.which.element, this.row.element);
    this.surface = h("div", {
      class: "lv-surface", tabindex: "0", role: "application", "aria-roledescription": "attention pattern",
      "aria-label": "Attention pattern: queries down, keys across. Arrow keys move.", "data-test": "attention-surface",
    }, this.canvas);
    this.stage = h("div", { class: "lv-attention-stage" }, this.queries, this.surface);
    this.body.classList.add("lv-attention");
    this.body.append(this.heads, this.stage, this.readout,
      h("div", { class: "lv-scroll lv-words-scroll", tabindex: "0", role: "group", "aria-label": "Tokens by weight" }, this.words));
    this.listen(signal);
    onResize(signal, this.stage, () => { this.paint(); });
    page.store.watch(signal, (now) => { this.which.update(now); });
  }

  override setTheme = (theme: Theme): void => {
    this.palette = paletteOf(theme);
    this.paint();
    this.thumbnails();
    // Hosts hide everything for a moment at a theme switch, and what comes back was not resized.
    later(this.signal, HIDDEN, () => { this.paint(); });
  };

  private listen(signal: AbortSignal): void {
    this.surface.addEventListener("pointermove", (event) => {
      const { reply } = this;
      const box = this.canvas.getBoundingClientRect();
      if (!reply || box.width === 0) return;
      this.look(Math.floor(((event.clientY - box.top) / box.height) * reply.queries),
        Math.floor(((event.clientX - box.left) / box.width) * reply.keys));
    }, { signal });
    this.surface.addEventListener("keydown", (event) => {
      const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!move) return;
      event.preventDefault();
      this.look(this.query + (move[0] ?? 0), this.key + (move[1] ?? 0));
    }, { signal });
    this.words.addEventListener("pointermove", (event) => {
      const word = (event.target as Element).closest<HTMLElement>("[data-key]");
      if (word && this.reply?.queries === this.reply?.keys) this.look(Number(word.dataset["key"]), this.key);
    }, { signal });
    this.heads.addEventListener("click", (event) => {
      const head = (event.target as Element).closest<HTMLElement>("[data-head]");
      if (head) this.choose(Number(head.dataset["head"]));
    }, { signal });
    this.heads.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step === undefined || !this.reply) return;
      event.preventDefault();
      this.choose((this.head + step + this.reply.heads) % this.reply.heads, true);
    }, { signal });
  }

  private choose(head: number, focus = false): void {
    this.head = head;
    this.again();
    this.markHead(focus);
  }

  protected heading(state: PageState): string {
    return this.reply?.site === state.selected ? this.reply.path : state.selected;
  }

  protected params(state: PageState): Params["attention"] | string {
    return needsRun(state) || { site: state.selected, which: state.which, row: this.row.value, head: this.head };
  }

  protected draw({ result, buffers }: Answer<"attention">): void {
    this.reply = result;
    this.head = result.head;
    this.cells = floats(buffers[0], result.rows * result.columns);
    this.small = floats(buffers[1], result.heads * result.small_rows * result.small_columns);
    this.row.offer(result.batch);
    setText(this.title, result.path);
    const off = toNumber(result.difference) ?? NaN;
    const each = result.row_step * result.column_step > 1
      ? ` · each cell is the largest of ${String(result.row_step)} × ${String(result.column_step)}` : "";
    setText(this.facts, `${String(result.heads)} heads · ${result.how} · these weights times the values are ${difference(off)}`
      + `${off === 0 ? "" : ` (largest ${float(toNumber(result.largest) ?? NaN, 2)})`}${each}`);
    setAttribute(this.facts, "title", this.facts.textContent);
    this.paint();
    this.thumbnails();
    this.look(Math.min(this.query, result.queries - 1), Math.min(this.key, result.keys - 1));
  }

  private limit(): number {
    return toNumber(this.reply?.high ?? null) ?? 0;
  }

  private paint(): void {
    const { reply } = this;
    if (!reply || this.stage.clientWidth === 0) return;
    const width = this.stage.clientWidth;
    const tall = Math.min(width / reply.keys, this.stage.clientHeight / reply.queries, LARGEST);
    const labels = tall >= LINE ? reply.query_labels : [];
    this.queries.replaceChildren(...labels.map((label) => {
      const word = h("bdi", { dir: "ltr" }, visible(label));
      word.style.height = `${String(tall)}px`;
      return word;
    }));
    const step = Math.max(0.05, Math.min(tall, (width - this.queries.clientWidth - 8) / reply.keys));
    for (const word of this.queries.children) (word as HTMLElement).style.height = `${String(step)}px`;
    paintCells(this.canvas, { values: this.cells, rows: reply.rows, columns: reply.columns },
      Math.max(40, step * reply.keys), Math.max(40, step * reply.queries), this.limit(), this.palette);
  }

  private thumbnails(): void {
    const { reply } = this;
    if (!reply) return;
    const each = reply.small_rows * reply.small_columns;
    this.heads.replaceChildren(...Array.from({ length: reply.heads }, (_, head) => {
      const canvas = h("canvas", { class: "lv-head-picture" });
      paintCells(canvas, { values: this.small.subarray(head * each, (head + 1) * each), rows: reply.small_rows, columns: reply.small_columns },
        SMALL, SMALL, this.limit(), this.palette);
      return h("button", { type: "button", role: "radio", class: "lv-head", "data-head": String(head), title: `head ${String(head)}`, "data-test": "head" },
        canvas, h("span", {}, String(head)));
    }));
    this.markHead(false);
  }

  private markHead(focus: boolean): void {
    for (const button of this.heads.querySelectorAll<HTMLButtonElement>("[data-head]")) {
      const on = Number(button.dataset["head"]) === this.head;
      setAttribute(button, "aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
      if (on && focus) button.focus();
    }
  }

  private look(query: number, key: number): void {
    const { reply } = this;
    if (!reply) return;
    this.query = Math.max(0, Math.min(reply.queries - 1, query));
    this.key = Math.max(0, Math.min(reply.keys - 1, key));
    const name = (labels: readonly string[], at: number): string => {
      const label = labels[at];
      return label === undefined ? String(at) : `${String(at)} ${visible(label)}`;
    };
    const weight = weightAt(reply, this.cells, this.query, this.key);
    setText(this.readout, `head ${String(this.head)}: query ${name(reply.query_labels, this.query)} → key ${name(reply.key_labels, this.key)}: ${float(weight)}`);
    const most = Math.min(reply.keys, MOST_TOKENS);
    const limit = this.limit() || 1;
    this.words.replaceChildren(...Array.from({ length: most }, (_, at) => {
      const value = weightAt(reply, this.cells, this.query, at);
      const word = h("bdi", {
        class: `lv-word${at === this.query && reply.queries === reply.keys ? " lv-word-query" : ""}${at === this.key ? " lv-word-key" : ""}`,
        dir: "ltr", "data-key": String(at), "data-value": String(value), title: `${String(at)}: ${float(value)}`,
      }, visible(reply.key_labels[at] ?? String(at)));
      const share = Math.round(Math.min(1, Math.abs(value) / limit) * 45);
      word.style.background = `color-mix(in srgb, var(${value < 0 ? "--lv-bad" : "--lv-accent"}) ${String(share)}%, var(--lv-bg))`;
      return word;
    }));
  }
}
