import { describe, expect, it } from "vitest";
import { treeStep, TypeAhead } from "../src/treekeys";
import { TreeModel } from "../src/treemodel";
import { CLASSES, ROWS } from "./fakemodel";

function tiny(): TreeModel {
  const tree = new TreeModel();
  tree.append({ total: ROWS.length, offset: 0, classes: CLASSES, places: ["float32 cpu"], rows: ROWS });
  return tree;
}

describe("treeStep", () => {
  const tree = tiny();

  it.each([
    ["ArrowDown", 0, { move: 1 }],
    ["ArrowDown", 7, { move: 7 }],
    ["ArrowUp", 0, { move: 0 }],
    ["PageDown", 1, { move: 4 }],
    ["PageUp", 2, { move: 0 }],
    ["Home", 5, { move: 0 }],
    ["End", 0, { move: 7 }],
    ["Enter", 4, { select: 4 }],
    ["ArrowRight", 1, { move: 2 }],
    ["ArrowRight", 4, null],
    ["ArrowLeft", 4, { move: 3 }],
    ["ArrowLeft", 3, { close: 3 }],
    [" ", 3, { close: 3 }],
    ["F5", 3, null],
  ])("%s at %i", (key, at, step) => {
    expect(treeStep(tree, key, at, 3)).toEqual(step);
  });

  it("opens a closed row before it enters it", () => {
    const closed = tiny();
    closed.setOpen(2, false);
    expect(treeStep(closed, "ArrowRight", 2, 3)).toEqual({ open: 2 });
  });

  it("does nothing in an empty tree", () => {
    expect(treeStep(new TreeModel(), "ArrowDown", 0, 3)).toBeNull();
  });
});

describe("TypeAhead", () => {
  it("goes to the next name, wraps around, and reads quick letters as one word", () => {
    const tree = tiny();
    const ahead = new TypeAhead();
    expect(ahead.find(tree, "m", 1, 0)).toBe(4);
    expect(ahead.find(tree, "m", 4, 2000)).toBe(6);
    expect(ahead.find(tree, "m", 6, 4000)).toBe(1);
    expect(ahead.find(tree, "l", 1, 6000)).toBe(2);
    expect(ahead.find(tree, "m", 2, 6100)).toBe(7);
    expect(ahead.find(tree, "x", 7, 6200)).toBe(-1);
  });
});
