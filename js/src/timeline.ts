/** The timeline: every run that was made, to be named, restored, or compared with another. */

import { h, setAttribute, setText, show } from "./dom";
import { bytesText, exact } from "./format";
import type { Page } from "./page";
import type { RunRow } from "./protocol";
import { Section } from "./side";
import type { PageState } from "./state";

/** What a comparison is after a click on A or B of a run: null while one of them is not chosen. */
export function chosen(
  pair: readonly (number | null)[],
  side: "A" | "B",
  number: number,
): [number | null, number | null] {
  const [first = null, second = null] = pair;
  if (side === "A") return [first === number ? null : number, second];
  return [first, second === number ? null : number];
}

export class Timeline {
  readonly element: HTMLElement;
  private readonly section: Section;
  private readonly list = h("ol", { class: "lv-runs", "data-test": "runs" });
  private readonly empty = h("p", { class: "lv-empty" }, "Every run is listed here.");
  private readonly held = h("p", { class: "lv-empty lv-held", "data-test": "held" });
  private readonly end = h("button", {
    type: "button", class: "lv-button lv-small", hidden: "", "data-test": "end-pair",
  }, "End comparison");
  private readonly beside = h("input", {
    type: "text", class: "lv-input", placeholder: "Another prompt, beside the latest", "data-test": "beside",
    "aria-label": "Another prompt, to be compared with the latest run", spellcheck: "false",
  });
  private readonly views = new Map<number, RunView>();
  /** A or B alone, chosen and waiting for the other. */
  private half: [number | null, number | null] = [null, null];

  constructor(private readonly page: Page, private readonly signal: AbortSignal) {
    this.section = new Section("timeline", "Runs", false, signal, this.end);
    const go = h("button", { type: "button", class: "lv-button lv-small", "data-test": "run-beside" }, "Run and compare");
    const row = h("div", { class: "lv-beside" }, this.beside, go);
    this.section.body.append(h("div", { class: "lv-scroll", tabindex: "0", role: "group", "aria-label": "Runs" },
      this.empty, this.list, this.held), row);
    this.element = this.section.element;
    const options = { signal };
    this.end.addEventListener("click", () => { this.compare([null, null]); }, options);
    go.addEventListener("click", () => { void this.runBeside(); }, options);
    this.beside.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.isComposing) void this.runBeside();
    }, options);
    page.store.watch(signal, (now, before) => {
      if (now.kernel.pair !== before.kernel.pair) this.half = [null, null];
      if (now.kernel.runs !== before.kernel.runs || now.kernel.pair !== before.kernel.pair) this.update(now);
      show(row, now.hello?.takes_text ?? false);
    });
    this.update(page.store.now);
  }

  /** Run another prompt with the same interventions, and put it beside the latest run. */
  private async runBeside(): Promise<void> {
    const { page } = this;
    const prompt = this.beside.value;
    const first = page.store.now.kernel.runs.at(-1)?.number;
    if (prompt.trim() === "") return;
    await page.run(prompt);
    const second = page.store.now.kernel.runs.at(-1)?.number;
    if (first === undefined || second === undefined || second === first) return;
    await page.change("pair", { first, second });
  }

  private compare(pair: [number | null, number | null]): void {
    this.half = pair;
    const [first, second] = pair;
    const none = first === null || second === null;
    if (none && this.page.store.now.kernel.pair.length === 0) {
      this.update(this.page.store.now);
      return;
    }
    void this.page.change("pair", none ? { first: null, second: null } : { first, second }).then(() => {
      this.half = none ? pair : [null, null];
      this.update(this.page.store.now);
    });
  }

  private update({ kernel }: PageState): void {
    const { runs, limits } = kernel;
    const pair = kernel.pair.length > 0 ? kernel.pair : this.half;
    this.section.say(kernel.pair.length > 0 ? `comparing ${kernel.pair.join(" and ")}` : runs.length > 0 ? exact(runs.length) : "");
    show(this.end, kernel.pair.length > 0);
    show(this.empty, runs.length === 0);
    show(this.held, limits !== null && runs.length > 0);
    setText(this.held, limits === null ? "" :
      `Values held: ${bytesText(limits.held_bytes)} of ${bytesText(limits.held_limit)}; beyond that the oldest are let go, their plans and tables kept.`);
    const kept = new Set(runs.map(({ number }) => number));
    for (const [number, view] of this.views) {
      if (kept.has(number)) continue;
      view.element.remove();
      this.views.delete(number);
    }
    [...runs].reverse().forEach((run, at) => {
      const view = this.views.get(run.number) ?? this.make(run.number);
      view.update(run, pair);
      if (this.list.children[at] !== view.element) {
        this.list.insertBefore(view.element, this.list.children[at] ?? null);
      }
    });
  }

  private make(number: number): RunView {
    const view = new RunView(this.signal, {
      choose: (side) => {
        const { pair } = this.page.store.now.kernel;
        this.compare(chosen(pair.length > 0 ? pair : this.half, side, number));
      },
      restore: () => { void this.page.act("restore", { number }); },
      rename: (name) => { void this.page.change("rename", { number, name }); },
    });
    this.views.set(number, view);
    return view;
  }
}

