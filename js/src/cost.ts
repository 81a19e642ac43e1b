/** The cost of a run before it: what it would hold, and what it may hold. */

import { openDialog } from "./dialog";
import { h, setText } from "./dom";
import { bytesText } from "./format";
import type { Page } from "./page";
import type { CostReply } from "./protocol";

export function costText({ sites, bytes, limit, note }: CostReply): string {
  if (bytes === null) return `Not known before the run: ${note}`;
  const over = limit !== null && bytes > limit ? " It is over the limit: what is beyond is left out and run again when looked at." : "";
  return `A run holds ${bytesText(bytes)} in ${sites} sites, twice that with interventions; the limit is ${limit === null ? "none" : bytesText(limit)} a run.${over}`;
}

export class Cost {
  readonly button = h("button", {
    type: "button", class: "lv-button", "data-test": "cost", "aria-haspopup": "dialog",
    title: "What a run would hold, and limits", "aria-label": "Cost of a run",
  }, "Cost");

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
    private readonly prompt: () => string,
  ) {
    this.button.addEventListener("click", () => { this.open(); }, { signal });
    page.store.watch(signal, ({ hello }) => { this.button.disabled = hello === null; });
  }

  private open(): void {
    const { limits } = this.page.store.now.kernel;
    const said = h("p", { class: "lv-dialog-text", role: "status", "data-test": "cost-text" }, "Estimating, without running the model…");
    const choices = h("fieldset", { class: "lv-choices", "data-test": "cost-choices" });
    const largest = h("p", { class: "lv-dialog-text lv-dim" });
    const limit = h("input", {
      type: "number", class: "lv-input lv-limit", min: "1", step: "1", placeholder: "none", "data-test": "limit",
      value: limits?.max_bytes == null ? "" : String(Math.round(limits.max_bytes / 2 ** 20)),
    });
    const apply = h("button", { type: "button", class: "lv-button lv-primary", "data-test": "apply-limits" }, "Apply");
    const dialog = openDialog(this.button, "Cost of a run", "cost-dialog", [
      said, choices, largest,
      h("label", { class: "lv-dialog-row" }, "Limit of a run", limit, "MiB"),
      h("p", { class: "lv-dialog-text lv-dim" }, "Statistics alone cannot be kept yet: records are tensors."),
      h("div", { class: "lv-dialog-row" }, apply),
    ], this.signal);
    apply.addEventListener("click", () => {
      const picked = choices.querySelector<HTMLInputElement>("input:checked");
      const keep = picked?.dataset["keep"] ?? limits?.keep ?? "";
      const sites = picked?.value.split("\n") ?? limits?.sites ?? ["**"];
      const typed = Number(limit.value);
      const most = limit.value.trim() === "" ? null : Math.max(1, Math.round(typed));
      dialog.close();
      void this.page.act("limits", { sites, keep, max_mib: most });
    }, { signal: this.signal });
    void this.fill(said, choices, largest);
  }

  private async fill(said: HTMLElement, choices: HTMLElement, largest: HTMLElement): Promise<void> {
    const limits = this.page.store.now.kernel.limits;
    const sites = limits?.sites ?? ["**"];
    const keep = limits?.keep ?? "";
    const found = await this.page.task("estimate", { prompt: this.prompt(), sites, keep });
    if (found === null) {
      setText(said, this.page.store.now.problem || "The estimate was cancelled.");
      return;
    }
    setText(said, costText(found));
    setText(largest, found.largest.length > 0 ? `Largest: ${found.largest.join("; ")}.` : "");
    choices.replaceChildren(h("legend", {}, "Record"), ...found.choices.map((choice) => {
      const input = h("input", {
        type: "radio", name: "lv-cost", value: choice.sites.join("\n"), "data-keep": choice.keep,
      });
      input.checked = choice.keep === keep && choice.sites.join() === sites.join();
      return h("label", { class: "lv-choice", title: choice.note || undefined }, input,
        h("span", {}, choice.name), h("span", { class: "lv-choice-size" }, bytesText(choice.bytes)));
    }));
  }
}
