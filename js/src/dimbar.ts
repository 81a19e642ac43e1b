/** The choice of a plane: which dims are rows and columns, an index for each other one, the call. */

import { h, setAttribute, setText, show } from "./dom";
import { PlaneView } from "./planeview";
import type { TileReply } from "./protocol";

export class DimBar {
  readonly element = h("span", { class: "lv-dims" });
  readonly view = new PlaneView();
  private readonly sides: Record<"rows" | "columns", HTMLSelectElement> = {
    rows: h("select", { class: "lv-small", "aria-label": "Dim shown as rows", "data-test": "rows-dim" }),
    columns: h("select", { class: "lv-small", "aria-label": "Dim shown as columns", "data-test": "columns-dim" }),
  };
  private readonly chooser = h("span", { class: "lv-dim-label", hidden: "" },
    this.sides.rows, "×", this.sides.columns);
  private readonly indices = h("span", { class: "lv-dims" });
  private readonly call = h("input", {
    type: "number", class: "lv-input lv-index", min: "0", step: "1", "data-test": "call",
    title: "Which call of the module, counted from 0",
  });
  private readonly callCount = h("span");
  private readonly calls = h("label", { class: "lv-dim-label", hidden: "" }, "call", this.call, this.callCount);
  private drawn = "";

  constructor(
    private readonly signal: AbortSignal,
    private readonly changed: () => void,
    chooseCall: (call: number) => void,
  ) {
    this.element.append(this.chooser, this.indices, this.calls);
    for (const side of ["rows", "columns"] as const) {
      this.sides[side].addEventListener("change", () => {
        this.view.show(side, Number(this.sides[side].value));
        this.draw();
        this.changed();
      }, { signal });
    }
    this.call.addEventListener("change", () => {
      const wanted = Math.round(Number(this.call.value));
      if (Number.isFinite(wanted)) chooseCall(Math.max(0, Math.min(Number(this.call.max), wanted)));
    }, { signal });
  }

  /** Offer the calls of a module that was called `count` times; `call` is the one shown. */
  offerCalls(count: number, call: number | null): void {
    show(this.calls, count > 1);
    if (count < 2) return;
    setAttribute(this.call, "max", String(count - 1));
    setText(this.callCount, `of ${count}`);
    this.call.value = call === null ? "" : String(call);
  }

  /** Take the dims of what arrived. */
  follow(reply: TileReply | null): void {
    show(this.chooser, reply !== null && reply.shape.length > 1);
    show(this.indices, reply !== null);
    if (reply) {
      this.view.follow(reply);
      this.draw();
    }
  }

  private draw(): void {
    const { view } = this;
    const key = JSON.stringify([view.shape, view.names, view.rowsDim, view.columnsDim]);
    for (const dim of view.others()) {
      const input = this.indices.querySelector<HTMLInputElement>(`[data-dim="${dim}"]`);
      if (input && input !== document.activeElement) input.value = String(view.indexOf(dim));
    }
    if (key === this.drawn) return;
    this.drawn = key;
    for (const [side, dim] of [["rows", view.rowsDim], ["columns", view.columnsDim]] as const) {
      this.sides[side].replaceChildren(...view.shape.map((_, at) =>
        h("option", { value: String(at) }, view.nameOf(at))));
      this.sides[side].value = String(dim);
    }
    this.indices.replaceChildren(...view.others().flatMap((dim) => {
      const length = view.shape[dim] ?? 1;
      if (length < 2) return [];
      const input = h("input", {
        type: "number", class: "lv-input lv-index", min: "0", max: String(length - 1), step: "1",
        value: String(view.indexOf(dim)), "data-test": "dim", "data-dim": String(dim),
      });
      input.addEventListener("change", () => {
        input.value = String(view.setIndex(dim, Number(input.value)));
        this.changed();
      }, { signal: this.signal });
      return [h("label", { class: "lv-dim-label" }, view.nameOf(dim), input, `of ${length}`)];
    }));
  }
}