interface RunActions {
  choose(side: "A" | "B"): void;
  restore(): void;
  rename(name: string): void;
}

class RunView {
  readonly element: HTMLElement;
  private readonly sides: HTMLButtonElement[];
  private readonly number = h("span", { class: "lv-run-number" });
  private readonly name = h("input", {
    type: "text", class: "lv-input lv-run-name", "data-field": "name", "aria-label": "Name of the run",
    title: "A name for this run", spellcheck: "false", autocomplete: "off",
  });
  private readonly time = h("span", { class: "lv-run-time" });
  private readonly what = h("div", { class: "lv-run-what" });
  private run: RunRow | null = null;

  constructor(signal: AbortSignal, actions: RunActions) {
    const options = { signal };
    this.sides = (["A", "B"] as const).map((side) => {
      const button = h("button", {
        type: "button", class: "lv-pick", "data-field": side, "aria-pressed": "false",
        title: side === "A" ? "Compare with this run" : "Look at this run beside A",
      }, side);
      button.addEventListener("click", () => { actions.choose(side); }, options);
      return button;
    });
    const restore = h("button", {
      type: "button", class: "lv-icon", "data-field": "restore", title: "Restore its prompt and interventions, and run",
      "aria-label": "Restore",
    }, "⟲");
    restore.addEventListener("click", () => { actions.restore(); }, options);
    const commit = (): void => {
      if (this.run && this.name.value.trim() !== this.run.name) actions.rename(this.name.value);
    };
    this.name.addEventListener("blur", commit, options);
    this.name.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter") commit();
      if (event.key === "Escape") this.name.value = this.run?.name ?? "";
    }, options);
    this.element = h("li", { class: "lv-run", "data-test": "kept-run" },
      h("div", { class: "lv-run-line" }, ...this.sides, this.number, this.name, this.time, restore), this.what);
  }

  update(run: RunRow, pair: readonly (number | null)[]): void {
    const before = this.run;
    this.run = run;
    setAttribute(this.element, "data-number", String(run.number));
    setAttribute(this.element, "data-held", String(run.held));
    this.sides.forEach((button, at) => { setAttribute(button, "aria-pressed", String(pair[at] === run.number)); });
    setText(this.number, String(run.number));
    if (this.name !== document.activeElement || before?.name !== run.name) this.name.value = run.name;
    this.name.placeholder = run.prompt;
    setText(this.time, run.time.slice(11, 19));
    const seed = run.seed === null ? "" : `, torch last seeded with ${run.seed}`;
    setAttribute(this.time, "title", `${run.time.replace("T", " ")}, ${String(run.seconds)} s${seed}`);
    const said = [
      run.name === "" ? "" : run.prompt,
      ...run.interventions,
      run.held ? "" : "values let go",
      run.amber > 0 ? `${run.amber} amber` : "",
    ].filter((part) => part !== "");
    setText(this.what, said.join(" · "));
    setAttribute(this.what, "title", said.join("\n") || null);
    show(this.what, said.length > 0);
  }
}
