import { describe, expect, it } from "vitest";
import { TreeModel } from "../src/treemodel";
import type { TreeRow } from "../src/protocol";
import { CLASSES, ROWS } from "./fakemodel";

function tiny(): TreeModel {
  const tree = new TreeModel();
  tree.append({ total: ROWS.length, offset: 0, classes: CLASSES, places: ["float32 cpu"], rows: ROWS });
  return tree;
}

const shown = (tree: TreeModel): string[] => tree.visible.map((row) => tree.path(row));

describe("TreeModel", () => {
  it("joins names to paths and knows parents", () => {
    const tree = tiny();
    expect(tree.path(0)).toBe("");
    expect(tree.path(4)).toBe("model.layers.0.mlp");
    expect(tree.find("model.layers.1.mlp")).toBe(6);
    expect(tree.find("model.nothing")).toBe(-1);
    expect(tree.parent(6)).toBe(5);
    expect(tree.className(6)).toBe("Linear");
  });

  it("opens a small tree whole", () => {
    expect(tiny().visible).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it("opens a large tree as far as a screen goes", () => {
    const rows: TreeRow[] = [["", 0, 0, 0, "", "", 0], ["layers", 1, 0, 0, "", "", 0]];
    for (let i = 0; i < 40; i += 1) rows.push([`x${i}`, 2, 0, 0, "", "", 0], ["a", 3, 0, 0, "", "", 0]);
    const tree = new TreeModel();
    tree.append({ total: rows.length, offset: 0, classes: ["M"], places: ["float32 cpu"], rows });
    expect(tree.visible.length).toBe(42);
  });

  it("takes pages in order, across a parent's boundary", () => {
    const tree = new TreeModel();
    tree.append({ total: 8, offset: 0, classes: CLASSES, places: ["float32 cpu"], rows: ROWS.slice(0, 4) });
    expect(() => { tree.append({ total: 8, offset: 5, classes: CLASSES, places: ["float32 cpu"], rows: [] }); }).toThrow();
    tree.append({ total: 8, offset: 4, classes: [...CLASSES].reverse(), places: ["float32 cpu"], rows: ROWS.slice(4) });
    expect(tree.path(6)).toBe("model.layers.1.mlp");
    expect(tree.className(6)).toBe("Tiny");
    expect(tree.className(3)).toBe("Block");
  });

  it("hides what is under a closed row", () => {
    const tree = tiny();
    tree.setOpen(2, false);
    expect(shown(tree)).toEqual(["", "model", "model.layers", "lm_head"]);
    tree.setOpen(2, true);
    expect(tree.visible.length).toBe(8);
    tree.setAllOpen(false);
    expect(shown(tree)).toEqual(["", "model", "lm_head"]);
  });

  it("filters by path or class and keeps what is above a match", () => {
    const tree = tiny();
    tree.filter("LAYERS.1.mlp");
    expect(shown(tree)).toEqual(["", "model", "model.layers", "model.layers.1", "model.layers.1.mlp"]);
    expect(tree.matches).toBe(1);
    expect(tree.isMatch(6)).toBe(true);
    expect(tree.isMatch(5)).toBe(false);
    tree.filter("linear");
    expect(tree.matches).toBe(3);
    tree.filter("nowhere");
    expect(tree.visible).toEqual([]);
    tree.filter("");
    expect(tree.visible.length).toBe(8);
  });

  it("reads a query with a star as the glob of a site", () => {
    const tree = tiny();
    tree.filter("**.mlp");
    expect(tree.matches).toBe(2);
    tree.filter("model.layers.*");
    expect(tree.matches).toBe(2);
    tree.filter("model.layers.**");
    expect(tree.matches).toBeGreaterThan(2);
    tree.filter("lm_*");
    expect(tree.matches).toBe(1);
    tree.filter("*.(");
    expect(tree.matches).toBe(0);
  });

  it("shows matches inside rows that were closed, and leaves those closed afterwards", () => {
    const tree = tiny();
    tree.setOpen(1, false);
    tree.filter("mlp");
    expect(tree.visible).toContain(4);
    tree.setOpen(3, false);
    expect(tree.visible).not.toContain(4);
    tree.filter("");
    expect(shown(tree)).toEqual(["", "model", "lm_head"]);
  });

  it("reveals a row inside closed ones", () => {
    const tree = tiny();
    tree.setAllOpen(false);
    tree.reveal(6);
    expect(shown(tree)).toContain("model.layers.1.mlp");
  });

  it("keeps shapes by row, and forgets those of an earlier run", () => {
    const tree = tiny();
    tree.setShapes(0, ["a", "b", "c"]);
    expect(tree.shape(1)).toBe("b");
    tree.setShapes(0, ["d"]);
    expect([tree.shape(0), tree.shape(1)]).toEqual(["d", ""]);
  });

  it("matches in pages that come later", () => {
    const tree = new TreeModel();
    tree.append({ total: 8, offset: 0, classes: CLASSES, places: ["float32 cpu"], rows: ROWS.slice(0, 4) });
    tree.filter("lm_head");
    expect(tree.visible).toEqual([]);
    tree.append({ total: 8, offset: 4, classes: CLASSES, places: ["float32 cpu"], rows: ROWS.slice(4) });
    expect(shown(tree)).toEqual(["", "lm_head"]);
  });
});
