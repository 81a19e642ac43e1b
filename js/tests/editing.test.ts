import { describe, expect, it } from "vitest";
import { verdict } from "../src/checks";
import { costText } from "../src/cost";
import { bytesText } from "../src/format";
import { withCopy, withMove, withNew } from "../src/editrows";
import type { CostReply, InterventionRow, RunRow } from "../src/protocol";
import { chosen } from "../src/timeline";
import { apartText } from "../src/tokens";
import { firstValue, kindOf, pairOf, runChoices } from "../src/values";

const ROW: InterventionRow = {
  id: "a", enabled: true, site: "model", operation: "scale", index: "", value: "0", locked: false,
  error: "old", changed: 12,
};
const ROWS = ["a", "b", "c"].map((id) => ({ ...ROW, id }));
const ids = (rows: readonly InterventionRow[]): string => rows.map(({ id }) => id).join("");
const RUN: RunRow = {
  number: 1, name: "", prompt: "Hi", interventions: [], time: "2026-01-01T10:00:00", seconds: 1, seed: 0,
  held: true, amber: 0,
};

describe("rows", () => {
  it("are copied below the original, with an id of their own and nothing of the last run", () => {
    const rows = withCopy(ROWS, "b");
    expect(rows).toHaveLength(4);
    expect(rows[2]).toMatchObject({ site: "model", value: "0", error: "", changed: null });
    expect(new Set(rows.map(({ id }) => id)).size).toBe(4);
  });

  it("from code are not copied: their text is not their value", () => {
    expect(withCopy([{ ...ROW, locked: true }], "a")).toHaveLength(1);
  });

  it("move up and down, and stay at the ends", () => {
    expect(ids(withMove(ROWS, "b", -1))).toBe("bac");
    expect(ids(withMove(ROWS, "b", 1))).toBe("acb");
    expect(withMove(ROWS, "a", -1)).toBe(ROWS);
    expect(withMove(ROWS, "c", 1)).toBe(ROWS);
  });

  it("take a part of a value", () => {
    expect(withNew([], "x", ["scale"], "0, 1:3")[0]).toMatchObject({ site: "x", index: "0, 1:3" });
  });
});

describe("values", () => {
  it("have an editor by operation", () => {
    const kinds = ["zero", "scale", "add", "clamp", "noise", "patch", "mean", "project_out"]
      .map((operation) => kindOf({ operation, locked: false }));
    expect(kinds).toEqual(["none", "number", "name", "pair", "pair", "run", "run", "name"]);
    expect(kindOf({ operation: "patch", locked: true })).toBe("locked");
  });

  it("split and start", () => {
    expect(pairOf("-1, 2")).toEqual(["-1", "2"]);
    expect(pairOf(", 3")).toEqual(["", "3"]);
    expect(pairOf("")).toEqual(["", ""]);
    expect(firstValue("clamp", [])).toBe("-1, 1");
    expect(firstValue("patch", [])).toBe("");
    expect(firstValue("patch", [RUN, { ...RUN, number: 2 }])).toBe("run 1");
  });

  it("come from runs whose values are held, newest first, with and without their edits", () => {
    const runs = [RUN, { ...RUN, number: 2, held: false },
      { ...RUN, number: 3, name: "mine", interventions: ["zero x"] }];
    expect(runChoices(runs)).toEqual([
      ["run 3", "run 3: mine"], ["run 3 baseline", "run 3 without edits: mine"], ["run 1", "run 1: Hi"],
    ]);
  });
});

describe("comparing", () => {
  it("chooses A and B, and a second click takes one back", () => {
    expect(chosen([], "A", 2)).toEqual([2, null]);
    expect(chosen([2, null], "B", 5)).toEqual([2, 5]);
    expect(chosen([2, 5], "A", 2)).toEqual([null, 5]);
    expect(chosen([2, 5], "A", 5)).toEqual([5, 5]);
  });

  it("says how far the tables are apart, both ways", () => {
    expect(apartText(null, "a", "b")).toBe("");
    expect(apartText({ forward: 0.25, backward: "inf", note: "" }, "A", "B"))
      .toBe("KL(A ‖ B) 0.25 · KL(B ‖ A) +∞ nats");
    expect(apartText({ forward: null, backward: null, note: "no logits" }, "A", "B")).toBe("No KL: no logits.");
  });
});

describe("trust and cost", () => {
  it("are never silent", () => {
    const ok = { name: "mode", ok: true, reason: "" };
    expect(verdict([])).toEqual({ text: "", tone: "" });
    expect(verdict([ok, ok])).toEqual({ text: "✓ all 2", tone: "good" });
    expect(verdict([ok, { ...ok, ok: false }])).toEqual({ text: "! 1 of 2", tone: "warn" });
  });

  it("are told in units, with the limit and what is unknown", () => {
    const reply: CostReply = { sites: 3, bytes: 2048, limit: 1024, largest: [], choices: [], note: "" };
    expect([0, 1023, 1536, 3 * 2 ** 30].map(bytesText)).toEqual(["0 bytes", "1023 bytes", "1.5 KiB", "3.0 GiB"]);
    expect(costText(reply)).toContain("2.0 KiB in 3 sites");
    expect(costText(reply)).toContain("over the limit");
    expect(costText({ ...reply, limit: null })).not.toContain("over");
    expect(costText({ ...reply, bytes: null, note: "why" })).toContain("Not known before the run: why");
  });
});
