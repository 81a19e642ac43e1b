/** A bar between the tree and the picture that shares the width out. */

import { h, setAttribute } from "./dom";

const LEAST = 18;
const MOST = 65;

export function splitter(frame: HTMLElement, signal: AbortSignal): HTMLElement {
  const bar = h("div", {
    class: "lv-splitter", role: "separator", tabindex: "0", "aria-orientation": "vertical",
    "aria-label": "Width of the tree", "aria-valuemin": String(LEAST), "aria-valuemax": String(MOST),
  });
  let share = 42;
  const set = (wanted: number): void => {
    share = Math.max(LEAST, Math.min(MOST, wanted));
    frame.style.setProperty("--lv-tree-share", `${share.toFixed(2)}%`);
    setAttribute(bar, "aria-valuenow", String(Math.round(share)));
  };
  setAttribute(bar, "aria-valuenow", String(share));
  bar.addEventListener("pointerdown", (event) => { bar.setPointerCapture(event.pointerId); }, { signal });
  bar.addEventListener("pointermove", (event) => {
    if (!bar.hasPointerCapture(event.pointerId)) return;
    const box = frame.getBoundingClientRect();
    if (box.width > 0) set(((event.clientX - box.left) / box.width) * 100);
  }, { signal });
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -2, ArrowRight: 2 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    set(share + step);
  }, { signal });
  return bar;
}
