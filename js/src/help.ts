/** The help overlay: what can be done here, and with which keys. */

import { openDialog } from "./dialog";
import { h } from "./dom";

const PARTS: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  ["Everywhere", [
    ["?", "this help"],
    ["Ctrl + Z, Ctrl + Shift + Z", "undo and redo the interventions"],
    ["Alt + Enter", "edit the active module of the tree, else the selected site: a new row"],
    ["Escape", "close a menu or a dialog, take back what is typed"],
  ]],
  ["Prompt", [["Enter", "run"], ["Shift + Enter", "a new line"]]],
  ["Tree", [
    ["↑ ↓ Home End Page", "move"], ["→ ←", "open and close"], ["Enter", "select"],
    ["letters", "go to the next name that starts so"], ["right click", "edit this"],
  ]],
  ["Interventions", [
    ["Enter", "apply what is typed"], ["↑ ↓", "change a number (Shift: by a tenth)"],
    ["Alt + ↑ ↓", "move the row"], ["Ctrl + D", "duplicate the row"],
  ]],
  ["Runs", [["A, B", "choose two runs: tables and pictures are then of these"], ["⟲", "restore a run"]]],
];

export function openHelp(anchor: HTMLElement, signal: AbortSignal): void {
  openDialog(anchor, "Keys", "help-dialog", PARTS.map(([title, keys]) =>
    h("div", { class: "lv-help" }, h("h4", {}, title), h("dl", {},
      ...keys.flatMap(([key, what]) => [h("dt", {}, key), h("dd", {}, what)])))), signal);
}
