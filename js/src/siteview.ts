/**
 * One view of the selected site: asks the kernel when it is shown and what it shows has changed,
 * says how far that is, and lets go of it on Cancel. What is drawn is up to each view.
 */

import { CallCancelled, type Answer, type Call } from "./client";
import { h, later, setAttribute, setText, show } from "./dom";
import type { Page } from "./page";
import type { Method, Params, Progress } from "./protocol";
import type { PageState } from "./state";
import type { Theme } from "./theme";

/** Nothing is said of an answer that comes sooner. */
const PATIENCE = 250;

export abstract class SiteView<M extends Method> {
  readonly element: HTMLElement;
  protected readonly title = h("h3", { class: "lv-site" });
  protected readonly tools = h("div", { class: "lv-tools" });
  protected readonly facts = h("div", { class: "lv-facts" });
  protected readonly body = h("div", { class: "lv-view-body" });
  private readonly message = h("div", { class: "lv-message" });
  private readonly says = h("div");
  private readonly button = h("button", { type: "button", class: "lv-button" });
  private wanted = "";
  private shown = "";
  private call: Call<M> | null = null;
  private visible = false;
  private reason = "";
  private stopWaiting: () => void = () => undefined;

  constructor(
    protected readonly page: Page,
    protected readonly signal: AbortSignal,
    protected readonly method: M,
  ) {
    this.facts.dataset["test"] = `${method}-facts`;
    this.title.dataset["test"] = `${method}-site`;
    this.message.dataset["test"] = `${method}-message`;
    this.message.append(this.says, this.button);
    this.button.addEventListener("click", () => { this.press(); }, { signal });
    this.element = h("section", { class: `lv-panel lv-view lv-view-${method}`, "data-test": method },
      h("div", { class: "lv-heatbar" }, h("div", { class: "lv-site-row" }, this.title), this.tools, this.facts),
      h("div", { class: "lv-view-area" }, this.body, this.message));
  }

  /** What to ask for, or a text that says why nothing is asked. */
  protected abstract params(state: PageState): Params[M] | string;
  protected abstract heading(state: PageState): string;
  protected abstract draw(answer: Answer<M>): void;

  /** Most views are drawn in CSS colours alone. */
  setTheme: (theme: Theme) => void = () => undefined;

  /** `reason` is why the view does not apply to what is selected; "" where it does. */
  update(state: PageState, visible: boolean, reason: string): void {
    this.visible = visible;
    this.reason = reason;
    if (!visible) return;
    setText(this.title, this.heading(state));
    setAttribute(this.title, "title", this.title.textContent);
    const params = reason === "" ? this.params(state) : reason;
    if (typeof params === "string") {
      this.drop();
      this.wanted = "";
      this.shown = "";
      this.say(params, "");
      return;
    }
    const wanted = JSON.stringify([state.kernel.run, params]);
    if (wanted === this.wanted) return;
    this.wanted = wanted;
    void this.ask(params, wanted);
  }

  /** Ask again for what is wanted now: a control of the view has changed. */
  protected again(): void {
    this.update(this.page.store.now, this.visible, this.reason);
  }

  private async ask(params: Params[M], wanted: string): Promise<void> {
    this.stopWaiting();
    this.stopWaiting = later(this.signal, PATIENCE, () => { this.say("Loading…", "Cancel"); });
    const call = this.page.begin(this.method, params, {
      key: this.method,
      onProgress: (progress) => { if (this.call === call) this.say(progressText(progress), "Cancel"); },
    });
    this.call = call;
    setAttribute(this.element, "data-state", "loading");
    try {
      const answer = await call.answer;
      if (this.wanted !== wanted) return;
      this.finish("shown");
      this.shown = wanted;
      this.say("", "");
      this.draw(answer);
    } catch (error) {
      if (this.wanted !== wanted) return;
      this.finish("error");
      const cancelled = error instanceof CallCancelled;
      this.say(cancelled ? `Cancelled: ${error.message}.` : text(error), "Try again", !cancelled);
    }
  }

  private finish(state: string): void {
    this.stopWaiting();
    this.call = null;
    setAttribute(this.element, "data-state", state);
  }

  private press(): void {
    if (this.call) {
      this.call.cancel();
      this.say("Cancelling…", "");
    } else {
      this.wanted = "";
      this.again();
    }
  }

  private drop(): void {
    this.stopWaiting();
    this.call?.cancel();
    this.call = null;
    setAttribute(this.element, "data-state", "empty");
  }

  private say(what: string, button: string, alarm = false): void {
    setText(this.says, what);
    setText(this.button, button);
    show(this.button, button !== "");
    show(this.message, what !== "");
    setAttribute(this.message, "role", alarm ? "alert" : null);
    const hide = what !== "" && (this.shown === "" || button !== "Cancel");
    this.body.classList.toggle("lv-invisible", hide);
    this.body.classList.toggle("lv-stale", what !== "" && !hide);
    this.message.classList.toggle("lv-over", what !== "" && !hide);
  }
}

function progressText({ done, total, text: said }: Progress): string {
  return total > 0 ? `${said} (${String(Math.floor((done / total) * 100))} %)` : said;
}

function text(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Nothing can be asked of a run before there is one. */
export function needsRun(state: PageState): string {
  if (state.selected === "") return "Select a module in the tree to see its values.";
  return state.kernel.run === 0 ? "Run a prompt to see what passes here." : "";
}
