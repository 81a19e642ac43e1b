/** Dialogs: a box over the explorer that keeps the focus until it is closed. */

import { h, uniqueId } from "./dom";

export interface Dialog {
  element: HTMLElement;
  close(): void;
}

const REACHED = "button:not(:disabled), input:not(:disabled), textarea, select, [tabindex='0']";

/** Open a dialog over the explorer that holds `anchor`; the focus goes back to where it was. */
export function openDialog(
  anchor: HTMLElement,
  title: string,
  test: string,
  body: readonly HTMLElement[],
  signal: AbortSignal,
): Dialog {
  const root = anchor.closest<HTMLElement>(".lensview") ?? document.body;
  for (const open of root.querySelectorAll(".lv-veil")) open.remove();
  const before = document.activeElement;
  const closing = new AbortController();
  signal.addEventListener("abort", () => { closing.abort(); }, { signal: closing.signal });
  const options = { signal: closing.signal };
  const id = uniqueId("dialog");
  const shut = h("button", { type: "button", class: "lv-icon", title: "Close (Escape)", "aria-label": "Close", "data-test": "close" }, "×");
  const box = h("div", {
    class: "lv-dialog", role: "dialog", "aria-modal": "true", "aria-labelledby": id, "data-test": test,
  }, h("div", { class: "lv-dialog-bar" }, h("h3", { class: "lv-dialog-title", id }, title), shut), ...body);
  const veil = h("div", { class: "lv-veil" }, box);
  const close = (): void => {
    if (closing.signal.aborted) return;
    closing.abort();
    veil.remove();
    if (before instanceof HTMLElement && before.isConnected) before.focus();
    else anchor.focus();
  };
  shut.addEventListener("click", close, options);
  veil.addEventListener("pointerdown", (event) => { if (event.target === veil) close(); }, options);
  veil.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    } else if (event.key === "Tab") {
      const all = [...box.querySelectorAll<HTMLElement>(REACHED)].filter((one) => !one.hidden);
      const edge = event.shiftKey ? all[0] : all.at(-1);
      const other = event.shiftKey ? all.at(-1) : all[0];
      if (document.activeElement === edge) {
        event.preventDefault();
        other?.focus();
      }
    }
  }, options);
  root.append(veil);
  (box.querySelector<HTMLElement>("[data-first]") ?? shut).focus();
  return { element: box, close };
}
