/** One row of the tree, reused for whatever module scrolls under it. */

import { h, setAttribute, setText, show } from "./dom";
import { exact, human } from "./format";
import { siteOf } from "./sites";
import { badges, type Badge } from "./treebadges";
import type { TreeModel } from "./treemodel";

const INDENT = 12;

export interface RowLook {
  /** Position in the visible list. */
  at: number;
  active: boolean;
  selected: boolean;
  /** Text to mark in the name. */
  query: string;
  edited: boolean;
  /** Whether bars stand for the present run. */
  ran: boolean;
}

/** The columns, in their order: what the style knows each by, and its head. */
export const COLUMNS: readonly [string, string][] = [
  ["name", "module"], ["class", "class"], ["number", "params"], ["place", "dtype"],
  ["weights", "weights"], ["bar", "rms"], ["shape", "output"],
];
export const COLUMN_ORDER =
  "In a narrow tree columns leave in this order: weights, dtype, class, params, bars. A row's tooltip has them all.";

export class TreeRowView {
  readonly element: HTMLElement;
  private readonly twist = h("span", { class: "lv-twist", "aria-hidden": "true" });
  private readonly label = h("span", { class: "lv-name" });
  private readonly note = h("span", { class: "lv-badges" });
  private readonly name = h("span", { class: "lv-cell lv-cell-name", role: "gridcell" },
    this.twist, this.label, this.note);
  private readonly kind = h("span", { class: "lv-cell lv-cell-class", role: "gridcell" });
  private readonly parameters = h("span", { class: "lv-cell lv-cell-number", role: "gridcell" });
  private readonly place = h("span", { class: "lv-cell lv-cell-place", role: "gridcell" });
  private readonly fill = h("span", { class: "lv-size-fill" });
  private readonly track = h("span", { class: "lv-size" }, this.fill);
  private readonly bar = h("span", { class: "lv-cell lv-cell-bar", role: "gridcell" }, this.track);
  private shownBadges = "";
  private readonly weights = h("span", { class: "lv-cell lv-cell-weights", role: "gridcell" });
  private readonly shape = h("span", { class: "lv-cell lv-cell-shape", role: "gridcell" });

  constructor(id: string, private readonly height: number) {
    this.element = h("div", { class: "lv-tree-row", role: "row", id },
      this.name, this.kind, this.parameters, this.place, this.weights, this.bar, this.shape);
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
    setAttribute(element, "data-site", row < 0 ? null : site);
    setAttribute(element, "data-fold", row < 0 ? site : null);
    setAttribute(element, "aria-rowindex", String(look.at + 2));
    setAttribute(element, "aria-level", String(tree.depth(row) + 1));
    setAttribute(element, "aria-expanded", branch ? String(open) : null);
    setAttribute(element, "aria-selected", String(look.selected));
    element.classList.toggle("lv-active", look.active);
    element.classList.toggle("lv-above", look.query !== "" && !tree.isMatch(row));
    this.name.style.paddingLeft = `${tree.depth(row) * INDENT + 4}px`;
    element.classList.toggle("lv-alike", row < 0);
    setText(this.twist, branch ? (open ? "▾" : "▸") : "");
    mark(this.label, tree.name(row) || "(root)", look.query);
    this.badge(badges(tree, row, look.edited));
    mark(this.kind, tree.className(row), look.query);
    setText(this.parameters, human(tree.parameters(row)));
    const { dtype, device } = tree.place(row);
    setText(this.place, dtype);
    setText(this.weights, tight(tree.weights(row)));
    // A fold's members agree in what they are, not in what passed through them.
    const shape = row < 0 ? "" : tree.shape(row);
    setText(this.shape, tight(shape) || "–");
    this.shape.classList.toggle("lv-none", shape === "");
    this.drawBar(tree, row, look.ran);
    const params = `${exact(tree.parameters(row))} parameters`;
    const where = dtype === "" ? "" : `${dtype} on ${device}`;
    const size = row < 0 ? "" : tree.bars.say(row);
    setAttribute(this.parameters, "title", params);
    setAttribute(this.kind, "title", tree.className(row));
    setAttribute(this.place, "title", where || null);
    setAttribute(this.weights, "title", tree.weights(row) || null);
    setAttribute(this.bar, "title", size || null);
    setAttribute(this.shape, "title", shape || "nothing recorded here in the latest run");
    const facts = [
      row < 0 ? `${tree.note(row)}: ${site} and those after it` : site, tree.className(row), params,
      tree.weights(row) && `weights ${tree.weights(row)}`, where,
      row < 0 ? "" : tree.note(row), shape && `output ${shape}`, size,
    ];
    setAttribute(this.name, "title", facts.filter((fact) => fact !== "").join("\n"));
  }

  private badge(found: readonly Badge[]): void {
    const key = found.map(({ text, kind }) => `${kind} ${text}`).join("\n");
    if (key === this.shownBadges) return;
    this.shownBadges = key;
    this.note.replaceChildren(...found.map(({ text, kind, title }) =>
      h("span", { class: `lv-badge lv-badge-${kind}`, title: title || undefined }, text)));
  }

  private drawBar(tree: TreeModel, row: number, ran: boolean): void {
    const { bars } = tree;
    const value = row < 0 || !(ran || bars.kind === "overlay") ? null : bars.value(row);
    const odd = row >= 0 && ran && bars.oddOf(row) > 0;
    show(this.track, value !== null || odd);
    show(this.fill, value !== null);
    if (value !== null) this.fill.style.width = `${(bars.share(row) * 100).toFixed(1)}%`;
    this.fill.classList.toggle("lv-size-below", value !== null && value < 0);
    this.bar.classList.toggle("lv-size-odd", odd);
  }
}

/** "1 x 5 x 576" as "1×5×576". */
function tight(shape: string): string {
  return shape.replaceAll(" x ", "×");
}

/** Set a text with every occurrence of `query` marked. */
function mark(element: HTMLElement, text: string, query: string): void {
  if (query === "" || !text.toLowerCase().includes(query.toLowerCase())) {
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
