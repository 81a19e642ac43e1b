/** What leaves the page: code, files, figures. */

import { openDialog } from "./dialog";
import { h, setText, show } from "./dom";
import { openHelp } from "./help";
import { menuButton } from "./menu";
import type { Page } from "./page";

type What = "trace" | "baseline" | "html";

const NAMES: Record<What, string> = { trace: "run.safetensors", baseline: "baseline.safetensors", html: "explorer.html" };

export class Exports {
  readonly button: HTMLButtonElement;

  constructor(private readonly page: Page, private readonly signal: AbortSignal) {
    this.button = menuButton("☰", "Menu: code, files, figures, help", "main-menu", signal, () => {
      const { kernel, selected } = page.store.now;
      const none = kernel.run === 0;
      return [
        { text: "Copy as code…", test: "copy-code", act: () => { void this.code(); } },
        { text: "Save trace…", test: "save-trace", disabled: none, act: () => { this.save("trace", "Save the trace that is shown"); } },
        { text: "Save baseline trace…", test: "save-baseline", disabled: none, act: () => { this.save("baseline", "Save the run without interventions"); } },
        { text: "Open as plotly figure…", test: "figure", disabled: none || selected === "", act: () => { void this.figure(); } },
        { text: "Save as HTML…", test: "save-html", disabled: none, act: () => { this.save("html", "Save as one HTML page"); } },
        { text: "Help", keys: "?", test: "help", act: () => { openHelp(this.button, signal); } },
      ];
    });
  }

  private async code(): Promise<void> {
    const found = await this.page.task("code", {});
    if (found) this.tell("Copy as code", found.text, "These lines reproduce what is shown.");
  }

  private async figure(): Promise<void> {
    const found = await this.page.task("figure", {});
    if (found) this.tell("Plotly figure", found.text, "The figure is made; run this in a cell to see it.");
  }

  /** Show a text to be copied, and put it on the clipboard where the host lets us. */
  private tell(title: string, text: string, hint: string): void {
    const area = h("textarea", {
      class: "lv-input lv-mono lv-code", readonly: "", rows: String(Math.min(16, text.split("\n").length + 1)),
      "aria-label": title, "data-test": "code-text", "data-first": "",
    });
    area.value = text;
    const said = h("p", { class: "lv-dialog-text", role: "status", "data-test": "copied" }, hint);
    const copy = h("button", { type: "button", class: "lv-button lv-primary", "data-test": "copy" }, "Copy");
    const attempt = (): void => {
      area.select();
      // Hosts without https have no clipboard: then the text is selected, and Ctrl + C copies it.
      const clipboard = (navigator as { clipboard?: Clipboard }).clipboard;
      if (!clipboard) {
        setText(said, `${hint} Press Ctrl + C to copy them.`);
        return;
      }
      clipboard.writeText(text).then(
        () => { setText(said, `${hint} Copied.`); },
        () => { setText(said, `${hint} Press Ctrl + C to copy them.`); },
      );
    };
    copy.addEventListener("click", attempt, { signal: this.signal });
    openDialog(this.button, title, "code-dialog", [said, area, h("div", { class: "lv-dialog-row" }, copy)], this.signal);
    area.select();
  }

  private save(what: What, title: string): void {
    const name = h("input", {
      type: "text", class: "lv-input lv-mono", value: NAMES[what], "aria-label": "File name", "data-test": "file-name",
      "data-first": "", spellcheck: "false",
    });
    const said = h("p", { class: "lv-dialog-text", role: "status", "data-test": "save-text" },
      "A file name, relative to the folder of the notebook.");
    const go = h("button", { type: "button", class: "lv-button lv-primary", "data-test": "save" }, "Save");
    const over = h("button", { type: "button", class: "lv-button", hidden: "", "data-test": "overwrite" }, "Overwrite it");
    const dialog = openDialog(this.button, title, "save-dialog", [
      said, name, h("div", { class: "lv-dialog-row" }, go, over),
    ], this.signal);
    const write = async (replace: boolean): Promise<void> => {
      go.disabled = over.disabled = true;
      setText(said, "Writing…");
      const done = await this.page.task("save", { path: name.value, what, replace });
      go.disabled = over.disabled = false;
      show(over, done?.exists ?? false);
      if (done === null) setText(said, this.page.store.now.problem || "Nothing was saved.");
      else if (done.exists) setText(said, `There is a file ${done.path} already.`);
      else {
        dialog.close();
        this.page.store.set({ notice: `Saved ${done.path} (${done.bytes.toLocaleString("en")} bytes).` });
      }
    };
    const options = { signal: this.signal };
    go.addEventListener("click", () => { void write(false); }, options);
    over.addEventListener("click", () => { void write(true); }, options);
    name.addEventListener("input", () => { show(over, false); }, options);
    name.addEventListener("keydown", (event) => { if (event.key === "Enter") void write(false); }, options);
    name.select();
  }
}
