/**
 * What the page does: asks the kernel, and keeps the store true.
 *
 * The kernel owns the state. The page shows what was clicked at once, and corrects itself by the
 * kernel's answer. Parts of the page call these methods and watch the store; tiles are asked for
 * by the heatmap itself (`tiles.ts`).
 */

import { CallCancelled, Client, KernelError, type Call, type CallOptions, type Model } from "./client";
import type { Picked } from "./picks";
import {
  PROTOCOL_VERSION, type InterventionRow, type Method, type Params, type Results, type State, type Which,
} from "./protocol";
import { hasEdits, Store } from "./state";
import { loadSizes } from "./sizes";
import { TreeModel } from "./treemodel";

const PAGE_ROWS = 2000;

/** The methods that answer with the state. */
type StateMethod = "run" | "interventions" | "undo" | "redo" | "restore" | "pair" | "rename" | "verify" | "limits";

type Cancellable = Pick<Call<"run">, "cancel" | "drop">;

export class Page {
  readonly store = new Store();
  readonly tree = new TreeModel();
  readonly client: Client;
  /** The requests in flight that run the model, by method. */
  private readonly runs = new Map<Method, Cancellable>();
  private selecting = 0;

  constructor(model: Model, signal: AbortSignal) {
    this.client = new Client(model, signal);
    this.client.onSilence = (silence) => { this.store.set({ silence }); };
    this.client.onState = (state) => { this.apply(state); };
    this.client.onDoubt = () => { void this.refresh(); };
    const text = (name: string): string => {
      const value = model.get(name);
      return typeof value === "string" ? value : "";
    };
    const selected = (): void => { this.follow(text("selected")); };
    const prompt = (): void => {
      this.store.set({ kernel: { ...this.store.now.kernel, prompt: text("prompt") } });
    };
    model.on("change:selected", selected);
    model.on("change:prompt", prompt);
    signal.addEventListener("abort", () => {
      model.off("change:selected", selected);
      model.off("change:prompt", prompt);
    });
  }

  /** Ask for everything. Also after a failure: the answers replace what is there. */
  async start(): Promise<void> {
    this.store.set({ problem: "", fatal: false });
    try {
      const { result } = await this.ask("hello", {}, { key: "hello" });
      if (result.version !== PROTOCOL_VERSION) {
        throw new Error(
          `The page speaks version ${PROTOCOL_VERSION} of lensview's messages and the kernel ` +
            `${result.version}. Restart the kernel, reload the page and run the cell again.`,
        );
      }
      this.store.set({ hello: result });
      this.apply(result.state);
      await this.loadTree();
    } catch (error) {
      this.report(error, true);
    }
  }

  private async loadTree(): Promise<void> {
    do {
      const offset = this.tree.length;
      const { result } = await this.ask("tree", { offset, limit: PAGE_ROWS }, { key: "tree" });
      if (result.rows.length === 0) break;
      this.tree.append(result);
      this.store.set({ treeRows: this.tree.length });
    } while (this.tree.length < this.tree.total);
    await this.loadShapes();
  }

  /** Output shapes of the latest run. A run that ends meanwhile starts this over. */
  private async loadShapes(): Promise<void> {
    const { run } = this.store.now.kernel;
    if (run === 0 || this.tree.length === 0) return;
    try {
      let offset = 0;
      while (offset < this.tree.length) {
        const { result } = await this.ask("outputs", { offset, limit: PAGE_ROWS }, { key: "outputs" });
        const texts = result.rows.map((at) => (at < 0 ? "" : (result.shapes[at] ?? "")));
        this.tree.setShapes(offset, texts, result.calls);
        // A page may hold fewer rows than were asked for: its size is limited too.
        if (texts.length === 0) break;
        offset += texts.length;
      }
      this.store.set({ shapesOf: run });
      await loadSizes(this);
    } catch (error) {
      this.report(error);
    }
  }

  async run(prompt: string): Promise<void> {
    await this.forward("run", { prompt });
  }

  /** Send all rows; the kernel validates them and runs again. */
  async edit(rows: InterventionRow[]): Promise<void> {
    this.store.set({ sentRows: rows });
    await this.forward("interventions", { rows });
  }

  /** A request that changes what the kernel shows, such as an undo. */
  async act<M extends StateMethod>(method: M, params: Params[M]): Promise<void> {
    await this.forward(method, params);
  }

  /** The same where nothing runs: no Cancel, no progress. */
  async change<M extends "pair" | "rename">(method: M, params: Params[M]): Promise<void> {
    try {
      const { result } = await this.ask(method, params, { key: method });
      this.apply(result);
    } catch (error) {
      this.report(error);
    }
  }

