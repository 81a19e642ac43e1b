/** The head of the page: what the model is, the prompt, the run in progress, what went wrong. */

import { h, setAttribute, setText, show } from "./dom";
import type { Page } from "./page";
import type { PageState } from "./state";

const SILENT = {
  none: "",
  busy: "kernel busy",
  lost: "no answer",
};
const LOST = "No answer from the kernel; run the cell again.";

export class Header {
  readonly element: HTMLElement;
  private readonly title = h("h2", { class: "lv-model", "data-test": "title" });
  private readonly summary = h("span", { class: "lv-summary", "data-test": "summary" });
  private readonly busy = h("span", { class: "lv-busy", role: "status", "data-test": "kernel-busy" });
  private readonly prompt = h("textarea", {
    class: "lv-input lv-prompt", rows: "1", "aria-label": "Prompt", placeholder: "Prompt",
    title: "Enter runs, Shift + Enter starts a new line", spellcheck: "false", "data-test": "prompt",
  });
  private readonly run = h("button", {
    type: "button", class: "lv-button lv-primary", "data-test": "run",
  }, "Run");
  private readonly cancel = h("button", {
    type: "button", class: "lv-button lv-primary lv-cancel", "data-test": "cancel", hidden: "",
  }, "Cancel");
  private readonly row: HTMLElement;
  private readonly sentence = h("p", { class: "lv-sentence", "data-test": "no-prompt", hidden: "" },
    "This model takes no text here: inputs are given from Python.");
  private readonly meter = h("div", {
    class: "lv-meter", role: "progressbar", "aria-label": "Run", "aria-valuemin": "0", hidden: "",
  });
  private readonly fill = h("span", { class: "lv-meter-fill" });
  private readonly status = h("span", { class: "lv-status-text", "data-test": "status" });
  private readonly retry = h("button", {
    type: "button", class: "lv-button lv-small", hidden: "", "data-test": "retry",
  }, "Try again");
  private readonly notes = h("ul", { class: "lv-notes", "data-test": "notes" });
  private shownPrompt = "";

  constructor(
    private readonly page: Page,
    signal: AbortSignal,
  ) {
    this.meter.append(this.fill);
    this.row = h("div", { class: "lv-prompt-row" }, this.prompt, this.run, this.cancel);
    this.element = h("header", { class: "lv-header" },
      h("div", { class: "lv-headline" }, this.title, this.summary, this.busy),
      this.row, this.sentence, this.meter,
      h("div", { class: "lv-status" }, this.status, this.retry), this.notes);
    const options = { signal };
    this.run.addEventListener("click", () => { this.start(); }, options);
    this.cancel.addEventListener("click", () => { page.cancel(); }, options);
    this.retry.addEventListener("click", () => { void page.start(); }, options);
    this.prompt.addEventListener("input", () => { this.grow(); }, options);
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.start();
    }, options);
    page.store.watch(signal, (now, before) => { this.update(now, before); });
  }

  /** The prompt as it is typed. */
  get text(): string {
    return this.prompt.value;
  }

  /** Put a button beside Run, and one at the end of the headline. */
  place(beside: HTMLElement, menu: HTMLElement): void {
    this.row.append(beside);
    this.element.firstElementChild?.append(menu);
  }

  private start(): void {
    if (this.page.store.now.hello) void this.page.run(this.prompt.value);
  }

  private grow(): void {
    this.prompt.style.height = "auto";
    const height = this.prompt.scrollHeight;
    if (height > 0) this.prompt.style.height = `${Math.min(height + 2, 112)}px`;
  }

  private update(now: PageState, before: PageState): void {
    const { hello, kernel, running } = now;
    setText(this.title, hello?.title ?? (now.fatal ? "" : "Connecting to the kernel…"));
    setText(this.summary, hello?.summary ?? "");
    setAttribute(this.summary, "title", hello?.summary ?? null);
    setText(this.busy, SILENT[now.silence]);
    setAttribute(this.busy, "data-silence", now.silence);
    show(this.busy, now.silence !== "none");
    show(this.row, hello?.takes_text ?? true);
    show(this.sentence, hello?.takes_text === false);
    this.run.disabled = hello === null;
    this.prompt.disabled = hello === null;
    this.exchange(running);
    if (kernel.prompt !== this.shownPrompt) {
      const untouched = this.prompt.value === this.shownPrompt || this.prompt !== document.activeElement;
      this.shownPrompt = kernel.prompt;
      if (untouched) {
        this.prompt.value = kernel.prompt;
        this.grow();
      }
    }
    this.progress(now);
    this.tell(now);
    if (kernel.notes !== before.kernel.notes) {
      this.notes.replaceChildren(...kernel.notes.map((note) => h("li", {}, note)));
    }
    show(this.notes, kernel.notes.length > 0);
  }

  /** Run and Cancel share a place, and the focus with it. */
  private exchange(running: boolean): void {
    const [shown, other] = running ? [this.cancel, this.run] : [this.run, this.cancel];
    if (!shown.hidden) return;
    const focused = other === document.activeElement;
    show(shown, true);
    if (focused) shown.focus();
    show(other, false);
    if (!running) this.cancel.disabled = false;
  }

  private progress({ running, progress, kernel }: PageState): void {
    const active = running || kernel.busy !== "";
    const known = active && progress !== null && progress.total > 0;
    show(this.meter, active);
    this.meter.classList.toggle("lv-unknown", active && !known);
    this.fill.style.width = known ? `${(progress.done / progress.total) * 100}%` : "";
    setAttribute(this.meter, "aria-valuemax", known ? String(progress.total) : null);
    setAttribute(this.meter, "aria-valuenow", known ? String(progress.done) : null);
    setAttribute(this.meter, "aria-valuetext", progress?.text ?? null);
  }

  private tell(now: PageState): void {
    const { kernel, progress, running } = now;
    const problem = now.silence === "lost" ? LOST : now.problem;
    let text = problem;
    if (text === "" && (running || kernel.busy !== "")) {
      const counted = progress && progress.total > 0 ? ` · ${progress.done} of ${progress.total}` : "";
      text = now.notice || `${progress?.text ?? (kernel.busy || "Waiting for the kernel…")}${counted}`;
    }
    if (text === "") text = now.notice || summaryOf(now);
    setText(this.status, text);
    setAttribute(this.status, "role", problem === "" ? "status" : "alert");
    this.status.classList.toggle("lv-problem", problem !== "");
    show(this.retry, now.fatal || now.silence === "lost");
  }
}

function summaryOf({ hello, kernel }: PageState): string {
  if (!hello) return "";
  if (kernel.run === 0) return hello.takes_text ? "Not run yet. Enter runs the prompt." : "Not run yet.";
  const tokens = kernel.tokens.length;
  const count = tokens === 0 ? "" : ` · ${tokens} token${tokens === 1 ? "" : "s"}`;
  const edited = kernel.pair.length === 0 && kernel.edited.length > 0;
  return `Run ${kernel.runs.at(-1)?.number ?? kernel.run}${count}${edited ? " · with interventions" : ""}`;
}
