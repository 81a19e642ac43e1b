/**
 * The views of a site, by tabs: the heatmap first. A tab that does not apply to what is selected is
 * disabled and says why; the chosen one stays chosen whatever is selected or run.
 *
 * Keys as in the ARIA tabs pattern, chosen by Enter or Space and not by the arrows alone, since a
 * view may run the model.
 */

import { AttentionView } from "./attention";
import { CallCancelled } from "./client";
import { DistributionView } from "./distribution";
import { h, setAttribute, show, uniqueId } from "./dom";
import { LensView } from "./lens";
import { NormsView } from "./norms";
import type { Page } from "./page";
import { SourceView } from "./source";
import type { PageState } from "./state";
import type { Theme } from "./theme";

export const TABS = [
  ["heatmap", "Heatmap"],
  ["distribution", "Distribution"],
  ["norms", "Norms"],
  ["attention", "Attention"],
  ["lens", "Logit lens"],
  ["source", "Source"],
] as const;

export type Tab = (typeof TABS)[number][0];

/** The tab that a key goes to from the one at `at`, or -1. */
export function tabAt(key: string, at: number, count: number): number {
  if (key === "ArrowRight") return (at + 1) % count;
  if (key === "ArrowLeft") return (at - 1 + count) % count;
  if (key === "Home") return 0;
  return key === "End" ? count - 1 : -1;
}

interface Shown {
  readonly element: HTMLElement;
  update(state: PageState, visible: boolean, reason: string): void;
  setTheme(theme: Theme): void;
}

export class Views {
  readonly element: HTMLElement;
  private readonly tabs = new Map<Tab, HTMLButtonElement>();
  private readonly panels = new Map<Tab, HTMLElement>();
  private readonly views: ReadonlyMap<Tab, Shown>;
  private readonly reasons = new Map<string, string>();
  private chosen: Tab = "heatmap";
  private asked = "";

  constructor(
    private readonly page: Page,
    private readonly signal: AbortSignal,
    heatmap: HTMLElement,
  ) {
    this.views = new Map<Tab, Shown>([
      ["distribution", new DistributionView(page, signal)],
      ["norms", new NormsView(page, signal)],
      ["attention", new AttentionView(page, signal)],
      ["lens", new LensView(page, signal)],
      ["source", new SourceView(page, signal)],
    ]);
    const list = h("div", { class: "lv-tabs", role: "tablist", "aria-label": "View of the site", "data-test": "tabs" });
    this.element = h("div", { class: "lv-views" }, list);
    for (const [tab, title] of TABS) this.add(list, tab, title, this.views.get(tab)?.element ?? heatmap);
    list.addEventListener("keydown", (event) => { this.key(event); }, { signal });
    this.choose("heatmap");
    page.store.watch(signal, (now) => { this.follow(now); });
  }

  setTheme(theme: Theme): void {
    for (const view of this.views.values()) view.setTheme(theme);
  }

  private add(list: HTMLElement, tab: Tab, title: string, content: HTMLElement): void {
    const id = uniqueId(`tab-${tab}`);
    const panel = h("div", {
      class: "lv-tabpanel", role: "tabpanel", id: `${id}-panel`, "aria-labelledby": id,
    }, content);
    const button = h("button", {
      type: "button", class: "lv-tab", role: "tab", id, "aria-controls": panel.id, "data-test": `tab-${tab}`,
    }, title);
    button.addEventListener("click", () => { this.press(tab); }, { signal: this.signal });
    this.tabs.set(tab, button);
    this.panels.set(tab, panel);
    list.append(button);
    this.element.append(panel);
  }

  private key(event: KeyboardEvent): void {
    const buttons = [...this.tabs.values()];
    const at = buttons.indexOf(event.target as HTMLButtonElement);
    const to = at < 0 ? -1 : tabAt(event.key, at, buttons.length);
    if (to < 0) return;
    event.preventDefault();
    buttons.forEach((button, i) => { button.tabIndex = i === to ? 0 : -1; });
    buttons[to]?.focus();
  }

  private press(tab: Tab): void {
    if (this.reasons.get(tab)) return;
    this.choose(tab);
    this.tell(this.page.store.now);
  }

  private choose(tab: Tab): void {
    this.chosen = tab;
    for (const [name, button] of this.tabs) {
      const on = name === tab;
      setAttribute(button, "aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
      const panel = this.panels.get(name);
      if (panel) show(panel, on);
    }
    setAttribute(this.element, "data-view", tab);
  }

  private follow(now: PageState): void {
    const asked = JSON.stringify([now.selected, now.kernel.run, now.hello !== null]);
    const something = now.selected !== "" || now.kernel.run > 0;
    if (asked !== this.asked && now.hello !== null && something) {
      this.asked = asked;
      void this.ask(now.selected, asked);
    }
    this.tell(now);
  }

  /** Ask which views apply to the selected site. */
  private async ask(site: string, asked: string): Promise<void> {
    try {
      const { result } = await this.page.client.call("views", { site }, { key: "views" }).answer;
      if (asked !== this.asked) return;
      for (const { view, reason } of result.reasons) this.reasons.set(view, reason);
    } catch (error) {
      if (error instanceof CallCancelled) return;
      // A view that does not apply says so itself when it is asked.
      this.reasons.clear();
    }
    for (const [tab, button] of this.tabs) {
      const reason = this.reasons.get(tab) ?? "";
      setAttribute(button, "aria-disabled", reason === "" ? null : "true");
      setAttribute(button, "title", reason === "" ? null : reason);
    }
    this.tell(this.page.store.now);
  }

  private tell(now: PageState): void {
    for (const [tab, view] of this.views) {
      view.update(now, tab === this.chosen, this.reasons.get(tab) ?? "");
    }
  }
}
