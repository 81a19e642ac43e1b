/** Where anywidget enters: builds the page in an element, and takes it apart again. */

import { Checks } from "./checks";
import type { Model } from "./client";
import { Cost } from "./cost";
import { h, later, onResize, setAttribute } from "./dom";
import { Exports } from "./exports";
import { Header } from "./header";
import { Heatmap } from "./heatmap";
import { Interventions } from "./interventions";
import { guardKeys } from "./keys";
import { Page } from "./page";
import { Ranks } from "./ranks";
import { shortcuts } from "./shortcuts";
import { side } from "./side";
import { splitter } from "./splitter";
import type { PageState } from "./state";
import { style } from "./style";
import { themeOf, watchTheme } from "./theme";
import { Timeline } from "./timeline";
import { NextTokens } from "./tokens";
import { Tree } from "./tree";
import { Views } from "./views";

/** A theme's colours may be in transition when its attribute changes. */
const TRANSITION = 250;

function dataState({ hello, fatal, problem, silence, running, working, kernel }: PageState): string {
  if (fatal || silence === "lost") return "error";
  if (hello === null) return "loading";
  if (running || working > 0 || kernel.busy !== "") return "busy";
  return problem === "" ? "ready" : "error";
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const controller = new AbortController();
  const { signal } = controller;
  const page = new Page(model, signal);
  const root = h("div", { class: "lensview", "data-state": "loading", "data-paints": "0", "data-hash": "" });
  const frame = h("div", { class: "lv-frame" });

  const heatmap = new Heatmap(page, signal, (paints, hash) => {
    setAttribute(root, "data-paints", String(paints));
    setAttribute(root, "data-hash", hash);
  });
  const views = new Views(page, signal, heatmap.element);
  const header = new Header(page, signal);
  const exports = new Exports(page, signal);
  const interventions = new Interventions(page, signal);
  header.place(new Cost(page, signal, () => header.text).button, exports.button);
  shortcuts(root, exports.button, page, interventions, signal);
  frame.append(
    header.element,
    new Ranks(page, signal).element,
    h("div", { class: "lv-main" },
      new Tree(page, signal).element,
      splitter(frame, signal),
      views.element,
      side([interventions.element, new Timeline(page, signal).element],
        [new NextTokens(page, signal).element, new Checks(page, signal).element])),
  );
  root.append(h("style", {}, style), frame);

  page.store.watch(signal, (now) => {
    setAttribute(root, "data-state", dataState(now));
    setAttribute(root, "data-run", String(now.kernel.run));
    setAttribute(root, "data-selected", now.selected);
  });
  const retheme = (): void => {
    const theme = themeOf(root);
    if (root.dataset["theme"] === theme) return;
    root.dataset["theme"] = theme;
    heatmap.setTheme(theme);
    views.setTheme(theme);
  };
  guardKeys(root, signal);
  watchTheme(signal, () => {
    retheme();
    later(signal, TRANSITION, retheme);
  });
  // Colours are known only once the host has put the element into its document.
  onResize(signal, root, retheme);
  el.append(root);
  retheme();
  void page.start();

  return () => {
    controller.abort();
    root.remove();
  };
}

export default { render };
