/** The head of the heatmap: which site, which side of it, which run, which slice. */

import { h, setAttribute, setText, show } from "./dom";
import { shapeText } from "./format";
import type { Page } from "./page";
import type { TileReply } from "./protocol";
import { parseSite, siteOf } from "./sites";
import { hasEdits, type PageState } from "./state";
import { Toggle } from "./toggle";

export class Heatbar {
  readonly element: HTMLElement;
  readonly reset = h("button", {
    type: "button", class: "lv-button lv-small", hidden: "", "data-test": "reset-zoom",
    title: "Show the whole plane again (double click, Escape)",
  }, "Reset zoom");
  /** One index per leading dim of the tensor. */
  index: number[] = [];

  private readonly site = h("h3", { class: "lv-site", "data-test": "site" });
  private readonly facts = h("div", { class: "lv-facts", "data-test": "facts" });
  private readonly dims = h("span", { class: "lv-dims" });
  private readonly side;
  private readonly which;
  private shape = "";

  constructor(
    page: Page,
    private readonly signal: AbortSignal,
    private readonly changed: () => void,
  ) {
    this.side = new Toggle("Side of the module", [
      ["output", "output", "What the module returned"],
      ["input", "input", "What the module was given"],
    ], signal, (side) => { void page.select(siteOf(parseSite(page.store.now.selected).path, side)); });
    this.side.element.dataset["test"] = "side";
    this.which = new Toggle("Which run", [
      ["latest", "latest", "The latest run, with its interventions"],
      ["baseline", "baseline", "The same run without interventions"],
      ["difference", "difference", "latest − baseline"],
    ], signal, (which) => { page.compare(which); });
    this.which.element.dataset["test"] = "which";
    this.element = h("div", { class: "lv-heatbar" },
      h("div", { class: "lv-site-row" }, this.site, this.reset),
      h("div", { class: "lv-tools" }, this.side.element, this.which.element, this.dims),
      this.facts);
  }

  update(state: PageState): void {
    const { path, side, plain } = parseSite(state.selected);
    setText(this.site, state.selected === "" ? "Nothing selected" : state.selected);
    setAttribute(this.site, "title", state.selected);
    this.side.update(side, plain);
    show(this.side.element, state.selected !== "" && plain);
    this.which.update(state.which);
    const [first, second] = state.kernel.pair;
    const pair = first !== undefined && second !== undefined;
    this.which.rename("latest", pair ? `B · run ${second}` : "latest",
      pair ? `Run ${second}` : "The latest run, with its interventions");
    this.which.rename("baseline", pair ? `A · run ${first}` : "baseline",
      pair ? `Run ${first}` : "The same run without interventions");
    this.which.rename("difference", pair ? "B − A" : "difference",
      pair ? `Run ${second} − run ${first}` : "latest − baseline");
    show(this.which.element, hasEdits(state) && state.selected !== "");
    setAttribute(this.element, "data-path", path);
  }

  /** Say what the tile is of, and offer its leading dims. null: there is no tile. */
  describe(reply: TileReply | null, zoomed: boolean): void {
    show(this.reset, reply !== null && zoomed);
    if (!reply) {
      setText(this.facts, "");
      this.offer([]);
      return;
    }
    const parts = [shapeText(reply.shape), reply.dtype, reply.note.replace(/(\d) x (?=\d)/g, "$1 × ")];
    setText(this.facts, parts.filter((part) => part !== "").join(" · "));
    setAttribute(this.facts, "title", this.facts.textContent);
    this.offer(reply.shape);
  }

  private offer(shape: readonly number[]): void {
    const text = shape.join();
    if (text === this.shape) return;
    this.shape = text;
    const leading = shape.slice(0, -2);
    this.index = leading.map((length, dim) => Math.min(this.index[dim] ?? 0, length - 1));
    this.dims.replaceChildren(...leading.flatMap((length, dim) => {
      if (length < 2) return [];
      const input = h("input", {
        type: "number", class: "lv-input lv-index", min: "0", max: String(length - 1), step: "1",
        value: String(this.index[dim] ?? 0), "data-test": "dim", "data-dim": String(dim),
      });
      input.addEventListener("change", () => {
        const wanted = Math.round(Number(input.value));
        this.index[dim] = Math.max(0, Math.min(length - 1, Number.isFinite(wanted) ? wanted : 0));
        input.value = String(this.index[dim]);
        this.changed();
      }, { signal: this.signal });
      return [h("label", { class: "lv-dim-label" }, `dim ${dim}`, input, `of ${length}`)];
    }));
  }
}
