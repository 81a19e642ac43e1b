/** The head of the heatmap: which site, which side of it, which run, which slice. */

import { DimBar } from "./dimbar";
import { h, setAttribute, setText, show } from "./dom";
import { shapeText } from "./format";
import type { Page } from "./page";
import type { DragMode } from "./pointer";
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
  readonly dims: DimBar;
  /** What a plain drag does. */
  mode: DragMode = "zoom";

  private readonly site = h("h3", { class: "lv-site", "data-test": "site" });
  private readonly facts = h("div", { class: "lv-facts", "data-test": "facts" });
  private readonly side;
  private readonly which;
  private readonly drag;

  constructor(
    private readonly page: Page,
    signal: AbortSignal,
    changed: () => void,
  ) {
    this.side = new Toggle("Side of the module", [
      ["output", "output", "What the module returned"],
      ["input", "input", "What the module was given"],
    ], signal, (side) => {
      const { path, call } = parseSite(page.store.now.selected);
      void page.select(siteOf(path, side, call));
    });
    this.side.element.dataset["test"] = "side";
    this.which = new Toggle("Which run", [
      ["latest", "latest", "The latest run, with its interventions"],
      ["baseline", "baseline", "The same run without interventions"],
      ["difference", "difference", "latest − baseline"],
    ], signal, (which) => { page.compare(which); });
    this.which.element.dataset["test"] = "which";
    this.dims = new DimBar(signal, changed, (call) => {
      const { path, side } = parseSite(page.store.now.selected);
      void page.select(siteOf(path, side, call));
    });
    this.drag = new Toggle<DragMode>("What dragging does", [
      ["zoom", "zoom", "Dragging zooms into a region"],
      ["select", "select", "Dragging selects a region (also: shift + drag)"],
      ["pan", "move", "Dragging moves a zoomed picture (also: alt + drag)"],
    ], signal, (mode) => {
      this.mode = mode;
      this.drag.update(mode);
    });
    this.drag.element.dataset["test"] = "drag-mode";
    this.drag.update(this.mode);
    this.element = h("div", { class: "lv-heatbar" },
      h("div", { class: "lv-site-row" }, this.site, this.reset),
      h("div", { class: "lv-tools" }, this.side.element, this.which.element, this.drag.element, this.dims.element),
      this.facts);
  }

  update(state: PageState): void {
    const { path, side, plain, call } = parseSite(state.selected);
    this.dims.offerCalls(state.selected !== "" && plain ? this.page.tree.callsOf(this.page.tree.find(path)) : 0, call);
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
    show(this.drag.element, reply !== null);
    this.dims.follow(reply);
    const parts = reply
      ? [shapeText(reply.shape), reply.dtype, reply.note.replace(/(\d) x (?=\d)/g, "$1 × ")]
      : [];
    setText(this.facts, parts.filter((part) => part !== "").join(" · "));
    setAttribute(this.facts, "title", this.facts.textContent || null);
  }
}
