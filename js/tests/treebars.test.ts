import { describe, expect, it } from "vitest";
import { TreeBars } from "../src/treebars";

const page = { rms: [1, 1e-3, 1e-9, null, 0], odd: [0, 0, 0, 0, 2], changes: [], name: "", overlay: [] };

describe("TreeBars", () => {
  it("are on a log scale of six decades", () => {
    const bars = new TreeBars();
    bars.set(0, page);
    expect([0, 1, 2, 3, 4].map((row) => bars.share(row))).toEqual([1, 0.5, 0.05, 0, 0]);
    expect(bars.head()[0]).toBe("rms");
    expect(bars.head()[1]).toContain("Log scale");
    expect(bars.say(1)).toBe("rms 0.001");
    expect(bars.say(4)).toBe("rms 0 · 2 NaN or infinite");
    expect(bars.say(3)).toBe("");
  });

  it("show the change after an edited run, and the user's numbers before all", () => {
    const bars = new TreeBars();
    bars.set(0, { ...page, changes: [0, 2, null, null, null] });
    expect(bars.kind).toBe("change");
    expect([bars.share(0), bars.share(1)]).toEqual([0, 1]);
    bars.set(0, { ...page, changes: [0, 2], name: "loss", overlay: [-4, 1, NaN, null] });
    expect(bars.head()[0]).toBe("loss");
    expect([bars.share(0), bars.share(1), bars.share(2), bars.share(3)]).toEqual([1, 0.25, 0, 0]);
    bars.set(0, page);
    expect(bars.kind).toBe("rms");
  });
});