  private async forward<M extends StateMethod>(method: M, params: Params[M]): Promise<void> {
    const result = await this.task(method, params);
    if (result !== null) this.apply(result);
  }

  /**
   * A request that may take long: it shows what runs, how far, and Cancel. Only the latest of each
   * method matters. null: it failed or was cancelled, and the page says so.
   */
  async task<M extends Method>(method: M, params: Params[M]): Promise<Results[M] | null> {
    this.store.set({ running: true, progress: null, problem: "", fatal: false, notice: "" });
    const call = this.begin(method, params, {
      key: method,
      onProgress: (progress) => { this.store.set({ progress }); },
    });
    this.runs.set(method, call);
    try {
      const { result } = await call.answer;
      this.finish(method, call);
      return result;
    } catch (error) {
      const latest = this.finish(method, call);
      if (!(error instanceof CallCancelled)) this.report(error);
      else if (latest) this.store.set({ notice: `Cancelled: ${error.message}.` });
      return null;
    }
  }

  /** Take the call off the books. Returns whether it was the latest of its method. */
  private finish(method: Method, call: Cancellable): boolean {
    if (this.runs.get(method) !== call) return false;
    this.runs.delete(method);
    if (method === "interventions") this.store.set({ sentRows: null });
    if (this.runs.size === 0) this.store.set({ running: false, progress: null });
    return true;
  }

  cancel(): void {
    for (const call of this.runs.values()) call.cancel();
    this.store.set({ notice: "Cancelling…" });
  }

  async select(site: string): Promise<void> {
    if (site === this.store.now.selected) return;
    const before = this.store.now.kernel.selected;
    this.selecting += 1;
    this.store.set({ selected: site });
    try {
      const { result } = await this.ask("select", { site }, { key: "select" });
      this.selecting -= 1;
      this.follow(result.site);
    } catch (error) {
      this.selecting -= 1;
      if (error instanceof CallCancelled) return;
      this.follow(before);
      this.report(error);
    }
  }

  /** A region was chosen to be edited: whoever edits watches `picked`. */
  pick(picked: Picked | null): void {
    this.store.set({ picked });
  }

  /** What a row of the table does by itself. */
  async effect(id: string): Promise<void> {
    const found = await this.task("effect", { id });
    if (found) this.store.set({ effects: { ...this.store.now.effects, [id]: found } });
  }

  compare(which: Which): void {
    this.store.set({ which });
  }

  /** The kernel's selection, unless a click of ours is still on its way. */
  private follow(selected: string): void {
    const { kernel } = this.store.now;
    if (this.selecting === 0) this.store.set({ selected, kernel: { ...kernel, selected } });
  }

  private apply(state: State): void {
    const before = this.store.now;
    if (state.run < before.kernel.run) return;
    this.store.set({
      kernel: state,
      selected: this.selecting === 0 ? state.selected : before.selected,
    });
    if (before.which !== "latest" && !hasEdits(this.store.now)) this.store.set({ which: "latest" });
    if (state.run !== before.kernel.run) {
      this.store.set({ effects: {} });
      void this.loadShapes();
    } else if (state.overlays !== before.kernel.overlays) {
      loadSizes(this).catch((error: unknown) => { this.report(error); });
    }
  }

  /** Ask for the state again, when an answer is overdue: it may have been lost. */
  private async refresh(): Promise<void> {
    const overdue = [...this.runs.values()];
    const { run } = this.store.now.kernel;
    try {
      const { result } = await this.client.call("hello", {}, { key: "refresh" }).answer;
      const over = result.state.run > run && result.state.busy === "";
      this.apply(result.state);
      if (over) for (const call of overdue) call.drop("its answer was lost");
    } catch (error) {
      this.report(error);
    }
  }

  /** As `ask`, for a caller that may cancel. */
  begin<M extends Method>(method: M, params: Params[M], options: CallOptions): Call<M> {
    const call = this.client.call(method, params, options);
    this.store.set({ working: this.store.now.working + 1 });
    const done = (): void => { this.store.set({ working: this.store.now.working - 1 }); };
    call.answer.then(done, done);
    return call;
  }

  /** A request that counts as work: the page is busy until it is answered. */
  ask<M extends Method>(method: M, params: Params[M], options: CallOptions): Call<M>["answer"] {
    return this.begin(method, params, options).answer;
  }

  private report(error: unknown, fatal = false): void {
    if (error instanceof CallCancelled) return;
    const text = error instanceof Error ? error.message : String(error);
    const type = error instanceof KernelError && !text.startsWith(error.type) ? `${error.type}: ` : "";
    this.store.set({ problem: type + text, fatal });
  }
}
