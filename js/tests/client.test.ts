import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { CallCancelled, Client, KernelError, TIMES, type Silence } from "../src/client";
import type { Outgoing, TileParams } from "../src/protocol";
import { FakeModel, HELLO, TILE } from "./fakemodel";

const TILE_PARAMS = {
  site: "a", which: "latest", window: null, max_rows: 8, max_columns: 8, index: [], rows_dim: null,
  columns_dim: null, percentile: null, rank: null,
} as const;

let model: FakeModel;
let controller: AbortController;
let client: Client;
let silences: Silence[];

const at = (i: number): Outgoing => {
  const request = model.sent[i];
  if (!request) throw new Error(`no request ${i}`);
  return request;
};
const tileParams = (): TileParams =>
  ({ ...TILE_PARAMS, index: [] });

beforeEach(() => {
  vi.useFakeTimers();
  model = new FakeModel();
  controller = new AbortController();
  client = new Client(model, controller.signal);
  silences = [];
  client.onSilence = (silence) => { silences.push(silence); };
});

afterEach(() => {
  controller.abort();
  vi.useRealTimers();
});

describe("Client", () => {
  it("gives each request an own id and the view's name", () => {
    client.call("hello", {}).answer.catch(() => undefined);
    client.call("hello", {}).answer.catch(() => undefined);
    expect(at(0).id).not.toBe(at(1).id);
    expect(at(0).view).toBe(at(1).view);
    expect(at(0)).toMatchObject({ kind: "req", method: "hello", params: {}, key: "" });
    expect(new Client(model, controller.signal)).toHaveProperty("view", expect.not.stringMatching(at(0).view));
  });

  it("settles once, by the first answer", async () => {
    const { answer } = client.call("hello", {});
    model.ok(at(0), HELLO);
    model.receive({ kind: "error", id: at(0).id, type: "X", message: "late" });
    await expect(answer).resolves.toMatchObject({ result: HELLO });
  });

  it("passes buffers on", async () => {
    const { answer } = client.call("tile", tileParams());
    const view = new DataView(new ArrayBuffer(4));
    model.ok(at(0), TILE, [view]);
    expect((await answer).buffers).toEqual([view]);
  });

  it("rejects with the kernel's error and its text", async () => {
    const { answer } = client.call("select", { site: "nope" });
    model.receive({ kind: "error", id: at(0).id, type: "SiteError", message: "no 'nope' <b>" });
    await expect(answer).rejects.toEqual(new KernelError("SiteError", "no 'nope' <b>"));
  });

  it("tells progress, to the call it belongs to", async () => {
    const seen: number[] = [];
    const { answer } = client.call("run", { prompt: "x" }, { onProgress: ({ done }) => seen.push(done) });
    model.receive({ kind: "progress", id: at(0).id, done: 1, total: 3, text: "" });
    model.receive({ kind: "progress", id: "another", done: 9, total: 3, text: "" });
    model.ok(at(0), {});
    model.receive({ kind: "progress", id: at(0).id, done: 2, total: 3, text: "" });
    await answer;
    expect(seen).toEqual([1]);
  });

  it("lets the latest call of a key win, and ignores what the earlier one is told", async () => {
    const first = client.call("tile", tileParams(), { key: "tile" });
    const second = client.call("tile", tileParams(), { key: "tile" });
    const other = client.call("value", { site: "a", which: "latest", index: [], rank: null }, { key: "value" });
    await expect(first.answer).rejects.toBeInstanceOf(CallCancelled);
    model.receive({ kind: "cancelled", id: at(0).id, reason: "superseded" });
    model.ok(at(1), TILE);
    model.ok(at(2), { text: "1" });
    await expect(second.answer).resolves.toMatchObject({ result: TILE });
    await expect(other.answer).resolves.toMatchObject({ result: { text: "1" } });
  });

  it("says busy after a moment without a word, and takes it back", async () => {
    const { answer } = client.call("hello", {});
    vi.advanceTimersByTime(TIMES.busy - 1);
    expect(silences).toEqual([]);
    vi.advanceTimersByTime(1);
    expect(silences).toEqual(["busy"]);
    model.ok(at(0), HELLO);
    await answer;
    expect(silences).toEqual(["busy", "none"]);
  });

  it("does not call a kernel busy that works on the request, only one that lets it wait", () => {
    client.call("run", { prompt: "x" }).answer.catch(() => undefined);
    model.receive({ kind: "progress", id: at(0).id, done: 1, total: 9, text: "" });
    vi.advanceTimersByTime(TIMES.busy * 2);
    expect(silences).toEqual([]);
    client.call("run", { prompt: "y" }).answer.catch(() => undefined);
    model.receive({ kind: "progress", id: at(1).id, done: 0, total: 0, text: "waiting" });
    vi.advanceTimersByTime(TIMES.busy);
    expect(silences).toEqual(["busy"]);
    model.receive({ kind: "progress", id: at(1).id, done: 1, total: 9, text: "" });
    expect(silences).toEqual(["busy", "none"]);
  });

  it("repeats what may be repeated with a new id, and takes an answer to any of them", async () => {
    const { answer } = client.call("hello", {}, { key: "hello" });
    vi.advanceTimersByTime(TIMES.tries[0] ?? 0);
    expect(model.methods()).toEqual(["hello", "hello"]);
    expect(at(1).id).not.toBe(at(0).id);
    model.receive({ kind: "cancelled", id: at(0).id, reason: "a newer one with its key" });
    model.ok(at(1), HELLO);
    model.ok(at(0), { ...HELLO, title: "late" });
    await expect(answer).resolves.toMatchObject({ result: { title: "Tiny" } });
    vi.advanceTimersByTime(100_000);
    expect(model.sent.length).toBe(2);
  });

  it("says lost after the last try, and still takes a late answer", async () => {
    const { answer } = client.call("hello", {});
    vi.advanceTimersByTime(100_000);
    expect(model.sent.length).toBe(TIMES.tries.length);
    expect(silences).toEqual(["busy", "lost"]);
    model.ok(at(0), HELLO);
    await expect(answer).resolves.toMatchObject({ result: HELLO });
    expect(silences.at(-1)).toBe("none");
  });

  it("never repeats a run, but says when its answer is in doubt", () => {
    const doubt = vi.fn();
    client.onDoubt = doubt;
    client.call("run", { prompt: "x" }).answer.catch(() => undefined);
    vi.advanceTimersByTime(TIMES.doubt * 2);
    expect(model.methods()).toEqual(["run"]);
    expect(doubt).toHaveBeenCalledTimes(2);
  });

  it("cancels by id and waits for the kernel's word", async () => {
    const run = client.call("run", { prompt: "x" });
    run.cancel();
    expect(at(1)).toMatchObject({ method: "cancel", params: { id: at(0).id } });
    model.ok(at(1), {});
    model.receive({ kind: "cancelled", id: at(0).id, reason: "asked" });
    await expect(run.answer).rejects.toEqual(new CallCancelled("asked"));
  });

  it("gives a cancelled call up when the kernel has no word for it", async () => {
    const run = client.call("run", { prompt: "x" });
    run.cancel();
    model.ok(at(1), {});
    const given = expect(run.answer).rejects.toBeInstanceOf(CallCancelled);
    await vi.advanceTimersByTimeAsync(TIMES.grace);
    await given;
  });

  it("ends every call, timer and listener with its view", async () => {
    const { answer } = client.call("hello", {});
    controller.abort();
    await expect(answer).rejects.toBeInstanceOf(CallCancelled);
    await expect(client.call("hello", {}).answer).rejects.toBeInstanceOf(CallCancelled);
    expect(model.listeners()).toBe(0);
    expect(vi.getTimerCount()).toBe(0);
    expect(model.sent.length).toBe(1);
  });

  it("hears events that nobody asked for", () => {
    const states: unknown[] = [];
    client.onState = (state) => states.push(state.run);
    model.receive({ kind: "event", state: { ...HELLO.state, run: 7 } });
    model.receive({ unknown: true });
    expect(states).toEqual([7]);
  });
});
