/**
 * The strip under the header for a session over ranks: what each rank does, and whose piece of
 * the selected value the heatmap shows. A session in one process has none of it.
 */

import { CallCancelled } from "./client";
import { h, later, setAttribute, setText, show } from "./dom";
import { toNumber } from "./format";
import type { Page } from "./page";
import type { RankRow, RanksReply } from "./protocol";
import { pieceOf } from "./state";
import { Toggle } from "./toggle";

/** How often the ranks are asked for, in milliseconds, while the strip is seen. */
export const EVERY = 1000;
/** A kernel that is busy answers later than this: nobody waits for it, and it is asked rarely. */
const PATIENCE = 3000;
const RARELY = 5000;
const WHOLE = "whole";

export class Ranks {
  readonly element = h("section", {
    class: "lv-ranks", hidden: "", "aria-label": "Ranks", "data-test": "ranks",
  });
  private readonly list = h("ul", { class: "lv-rank-list" });
  private readonly lies = h("span", { class: "lv-rank-lies", "data-test": "lies" });
  private readonly choice = h("span", { class: "lv-rank-choice" });
  private toggle: Toggle<string> | null = null;
  private pieces = -1;
  private seen = true;
  private asking = false;
  private wait: () => void = () => undefined;

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
  ) {
    this.element.append(this.list, this.lies, this.choice);
    if (typeof IntersectionObserver !== "undefined") {
      const observer = new IntersectionObserver((entries) => {
        this.seen = entries[entries.length - 1]?.isIntersecting ?? true;
        if (this.seen && !this.element.hidden) void this.ask();
      });
      observer.observe(this.element);
      signal.addEventListener("abort", () => { observer.disconnect(); });
    }
    page.store.watch(signal, (now, before) => {
      const piece = pieceOf(now);
      this.toggle?.update(piece === null ? WHOLE : String(piece));
      const other = now.selected !== before.selected || now.kernel.run !== before.kernel.run;
      if (now.hello !== before.hello || (other && !this.element.hidden)) void this.ask();
    });
  }

  private async ask(): Promise<void> {
    if (this.asking || (this.page.store.now.hello?.ranks ?? 0) === 0) return;
    this.asking = true;
    this.wait();
    const site = this.page.store.now.selected;
    const call = this.page.client.call("ranks", { site }, { key: "ranks" });
    const stop = later(this.signal, PATIENCE, () => { call.drop("the kernel is busy"); });
    let pause = EVERY;
    try {
      this.update((await call.answer).result);
      if (this.page.store.now.selected !== site) pause = 0;
    } catch (error) {
      pause = RARELY;
      if (!(error instanceof CallCancelled)) setText(this.lies, String(error));
    }
    stop();
    this.asking = false;
    this.wait();
    this.wait = later(this.signal, pause, () => {
      if (this.seen && document.visibilityState !== "hidden") void this.ask();
      else this.wait = later(this.signal, EVERY, () => { void this.ask(); });
    });
  }

  private update({ rows, pieces, lies }: RanksReply): void {
    show(this.element, rows.length > 0);
    while (this.list.children.length > rows.length) this.list.lastElementChild?.remove();
    rows.forEach((row, at) => { this.show(row, this.list.children[at] ?? this.added()); });
    setText(this.lies, lies);
    setAttribute(this.lies, "data-apart", lies.includes("do not have the same") ? "" : null);
    this.offer(pieces);
  }

  private added(): HTMLElement {
    const item = h("li", { class: "lv-rank", "data-test": "rank" });
    this.list.append(item);
    return item;
  }

  private show(row: RankRow, item: Element): void {
    setAttribute(item, "data-state", row.state);
    setText(item, `${row.rank} ${saying(row)}`);
    const where = row.host === "" ? "" : ` on ${row.host}`;
    setAttribute(item, "title", `Rank ${row.rank}${where}, group ${row.group}\n${row.line}`);
  }

  /** Offer the pieces of the selected value; 0: it has none. */
  private offer(pieces: number): void {
    show(this.choice, pieces > 1);
    const gone = pieceOf(this.page.store.now);
    if (gone !== null && gone >= pieces) this.page.store.set({ piece: null });
    if (pieces < 2 || pieces === this.pieces) return;
    this.pieces = pieces;
    const ranks = Array.from({ length: pieces }, (_, rank) => rank);
    this.toggle = new Toggle<string>("Whose piece the heatmap shows", [
      [WHOLE, WHOLE, "The value as a whole"],
      ...ranks.map((rank) => [
        String(rank), `rank ${rank}`, `What rank ${rank} holds of it, numbered from its own start`,
      ] as const),
    ], this.signal, (value) => {
      const site = this.page.store.now.selected;
      this.page.store.set({ piece: value === WHOLE ? null : { site, rank: Number(value) } });
    });
    this.toggle.element.dataset["test"] = "piece";
    this.toggle.update(WHOLE);
    this.choice.replaceChildren(this.toggle.element);
  }
}

function saying(row: RankRow): string {
  const since = toNumber(row.since) ?? 0;
  const parts = [
    row.state === "running" || row.state === "starting" ? row.doing : row.state,
    since >= 2 && row.state !== "idle" ? `${Math.floor(since)} s` : "",
    bytes(row.memory),
    row.gpu_memory > 0 ? `GPU ${bytes(row.gpu_memory)}` : "",
  ];
  return parts.filter((part) => part !== "").join(" · ");
}

/** 1610612736 -> "1.5 GiB"; nothing where it is not known. */
function bytes(count: number): string {
  if (count <= 0) return "";
  const mib = count / 2 ** 20;
  return mib < 1024 ? `${mib.toFixed(0)} MiB` : `${(mib / 1024).toFixed(1)} GiB`;
}
