/** Where the keys of a tree lead. */

import type { TreeModel } from "./treemodel";

export type Step =
  | { move: number }
  | { open: number }
  | { close: number }
  | { select: number }
  | null;

/** What `key` does when the active row is at `at` of the visible list and a page has `page` rows. */
export function treeStep(tree: TreeModel, key: string, at: number, page: number): Step {
  const last = tree.visible.length - 1;
  const row = tree.visible[at];
  if (row === undefined) return last >= 0 ? { move: 0 } : null;
  const to = (target: number): Step => ({ move: Math.max(0, Math.min(last, target)) });
  switch (key) {
    case "ArrowDown":
      return to(at + 1);
    case "ArrowUp":
      return to(at - 1);
    case "PageDown":
      return to(at + page);
    case "PageUp":
      return to(at - page);
    case "Home":
      return to(0);
    case "End":
      return to(last);
    case "ArrowRight":
      if (!tree.hasChildren(row)) return null;
      return tree.isOpen(row) ? to(at + 1) : { open: row };
    case "ArrowLeft": {
      if (tree.isOpen(row)) return { close: row };
      const parent = tree.visible.indexOf(tree.parent(row));
      return parent >= 0 ? to(parent) : null;
    }
    case " ":
      if (!tree.hasChildren(row)) return null;
      return tree.isOpen(row) ? { close: row } : { open: row };
    case "Enter":
      return { select: row };
    default:
      return null;
  }
}

const PAUSE = 700;

/** Collects typed letters and finds the next visible row whose name starts with them. */
export class TypeAhead {
  private typed = "";
  private last = -Infinity;

  /** The position in the visible list to go to, or -1. */
  find(tree: TreeModel, key: string, at: number, now: number): number {
    this.typed = now - this.last > PAUSE ? key : this.typed + key;
    this.last = now;
    const wanted = this.typed.toLowerCase();
    const count = tree.visible.length;
    // A first letter looks beyond the active row, a longer word may stay on it.
    const start = wanted.length === 1 ? at + 1 : at;
    for (let step = 0; step < count; step += 1) {
      const place = (Math.max(0, start) + step) % count;
      if (tree.name(tree.visible[place] ?? -1).toLowerCase().startsWith(wanted)) return place;
    }
    return -1;
  }
}
