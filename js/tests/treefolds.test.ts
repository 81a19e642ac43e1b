import { describe, expect, it } from "vitest";
import type { TreeRow } from "../src/protocol";
import { TreeModel } from "../src/treemodel";
import { treeStep } from "../src/treekeys";

const CLASSES = ["Model", "List", "Block", "Linear", "Odd"];

/** A model of layers, of which one is of another class, with experts in each. */
function rowsOf(layers: number, odd = -1, experts = 0): TreeRow[] {
  const rows: TreeRow[] = [["", 0, 0, 9, "", "", 0], ["layers", 1, 1, 9, "", "container", 0]];
  for (let i = 0; i < layers; i += 1) {
    rows.push([String(i), 2, i === odd ? 4 : 2, 3, "", "", 0], ["mlp", 3, 3, 3, "8 x 8", "", 0], ["act", 3, 3, 0, "", "", 0]);
    if (experts > 0) rows.push(["experts", 3, 1, 0, "", "", 0]);
    for (let k = 0; k < experts; k += 1) rows.push([String(k), 4, 3, 1, "", "", 0]);
  }
  rows.push(["head", 1, 3, 9, "", "", 0]);
  return rows;
}

function made(rows: TreeRow[], page = rows.length): TreeModel {
  const tree = new TreeModel();
  for (let offset = 0; offset < rows.length; offset += page) {
    tree.append({ total: rows.length, offset, classes: CLASSES, places: ["float32 cpu"], rows: rows.slice(offset, offset + page) });
  }
  return tree;
}

const shown = (tree: TreeModel): string[] => tree.visible.map((row) => `${tree.depth(row)} ${tree.name(row)}`);

describe("folds", () => {
  it("show identical layers as one row, in one page or many", () => {
    for (const page of [1000, 7, 2]) {
      const tree = made(rowsOf(30), page);
      expect(shown(tree)).toEqual(["0 ", "1 layers", "2 0 … 29", "1 head"]);
      const fold = tree.visible[2] ?? 0;
      expect(tree.note(fold)).toBe("30 identical layers");
      expect(tree.parameters(fold)).toBe(90);
      expect(tree.hasChildren(fold)).toBe(true);
    }
  });

  it("open and close by key, and keep their place above what they hold", () => {
    const tree = made(rowsOf(30));
    const fold = tree.visible[2] ?? 0;
    expect(treeStep(tree, "ArrowRight", 2, 10)).toEqual({ open: fold });
    tree.setOpen(fold, true);
    expect(shown(tree).slice(2, 6)).toEqual(["2 0 … 29", "3 0", "3 1", "3 2"]);
    expect(treeStep(tree, "ArrowRight", 2, 10)).toEqual({ move: 3 });
    expect(treeStep(tree, "ArrowLeft", 4, 10)).toEqual({ move: 2 });
    expect(treeStep(tree, "ArrowLeft", 2, 10)).toEqual({ close: fold });
    expect(treeStep(tree, " ", 2, 10)).toEqual({ close: fold });
  });

  it("end where a layer is of another class, and need five alike", () => {
    expect(shown(made(rowsOf(30, 12)))).toEqual(["0 ", "1 layers", "2 0 … 11", "2 12", "3 mlp", "3 act", "2 13 … 29", "1 head"]);
    expect(shown(made(rowsOf(30, 3))).slice(2, 6)).toEqual(["2 0", "3 mlp", "3 act", "2 1"]);
  });

  it("hide what is in a fold of a fold, and open both for a selected module", () => {
    const tree = made(rowsOf(30, -1, 8));
    expect(shown(tree)).toEqual(["0 ", "1 layers", "2 0 … 29", "1 head"]);
    const row = tree.find("layers.7.experts.5");
    tree.reveal(row);
    expect(tree.visible).toContain(row);
    expect(tree.depth(row)).toBe(6);
    expect(tree.name(tree.parent(row))).toBe("0 … 7");
  });

  it("open for an edited module without opening what is above it", () => {
    const tree = made(rowsOf(30));
    expect(tree.unfold([tree.find("layers.3.mlp")])).toBe(true);
    expect(tree.visible).toContain(tree.find("layers.3"));
    expect(tree.unfold([tree.find("layers.3.mlp")])).toBe(false);
  });

  it("are not there in a search, nor in a small tree", () => {
    const tree = made(rowsOf(30));
    tree.filter("layers.1*.mlp");
    expect(tree.matches).toBe(11);
    expect(tree.visible.every((row) => row >= 0)).toBe(true);
    expect(shown(made(rowsOf(6))).slice(1, 4)).toEqual(["1 layers", "2 0", "3 mlp"]);
  });

  it("open and close with everything else", () => {
    const tree = made(rowsOf(30));
    tree.setAllOpen(true);
    expect(tree.visible.length).toBe(tree.length + 1);
    tree.setAllOpen(false);
    expect(shown(tree)).toEqual(["0 ", "1 layers", "1 head"]);
  });
});
