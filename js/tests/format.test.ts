import { describe, expect, it } from "vitest";
import { floats } from "../src/buffers";
import { exact, float, human, percent, shapeText, visible } from "../src/format";
import { parseSite, siteOf } from "../src/sites";
import { changeText, tokenRows } from "../src/tokens";
import { bufferOf } from "./fakemodel";

describe("numbers", () => {
  it("are short where that is asked and exact where that is", () => {
    expect([0, 576, 1234, 999_950, 134_515_008, 7e9].map(human)).toEqual(["0", "576", "1.2k", "1.0M", "135M", "7.0B"]);
    expect(exact(134515008)).toBe("134,515,008");
    expect([0, 0.25, -1.23456, 1e-30, -2.5e30, NaN, Infinity].map((value) => float(value)))
      .toEqual(["0", "0.25", "−1.235", "1e−30", "−2.5e30", "NaN", "+∞"]);
    expect([0.7712, 0, 1e-9, NaN, null].map(percent)).toEqual(["77.1 %", "0.0 %", "<0.1 %", "NaN", "–"]);
    expect([shapeText([1, 2]), shapeText([])]).toEqual(["1 × 2", "scalar"]);
  });
});

describe("tokens", () => {
  it("show what could hide or move other text", () => {
    expect(visible(" Paris")).toBe("␣Paris");
    expect(visible("a  b c")).toBe("a␣␣b c");
    expect(visible("\n\t")).toBe("↵⇥");
    expect(visible("\u202eabc\u200d")).toBe("\\u202eabc\\u200d");
    expect(visible("")).toBe("∅");
    expect(visible("<b>")).toBe("<b>");
  });

  it("of two runs become one list, by the edited run", () => {
    const rows = tokenRows(
      [{ id: 1, text: "a", probability: 0.6 }, { id: 2, text: "b", probability: 0.3 }],
      [{ id: 2, text: "b", probability: 0.5 }, { id: 3, text: "c", probability: "nan" }],
    );
    expect(rows.find(({ id }) => id === 2)).toEqual({ id: 2, text: "b", baseline: 0.3, edited: 0.5 });
    expect(rows.map(changeText).sort()).toEqual(["▲ 20.0", "▲ new", "▼ out"]);
    expect(tokenRows([{ id: 1, text: "a", probability: 0.6 }], []).map(({ id }) => id)).toEqual([1]);
    expect(changeText({ id: 1, text: "", baseline: 0.5, edited: 0.5 })).toBe("=");
  });
});

describe("sites", () => {
  it.each([
    ["model.layers.0.mlp", "model.layers.0.mlp", "output", true],
    ["model.layers.0.mlp:input", "model.layers.0.mlp", "input", true],
    [":output", "", "output", true],
    [":input", "", "input", true],
    ["a\\:input", "a\\:input", "output", true],
    ["a:input[mask]", "a", "input", false],
    ["a/softmax", "a", "output", false],
    ["act@1", "act", "output", true],
  ])("%s", (site, path, side, plain) => {
    expect(parseSite(site)).toMatchObject({ path, side, plain });
    expect(parseSite(site).call).toBe(site === "act@1" ? 1 : null);
  });

  it("are written back", () => {
    expect([siteOf("", "output"), siteOf("", "input"), siteOf("a", "output"), siteOf("a", "input")])
      .toEqual([":output", ":input", "a", "a:input"]);
  });
});

describe("floats", () => {
  it("copies an unaligned view", () => {
    expect([...floats(bufferOf([1.5, -2]), 2)]).toEqual([1.5, -2]);
    expect([...floats(new Float32Array([3]).buffer, 1)]).toEqual([3]);
  });

  it("refuses another length, and none", () => {
    expect(() => floats(bufferOf([1]), 2)).toThrow("expected 8 bytes");
    expect(() => floats(undefined, 2)).toThrow("without its numbers");
  });
});
