import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Page } from "../src/page";
import type { RanksReply } from "../src/protocol";
import { EVERY, Ranks } from "../src/ranks";
import { pieceOf } from "../src/state";
import { FakeModel, HELLO, STATE } from "./fakemodel";

const ROW = {
  rank: 0, group: 0, host: "", state: "idle", doing: "ready", since: 9, memory: 300 * 2 ** 20,
  gpu_memory: 0, line: "<b>loaded</b>",
};
const REPLY: RanksReply = {
  rows: [ROW, { ...ROW, rank: 1, state: "running", doing: "trace", host: "node2", gpu_memory: 3 * 2 ** 30 }],
  pieces: 2, lies: "shard of dim 2 (48) over 2 ranks, colwise",
};

let model: FakeModel;
let page: Page;
let stop: AbortController;
let ranks: Ranks;
const asked = (): number => model.methods().filter((method) => method === "ranks").length;
const settled = async (): Promise<void> => { await vi.advanceTimersByTimeAsync(0); };

beforeEach(() => {
  vi.useFakeTimers();
  model = new FakeModel();
  stop = new AbortController();
  page = new Page(model, stop.signal);
  ranks = new Ranks(page, stop.signal);
});

afterEach(() => {
  stop.abort();
  vi.useRealTimers();
});

describe("Ranks", () => {
  it("is not there, and asks nothing, for a session in one process", async () => {
    page.store.set({ hello: HELLO, kernel: { ...STATE, run: 1 } });
    await vi.advanceTimersByTimeAsync(5 * EVERY);
    expect(asked()).toBe(0);
    expect(ranks.element.hidden).toBe(true);
  });

  it("shows each rank as text, and asks at most once a second", async () => {
    page.store.set({ hello: { ...HELLO, ranks: 2 }, selected: "a" });
    expect(model.last("ranks").params).toEqual({ site: "a" });
    model.ok(model.last("ranks"), REPLY);
    await settled();
    const items = [...ranks.element.querySelectorAll("li")];
    expect(items.map((item) => item.textContent)).toEqual([
      "0 idle · 300 MiB", "1 trace · 9 s · 300 MiB · GPU 3.0 GiB",
    ]);
    expect(items[1]?.title).toBe("Rank 1 on node2, group 0\n<b>loaded</b>");
    expect(ranks.element.querySelector("b")).toBeNull();
    await vi.advanceTimersByTimeAsync(EVERY - 1);
    expect(asked()).toBe(1);
    await vi.advanceTimersByTimeAsync(1);
    expect(asked()).toBe(2);
    await vi.advanceTimersByTimeAsync(3 * EVERY);
    expect(asked()).toBe(2);
    await vi.advanceTimersByTimeAsync(4 * EVERY);
    expect(asked()).toBe(2);
    await vi.advanceTimersByTimeAsync(EVERY);
    expect(asked()).toBe(3);
    await vi.advanceTimersByTimeAsync(60 * EVERY);
    expect(page.store.now.silence).not.toBe("lost");
    expect(asked()).toBeLessThan(12);
  });

  it("offers the pieces of the selected value, and drops the choice with it", async () => {
    page.store.set({ hello: { ...HELLO, ranks: 2 }, selected: "a" });
    model.ok(model.last("ranks"), REPLY);
    await settled();
    const choice = ranks.element.querySelector<HTMLElement>('[data-value="1"]');
    choice?.click();
    expect(pieceOf(page.store.now)).toBe(1);
    expect(choice?.getAttribute("aria-checked")).toBe("true");
    page.store.set({ selected: "b" });
    expect(pieceOf(page.store.now)).toBeNull();
    model.ok(model.last("ranks"), { ...REPLY, pieces: 0, lies: "whole over 2 ranks" });
    await settled();
    expect(choice?.closest<HTMLElement>(".lv-rank-choice")?.hidden).toBe(true);
  });

  it("says where the ranks do not have the same", async () => {
    page.store.set({ hello: { ...HELLO, ranks: 2 }, selected: "a" });
    const lies = "whole over 2 ranks; but the ranks do not have the same: this is rank 0's (0.1 apart)";
    model.ok(model.last("ranks"), { ...REPLY, pieces: 0, lies });
    await settled();
    const told = ranks.element.querySelector('[data-test="lies"]');
    expect(told?.textContent).toBe(lies);
    expect(told?.hasAttribute("data-apart")).toBe(true);
  });
});
