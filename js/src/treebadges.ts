/** The badges of a row of the tree: what is unusual about a module, in a word each. */

import type { TreeModel } from "./treemodel";

export interface Badge {
  text: string;
  /** How loud it is: plain facts, things to know, what the user did. */
  kind: "plain" | "fact" | "warn" | "edit";
  title: string;
}

const TITLES: Record<string, string> = {
  tied: "Shares a parameter with another module",
  container: "Only holds other modules: it is never called and has no values",
  quantized: "Its weights are held in fewer bits than it computes in",
  offloaded: "Its weights are not in memory: a hook brings them when it runs",
  "no values": "Its weights are on the meta device: they have shapes and no values",
};
const PLAIN = new Set(["container"]);

export function badges(tree: TreeModel, row: number, edited: boolean): Badge[] {
  if (row < 0) return [{ text: tree.note(row), kind: "plain", title: "" }];
  const found: Badge[] = [];
  if (edited) found.push({ text: "edited", kind: "edit", title: "An intervention that is on changes it" });
  const notes = tree.note(row).split(", ").filter((note) => note !== "");
  const calls = tree.callsOf(row);
  if (calls === 0 && !notes.includes("container")) {
    found.push({ text: "never called", kind: "warn", title: "The latest run did not call it" });
  } else if (calls > 1) {
    found.push({ text: `called ${calls} times`, kind: "fact", title: `Sites @0 to @${calls - 1}` });
  }
  for (const note of notes) {
    found.push({ text: note, kind: PLAIN.has(note) ? "plain" : "fact", title: TITLES[note] ?? note });
  }
  return found;
}
