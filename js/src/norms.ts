/** How long each token's vector is: a bar per row, the run without interventions beside it. */

import type { Answer } from "./client";
import { h, setText } from "./dom";
import { exact, float, shapeText, toNumber, visible } from "./format";
import { NumberField } from "./numberfield";
import type { Page } from "./page";
import type { Float, NormsReply, Params } from "./protocol";
import { SiteView, needsRun } from "./siteview";
import type { PageState } from "./state";
import { Toggle } from "./toggle";

type Measure = "norm" | "rms";

/** The largest finite value, 0 without one. */
export function largest(values: readonly Float[]): number {
  return values.reduce<number>((most, value) => {
    const number = toNumber(value) ?? 0;
    return Number.isFinite(number) && number > most ? number : most;
  }, 0);
}

export class NormsView extends SiteView<"norms"> {
  private reply: NormsReply | null = null;
  private measure: Measure = "norm";
  private site = "";
  private readonly fields: NumberField[] = [];
  private readonly choice;
  private readonly list = h("div", { class: "lv-norms", role: "list", "data-test": "norm-rows" });
  private readonly dims = h("span", { class: "lv-dims" });

  constructor(page: Page, signal: AbortSignal) {
    super(page, signal, "norms");
    this.choice = new Toggle<Measure>("Measure", [
      ["norm", "L2 norm", "The root of the sum of squares of a row"],
      ["rms", "RMS", "The root of the mean square of a row: does not grow with the width"],
    ], signal, (measure) => {
      this.measure = measure;
      this.render();
    });
    this.choice.element.dataset["test"] = "measure";
    this.tools.append(this.choice.element, this.dims);
    this.body.append(h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Norms" }, this.list));
  }

  protected heading(state: PageState): string {
    return state.selected;
  }

  protected params(state: PageState): Params["norms"] | string {
    if (state.selected !== this.site) for (const field of this.fields) field.set(0);
    this.site = state.selected;
    const index = this.fields.map((field) => field.value);
    return needsRun(state) || { site: state.selected, index: index.some((at) => at > 0) ? index : [] };
  }

  protected draw({ result }: Answer<"norms">): void {
    this.reply = result;
    const leading = result.index.map((_, dim) => result.shape[dim] ?? 1);
    while (this.fields.length < leading.length) {
      const field = new NumberField(`dim ${String(this.fields.length)}`, "norms-dim", this.signal, () => { this.again(); });
      this.fields.push(field);
      this.dims.append(field.element);
    }
    this.fields.forEach((field, dim) => {
      field.set(result.index[dim] ?? 0);
      field.offer(leading[dim] ?? 1);
    });
    setText(this.facts, [`${shapeText(result.shape)}: one bar for each of its ${result.rows_are}, over ${exact(result.width)} features`,
      result.note].filter((part) => part !== "").join(" · "));
    this.render();
  }

  private render(): void {
    const { reply, measure } = this;
    this.choice.update(measure);
    if (!reply) return;
    const values = reply[measure];
    const before = measure === "norm" ? reply.baseline_norm : reply.baseline_rms;
    const most = Math.max(largest(values), largest(before)) || 1;
    const bar = (kind: string, value: Float | undefined): HTMLElement | false => {
      if (value === undefined) return false;
      const size = toNumber(value) ?? 0;
      const fill = h("span", { class: `lv-norm-bar lv-bin-${kind}` });
      fill.style.width = `${String(Math.max(0, Math.min(1, Number.isFinite(size) ? size / most : 1)) * 100)}%`;
      return fill;
    };
    this.list.replaceChildren(...values.map((value, row) => {
      const label = reply.labels[row];
      const name = label === undefined ? String(row) : visible(label);
      const now = toNumber(value) ?? NaN;
      const then = before[row];
      const said = then === undefined ? float(now) : `${float(now)} (${float(toNumber(then) ?? NaN)})`;
      return h("div", { class: "lv-norm", role: "listitem", "data-row": String(row), "data-value": String(value), title: `${String(row)}: ${name}` },
        h("bdi", { class: "lv-norm-label", dir: "ltr" }, name),
        h("span", { class: "lv-norm-bars" }, bar("latest", value), bar("baseline", then)),
        h("span", { class: "lv-norm-number" }, said));
    }));
  }
}
