/** The code of the selected module's forward, and at each line the ops that ran there. */

import type { Answer } from "./client";
import { h, setAttribute, setText } from "./dom";
import type { Page } from "./page";
import type { Params, SourceReply, SourceRow } from "./protocol";
import { SiteView } from "./siteview";
import { parseSite } from "./sites";
import type { PageState } from "./state";

/** The part of an op's site after its module: "matmul.1". */
export function opOf(site: string, path: string): string {
  return site.startsWith(`${path}/`) ? site.slice(path.length + 1) : site;
}

export class SourceView extends SiteView<"source"> {
  private readonly code = h("div", { class: "lv-code", role: "list", "data-test": "code" });
  private readonly about = h("output", { class: "lv-readout lv-lens-readout", "data-test": "op-stats" });
  private ops: HTMLButtonElement[] = [];
  private looked = "";

  constructor(page: Page, signal: AbortSignal) {
    super(page, signal, "source");
    const scroll = h("div", { class: "lv-scroll lv-code-scroll" }, this.code);
    this.body.append(scroll, this.about);
    this.code.addEventListener("click", (event) => {
      const op = (event.target as Element).closest<HTMLElement>("[data-op]");
      if (op?.dataset["op"] !== undefined) this.choose(op.dataset["op"]);
    }, { signal });
    this.code.addEventListener("keydown", (event) => { this.key(event); }, { signal });
    page.store.watch(signal, (now) => { this.mark(now); });
  }

  protected heading(state: PageState): string {
    const { path } = parseSite(state.selected);
    return `${path === "" ? "the model" : path}: forward`;
  }

  protected params(state: PageState): Params["source"] | string {
    return { site: parseSite(state.selected).path };
  }

  protected draw({ result }: Answer<"source">): void {
    const { lines, calls, note } = result;
    setText(this.facts, [note, calls > 1 ? `called ${String(calls)} times: sites carry @call` : "",
      calls > 0 ? "Click an op to select its site; it is recorded by another run where it was not." : ""]
      .filter((part) => part !== "").join(" · "));
    this.code.replaceChildren(...this.rows(result, lines));
    this.ops = [...this.code.querySelectorAll<HTMLButtonElement>("[data-op]")];
    this.ops.forEach((op, i) => { op.tabIndex = i === 0 ? 0 : -1; });
    this.looked = "";
    this.mark(this.page.store.now);
  }

  private rows(result: SourceReply, lines: readonly SourceRow[]): HTMLElement[] {
    let inside = "";
    return lines.flatMap((line) => {
      const head = line.function === inside ? [] : [h("div", { class: "lv-code-head", role: "listitem" }, line.function)];
      inside = line.function;
      return [...head, h("div", { class: "lv-code-line", role: "listitem", "data-line": String(line.number) },
        h("span", { class: "lv-code-number" }, String(line.number)),
        h("span", { class: "lv-code-text" }, line.text),
        h("span", { class: "lv-code-ops" }, ...line.sites.map((site, i) => h("button", {
          type: "button", class: "lv-op", "data-op": site, "data-test": "op", title: site,
        }, opOf(site, result.path), h("span", { class: "lv-dim" }, ` ${line.shapes[i]?.replace(/(\d) x (?=\d)/g, "$1 × ") ?? ""}`)))))];
    });
  }

  private choose(site: string): void {
    void this.page.select(site);
    void this.look(site);
  }

  /** Record the op where it was not, and say what it holds. */
  private async look(site: string): Promise<void> {
    this.looked = site;
    setText(this.about, `${site}: …`);
    try {
      const { result } = await this.page.ask("tile",
        { site, which: this.page.store.now.which, window: null, max_rows: 1, max_columns: 1, index: [],
          rows_dim: null, columns_dim: null, percentile: null, rank: null },
        { key: "op", onProgress: (progress) => { if (this.looked === site) setText(this.about, `${site}: ${progress.text}`); } });
      if (this.looked === site) setText(this.about, `${site}: ${result.stats}`);
    } catch (error) {
      if (this.looked === site) setText(this.about, error instanceof Error ? error.message : String(error));
    }
  }

  private key(event: KeyboardEvent): void {
    const at = this.ops.indexOf(event.target as HTMLButtonElement);
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -at, End: this.ops.length - 1 - at }[event.key];
    const next = at < 0 || step === undefined ? undefined : this.ops[at + step];
    if (!next) return;
    event.preventDefault();
    for (const op of this.ops) op.tabIndex = op === next ? 0 : -1;
    next.focus();
  }

  private mark(now: PageState): void {
    for (const op of this.ops) {
      setAttribute(op, "aria-current", op.dataset["op"] === now.selected ? "true" : null);
    }
  }
}
