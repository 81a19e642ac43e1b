/**
 * A stand-in for anywidget's model that keeps the order of the real one: `change:` fires inside
 * `set`, before the kernel hears of it at `save_changes`; what the kernel sends arrives later.
 */

import type { Model } from "../src/client";
import type { Hello, Outgoing, State, TileReply, TreeRow } from "../src/protocol";

type Handler = (...given: unknown[]) => void;
type Kernel = (request: Outgoing) => void;

export class FakeModel implements Model {
  readonly sent: Outgoing[] = [];
  /** `set:NAME`, `change:NAME` and `save` in the order in which they happened. */
  readonly order: string[] = [];
  kernel: Kernel = () => undefined;
  private readonly traits: Record<string, unknown> = { selected: "", prompt: "" };
  private readonly handlers = new Map<string, Set<Handler>>();

  get(name: string): unknown {
    return this.traits[name];
  }

  set(name: string, value: unknown): void {
    this.order.push(`set:${name}`);
    if (this.traits[name] === value) return;
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }

  save_changes(): void {
    this.order.push("save");
  }

  send(content: unknown): void {
    const request = structuredClone(content) as Outgoing;
    this.sent.push(request);
    queueMicrotask(() => { this.kernel(request); });
  }

  on(event: string, handler: (...given: never[]) => void): void {
    const known = this.handlers.get(event) ?? new Set();
    this.handlers.set(event, known.add(handler as Handler));
  }

  off(event: string, handler: (...given: never[]) => void): void {
    this.handlers.get(event)?.delete(handler as Handler);
  }

  /** How many handlers are still there. */
  listeners(): number {
    return [...this.handlers.values()].reduce((count, known) => count + known.size, 0);
  }

  emit(event: string, ...given: unknown[]): void {
    this.order.push(event);
    for (const handler of [...(this.handlers.get(event) ?? [])]) handler(...given);
  }

  /** A message of the kernel. */
  receive(message: object, buffers: DataView[] = []): void {
    this.emit("msg:custom", structuredClone(message), buffers);
  }

  ok(request: Outgoing, result: object, buffers: DataView[] = []): void {
    this.receive({ kind: "ok", id: request.id, result }, buffers);
  }

  /** The kernel sets a trait: the page's copy changes, with its event. */
  sync(name: string, value: unknown): void {
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }

  methods(): string[] {
    return this.sent.map(({ method }) => method);
  }

  last(method: string): Outgoing {
    const found = this.sent.filter((request) => request.method === method).at(-1);
    if (!found) throw new Error(`no ${method} was sent`);
    return found;
  }
}

export const STATE: State = {
  run: 0, prompt: "", selected: "", busy: "", tokens: [], baseline: [], edited: [],
  interventions: [], notes: [], overlays: 0,
  can_undo: false, can_redo: false, runs: [], pair: [],
  divergence: null, checks: [], limits: null,
};

export const HELLO: Hello = {
  version: 1, title: "Tiny", summary: "3 parameters", modules: 4, takes_text: true, ranks: 0,
  operations: ["zero", "scale", "add", "put", "clamp"], state: STATE,
};

export const ROWS: TreeRow[] = [
  ["", 0, 0, 1000, "", "", 0],
  ["model", 1, 1, 900, "", "", 0],
  ["layers", 2, 2, 800, "", "", 0],
  ["0", 3, 3, 400, "", "", 0],
  ["mlp", 4, 4, 200, "8 x 4", "", 0],
  ["1", 3, 3, 400, "", "", 0],
  ["mlp", 4, 4, 200, "8 x 4", "", 0],
  ["lm_head", 1, 4, 100, "9 x 4", "tied", 0],
];

export const CLASSES = ["Tiny", "Body", "ModuleList", "Block", "Linear"];

/** An unaligned view, as hosts hand them over. */
export function bufferOf(values: readonly number[]): DataView {
  const bytes = new Uint8Array(values.length * 4 + 3);
  bytes.set(new Uint8Array(new Float32Array(values).buffer), 3);
  return new DataView(bytes.buffer, 3, values.length * 4);
}

export const TILE: TileReply = {
  site: "model.layers.0.mlp", run: 1, rows: 2, columns: 3, window: [0, 2, 0, 3], row_step: 1,
  column_step: 1, plane: [2, 3], shape: [1, 2, 3], dtype: "float32", low: -2, high: 1, nan: 1,
  inf: 0, stats: "mean 0", row_labels: ["The", "␣end"], note: "",
  rows_dim: 1, columns_dim: 2, dims: ["batch", "token", "feature"], column_labels: [], reach: null, sampled: false,
};

/** A kernel that answers everything at once. */
export function serve(model: FakeModel, hello: Hello = HELLO, rows: TreeRow[] = ROWS): { state: State } {
  const served = { state: hello.state };
  model.kernel = (request) => {
    switch (request.method) {
      case "hello":
        model.ok(request, { ...hello, state: served.state });
        break;
      case "tree":
        model.ok(request, { total: rows.length, offset: request.params["offset"], classes: CLASSES,
          places: ["float32 cpu"], rows: rows.slice(Number(request.params["offset"])) });
        break;
      case "outputs":
        model.ok(request, { run: served.state.run, offset: 0, shapes: ["1 x 2 x 3"],
          rows: rows.map((row) => (row[0] === "mlp" ? 0 : -1)), calls: rows.map(() => 1) });
        break;
      case "sizes":
        model.ok(request, { run: served.state.run, offset: request.params["offset"], odd: rows.map(() => 0),
          rms: rows.map((row) => (row[0] === "mlp" ? 0.5 : null)), changes: [], overlay_name: "", overlay: [] });
        break;
      case "strips":
        model.ok(request, { site: request.params["site"], strips: [] });
        break;
      case "select":
        served.state = { ...served.state, selected: String(request.params["site"]) };
        model.ok(request, { site: served.state.selected });
        model.sync("selected", served.state.selected);
        break;
      case "tile":
        model.ok(request, { ...TILE, site: request.params["site"], run: served.state.run },
          [bufferOf([-2, 0, 1, NaN, 0.5, -1])]);
        break;
      case "run":
        served.state = { ...served.state, run: served.state.run + 1, prompt: String(request.params["prompt"]),
          tokens: ["The", "␣end"] };
        model.ok(request, served.state);
        break;
      default:
    }
  };
  return served;
}

/** Let everything that is due happen: answers, what follows from them, and the next frame. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 2; turn += 1) {
    for (let i = 0; i < 20; i += 1) await Promise.resolve();
    await new Promise((resolve) => requestAnimationFrame(resolve));
  }
}
