/** The checks of the run that is shown: green or amber, each with its reason. */

import { h, show } from "./dom";
import type { Page } from "./page";
import type { Check } from "./protocol";
import { Section } from "./side";

/** What all checks say together. */
export function verdict(checks: readonly Check[]): { text: string; tone: "" | "good" | "warn" } {
  if (checks.length === 0) return { text: "", tone: "" };
  const amber = checks.filter(({ ok }) => !ok).length;
  if (amber === 0) return { text: `✓ all ${checks.length}`, tone: "good" };
  return { text: `! ${amber} of ${checks.length}`, tone: "warn" };
}

export class Checks {
  readonly element: HTMLElement;

  constructor(page: Page, signal: AbortSignal) {
    const list = h("ul", { class: "lv-checks", "data-test": "checks" });
    const empty = h("p", { class: "lv-empty" }, "A run is checked here: is it what a plain call computes?");
    const verify = h("button", {
      type: "button", class: "lv-button lv-small", "data-test": "verify",
      title: "Calls the model once without lensview and compares the logits bit for bit",
    }, "Compare with a plain call");
    const section = new Section("trust", "Checks", false, signal);
    section.body.append(h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Checks" }, empty, list),
      h("div", { class: "lv-beside" }, verify));
    this.element = section.element;
    verify.addEventListener("click", () => { void page.act("verify", {}); }, { signal });
    let shown: readonly Check[] | null = null;
    page.store.watch(signal, ({ kernel, running }) => {
      verify.disabled = kernel.run === 0 || running || kernel.pair.length > 0; // it is of the latest run
      if (kernel.checks === shown) return;
      shown = kernel.checks;
      const { text, tone } = verdict(kernel.checks);
      section.say(text, tone);
      show(empty, kernel.checks.length === 0);
      list.replaceChildren(...kernel.checks.map(line));
    });
  }
}

function line({ name, ok, reason }: Check): HTMLElement {
  return h("li", { class: "lv-check", "data-check": name, "data-ok": String(ok) },
    h("span", { class: "lv-check-mark", role: "img", "aria-label": ok ? "green" : ok === null ? "not told" : "amber" },
      ok ? "✓" : ok === null ? "?" : "!"),
    h("span", {}, h("b", {}, name), ` ${reason}`));
}
