/** One row of the tree, reused for whatever module scrolls under it. */

import { h, setAttribute, setText } from "./dom";
import { exact, human } from "./format";
import { siteOf } from "./sites";
import type { TreeModel } from "./treemodel";

const INDENT = 12;

export interface RowLook {
  /** Position in the visible list. */
  at: number;
  active: boolean;
  selected: boolean;
  /** Text to mark in the name. */
  query: string;
}

export class TreeRowView {
  readonly element: HTMLElement;
  private readonly twist = h("span", { class: "lv-twist", "aria-hidden": "true" });
  private readonly label = h("span", { class: "lv-name" });
  private readonly note = h("span", { class: "lv-note" });
  private readonly name = h("span", { class: "lv-cell lv-cell-name", role: "gridcell" },
    this.twist, this.label, this.note);
  private readonly kind = h("span", { class: "lv-cell lv-cell-class", role: "gridcell" });
  private readonly parameters = h("span", { class: "lv-cell lv-cell-number", role: "gridcell" });
  private readonly weights = h("span", { class: "lv-cell lv-cell-weights", role: "gridcell" });
  private readonly shape = h("span", { class: "lv-cell lv-cell-shape", role: "gridcell" });

  constructor(id: string, private readonly height: number) {
    this.element = h("div", { class: "lv-tree-row", role: "row", id },
      this.name, this.kind, this.parameters, this.weights, this.shape);
  }

  hide(): void {
    this.element.hidden = true;
    this.element.removeAttribute("data-row");
    this.element.removeAttribute("data-site");
  }

  update(tree: TreeModel, row: number, look: RowLook): void {
    const { element } = this;
    element.hidden = false;
    element.style.transform = `translateY(${look.at * this.height}px)`;
    const branch = tree.hasChildren(row);
    const open = tree.isOpen(row);
    const site = siteOf(tree.path(row), "output");
    setAttribute(element, "data-row", String(row));
    setAttribute(element, "data-site", site);
    setAttribute(element, "aria-rowindex", String(look.at + 2));
    setAttribute(element, "aria-level", String(tree.depth(row) + 1));
    setAttribute(element, "aria-expanded", branch ? String(open) : null);
    setAttribute(element, "aria-selected", String(look.selected));
    element.classList.toggle("lv-active", look.active);
    element.classList.toggle("lv-above", look.query !== "" && !tree.isMatch(row));
    this.name.style.paddingLeft = `${tree.depth(row) * INDENT + 4}px`;
    setText(this.twist, branch ? (open ? "▾" : "▸") : "");
    mark(this.label, tree.name(row) || "(root)", look.query);
    setText(this.note, tree.note(row));
    mark(this.kind, tree.className(row), look.query);
    setText(this.parameters, human(tree.parameters(row)));
    setText(this.weights, tight(tree.weights(row)));
    setText(this.shape, tight(tree.shape(row)) || "–");
    this.shape.classList.toggle("lv-none", tree.shape(row) === "");
    setAttribute(this.parameters, "title", `${exact(tree.parameters(row))} parameters`);
    setAttribute(this.name, "title", site);
    setAttribute(this.kind, "title", tree.className(row));
    setAttribute(this.weights, "title", tree.weights(row) || null);
    setAttribute(this.shape, "title", tree.shape(row) || "nothing recorded here in the latest run");
  }
}

/** "1 x 5 x 576" as "1×5×576". */
function tight(shape: string): string {
  return shape.replaceAll(" x ", "×");
}

/** Set a text with every occurrence of `query` marked. */
function mark(element: HTMLElement, text: string, query: string): void {
  if (query === "") {
    if (element.childElementCount > 0 || element.textContent !== text) element.textContent = text;
    return;
  }
  const parts: (string | Node)[] = [];
  const lower = text.toLowerCase();
  const wanted = query.toLowerCase();
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), h("mark", {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
  }
  element.replaceChildren(...parts, text.slice(from));
}
