/** Keys that work anywhere in the explorer, and the tree's context menu. */

import { openHelp } from "./help";
import type { Interventions } from "./interventions";
import { openMenu } from "./menu";
import type { Page } from "./page";

export function shortcuts(
  root: HTMLElement,
  anchor: HTMLElement,
  page: Page,
  interventions: Interventions,
  signal: AbortSignal,
): void {
  root.addEventListener("keydown", (event) => {
    if (inDialog(event.target)) return;
    if (event.key === "Enter" && event.target instanceof HTMLElement) delete event.target.dataset["typed"];
    const command = event.ctrlKey || event.metaKey;
    if (command && event.key.toLowerCase() === "z" && !ownUndo(event.target)) {
      interventions.step(event.shiftKey ? "redo" : "undo");
    } else if (event.altKey && event.key === "Enter") {
      interventions.addRow(activeSite(event.target) ?? page.store.now.selected);
    } else if (event.key === "?" && !command && !isText(event.target)) {
      openHelp(anchor, signal);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }, { signal, capture: true }); // before the tree, which takes letters and marks for names
  // A row's field knows whether what it shows was typed and not applied yet.
  root.addEventListener("input", ({ target }) => {
    if (target instanceof HTMLElement && target.closest(".lv-edit")) target.dataset["typed"] = "true";
  }, { signal });
  for (const type of ["change", "focusout"]) {
    root.addEventListener(type, ({ target }) => {
      if (target instanceof HTMLElement) delete target.dataset["typed"];
    }, { signal });
  }
  root.addEventListener("contextmenu", (event) => {
    const row = event.target instanceof Element ? event.target.closest<HTMLElement>(".lv-tree [data-site]") : null;
    const site = row?.dataset["site"];
    const tree = row?.closest<HTMLElement>(".lv-tree");
    if (site === undefined || !tree || event.shiftKey) return;
    event.preventDefault();
    event.stopPropagation();
    openMenu(tree, "Module", [
      { text: "Edit this", keys: "Alt+Enter", test: "edit-this", act: () => { interventions.addRow(site); } },
      { text: "Select", keys: "Enter", act: () => { void page.select(site); } },
    ], signal, { x: event.clientX, y: event.clientY });
  }, { signal });
}

/** The site of the row that the keys are at, where they are in the tree. */
function activeSite(target: EventTarget | null): string | undefined {
  const id = target instanceof HTMLElement ? target.getAttribute("aria-activedescendant") : null;
  return id === null ? undefined : document.getElementById(id)?.dataset["site"];
}

function inDialog(target: EventTarget | null): boolean {
  return target instanceof Element && target.closest(".lv-veil, .lv-menu") !== null;
}

function isText(target: EventTarget | null): boolean {
  return target instanceof HTMLTextAreaElement
    || (target instanceof HTMLInputElement && !["checkbox", "radio", "button"].includes(target.type));
}

/** Whether the field has typing of its own to take back; a row's field that was applied has none. */
function ownUndo(target: EventTarget | null): boolean {
  if (!isText(target)) return false;
  const field = target as HTMLInputElement;
  return field.closest(".lv-edit") === null || field.dataset["typed"] === "true";
}
