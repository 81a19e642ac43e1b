/**
 * The module tree as arrays: which rows there are, which are visible, where a key leads.
 *
 * A row is a number: that of a module or, below 0, of a fold (`~` its number), which stands for
 * modules that are alike and has the numbers of the first of them.
 *
 * Rows arrive in definition order (parents before children), so a subtree is a run of rows and
 * the visible list is one pass over them. No element of the page is known here.
 */

import type { TreePage, TreeRow } from "./protocol";
import { Folds, type Fold } from "./treefolds";
import { TreeBars } from "./treebars";
import { matcher, type Match } from "./treesearch";

/** Rows that a tree opens with, at most, beyond the first level. */
const COMFORTABLE = 60;

export class TreeModel {
  /** Row numbers in the order shown. */
  visible: number[] = [];
  total = 0;
  /** Number of rows that match the filter; 0 without one. */
  matches = 0;

  readonly bars = new TreeBars();
  private readonly folds = new Folds();
  private readonly rows: TreeRow[] = [];
  private readonly classNames: string[] = [];
  private readonly paths: string[] = [];
  private readonly parents: number[] = [];
  private readonly open: boolean[] = [];
  private readonly byPath = new Map<string, number>();
  private readonly places: string[] = [];
  private shapes: string[] = [];
  private calls: number[] = [];
  private openDepth = -1;
  private query = "";
  private kept: Uint8Array = new Uint8Array(0);
  private readonly closedInFilter = new Set<number>();

  get length(): number {
    return this.rows.length;
  }

  /** Add the next page. Pages come in order; one that does not follow is refused. */
  append(page: TreePage): void {
    if (page.offset !== this.rows.length) throw new Error("a page of the tree is missing");
    this.total = page.total;
    const first = this.rows.length === 0;
    const folding = page.total > COMFORTABLE;
    const trail = this.trailTo(this.rows.length - 1);
    for (const row of page.rows) {
      const [name, depth, kind, parameters, weights, note, place] = row;
      const at = this.rows.length;
      const parent = depth > 0 ? (trail[depth - 1] ?? -1) : -1;
      const above = parent >= 0 ? (this.paths[parent] ?? "") : "";
      const path = above === "" ? name : `${above}.${name}`;
      trail[depth] = at;
      this.rows.push(row);
      this.classNames.push(page.classes[kind] ?? "");
      this.parents.push(parent);
      this.paths.push(path);
      this.byPath.set(path, at);
      this.places.push(page.places[place] ?? "");
      this.open.push(depth < this.openDepth);
      if (folding) {
        const look = [this.classNames[at], parameters, weights, note, this.places[at]].join("\t");
        this.folds.add(at, depth, name, look);
      }
    }
    if (this.rows.length >= this.total) this.folds.close(0, this.rows.length);
    if (first) this.openFirst();
    if (this.query !== "") this.match();
    this.flatten();
  }

  /** Open as much as fits a screen. Inside folds, which start closed, as if all was unfolded. */
  private openFirst(): void {
    const unfolded: TreeRow[] = [];
    for (let row = 0; row < this.rows.length; row += 1) {
      const known = this.rows[row];
      if (known) unfolded.push(known);
      const fold = this.folds.byFirst.get(row);
      if (fold) row = fold.end - 1;
    }
    this.openDepth = comfortableDepth(this.rows);
    const outside = comfortableDepth(unfolded);
    const unfinished = this.folds.unfinished();
    for (let row = 0; row < this.rows.length; row += 1) {
      const inside = row >= unfinished || this.foldsOf(row).length > 0;
      this.open[row] = this.plainDepth(row) < (inside ? this.openDepth : outside);
    }
  }

  /** Output shapes of the rows from `offset` on, "" where nothing was recorded, and calls. */
  setShapes(offset: number, texts: readonly string[], calls: readonly number[] = []): void {
    if (offset === 0) {
      this.shapes = [];
      this.calls = [];
    }
    texts.forEach((text, i) => { this.shapes[offset + i] = text; });
    calls.forEach((count, i) => { this.calls[offset + i] = count; });
  }

  /** The fold that a row below 0 stands for. */
  foldOf(row: number): Fold | null {
    return row < 0 ? (this.folds.all[~row] ?? null) : null;
  }
  /** The module that a row is, or the first of those it stands for. */
  private first(row: number): number {
    return this.foldOf(row)?.first ?? row;
  }
  name(row: number): string {
    const fold = this.foldOf(row);
    if (!fold) return this.rows[row]?.[0] ?? "";
    return `${this.name(fold.first)} … ${this.name(fold.members.at(-1) ?? fold.first)}`;
  }
  private plainDepth(row: number): number {
    return this.rows[row]?.[1] ?? 0;
  }
  /** The depth as drawn: what is in a fold stands one step below its row. */
  depth(row: number): number {
    const plain = this.plainDepth(this.first(row));
    if (this.query !== "") return plain;
    return plain + this.foldsOf(this.first(row)).length - (row < 0 ? 1 : 0);
  }
  className(row: number): string {
    return this.classNames[this.first(row)] ?? "";
  }
  /** Elements in the subtree; of a fold, in all of its members. */
  parameters(row: number): number {
    return (this.rows[this.first(row)]?.[3] ?? 0) * (this.foldOf(row)?.members.length ?? 1);
  }
  weights(row: number): string {
    return this.rows[this.first(row)]?.[4] ?? "";
  }
  note(row: number): string {
    const fold = this.foldOf(row);
    return fold ? `${fold.members.length} identical layers` : (this.rows[row]?.[5] ?? "");
  }
  /** Dtype and device of the module's own weight; empty texts without one. */
  place(row: number): { dtype: string; device: string } {
    const [dtype = "", device = ""] = (this.places[this.first(row)] ?? "").split(" ");
    return { dtype, device };
  }
  path(row: number): string {
    return this.paths[this.first(row)] ?? "";
  }
  shape(row: number): string {
    return this.shapes[this.first(row)] ?? "";
  }
  /** How often the module was called in the latest run; -1 where that is not known. */
  callsOf(row: number): number {
    return this.calls[this.first(row)] ?? -1;
  }
  /** The row that this one is under, as drawn. */
  parent(row: number): number {
    if (this.query === "" && row >= 0) {
      const fold = this.folds.ofMember.get(row);
      if (fold) return ~fold.id;
    }
    return this.parents[this.first(row)] ?? -1;
  }
  /** The folds around a module, innermost first. */
  private foldsOf(row: number): Fold[] {
    const found: Fold[] = [];
    for (let up = row; up >= 0; up = this.parents[up] ?? -1) {
      const fold = this.folds.ofMember.get(up);
      if (fold) found.push(fold);
    }
    return found;
  }
  find(path: string): number {
    return this.byPath.get(path) ?? -1;
  }
  hasChildren(row: number): boolean {
    if (row < 0) return true;
    return row + 1 < this.rows.length && this.plainDepth(row + 1) > this.plainDepth(row);
  }

  isOpen(row: number): boolean {
    const fold = this.foldOf(row);
    if (fold) return fold.open;
    if (this.query !== "") return this.hasKeptChild(row) && !this.closedInFilter.has(row);
    return (this.open[row] ?? false) && this.hasChildren(row);
  }

  /** Whether the filter shows this row for its own sake, not for a row below it. */
  isMatch(row: number): boolean {
    return this.kept[row] === 2;
  }

  setOpen(row: number, open: boolean): void {
    const fold = this.foldOf(row);
    if (fold) fold.open = open;
    else if (this.query === "") this.open[row] = open;
    else if (open) this.closedInFilter.delete(row);
    else this.closedInFilter.add(row);
    this.flatten();
  }

  setAllOpen(open: boolean): void {
    this.closedInFilter.clear();
    for (let row = 0; row < this.open.length; row += 1) this.open[row] = open || row === 0;
    for (const fold of this.folds.all) fold.open = open;
    this.flatten();
  }

  /** Open all that is above `row`. */
  reveal(row: number): void {
    let changed = false;
    for (let up = this.parents[row] ?? -1; up >= 0; up = this.parents[up] ?? -1) {
      changed ||= !this.isOpen(up);
      this.open[up] = true;
      this.closedInFilter.delete(up);
    }
    if (this.unfold([row]) || changed) this.flatten();
  }

  /** Open the folds that hide these modules. Returns whether any was closed. */
  unfold(rows: readonly number[]): boolean {
    const closed = rows.flatMap((row) => this.foldsOf(row)).filter((fold) => !fold.open);
    for (const fold of closed) fold.open = true;
    if (closed.length > 0) this.flatten();
    return closed.length > 0;
  }

  /** The modules whose paths are found, without a change of what is shown. */
  matching(match: Match): number[] {
    const found: number[] = [];
    for (let row = 0; row < this.rows.length; row += 1) {
      if (match(this.path(row), "")) found.push(row);
    }
    return found;
  }

  filter(query: string): void {
    this.query = query.trim();
    this.closedInFilter.clear();
    this.matches = 0;
    if (this.query !== "") this.match();
    this.flatten();
  }

  /** Mark what contains the query in path or class (2), and what lies above those (1). */
  private match(): void {
    this.kept = new Uint8Array(this.rows.length);
    this.matches = 0;
    const found = matcher(this.query);
    for (let row = 0; row < this.rows.length; row += 1) {
      if (!found(this.path(row), this.className(row))) continue;
      this.matches += 1;
      this.kept[row] = 2;
      for (let up = this.parents[row] ?? -1; up >= 0 && this.kept[up] === 0; up = this.parents[up] ?? -1) {
        this.kept[up] = 1;
      }
    }
  }

  private hasKeptChild(row: number): boolean {
    for (let next = row + 1; next < this.rows.length; next += 1) {
      if (this.plainDepth(next) <= this.plainDepth(row)) return false;
      if (this.kept[next] !== 0) return true;
    }
    return false;
  }

  private flatten(): void {
    const visible: number[] = [];
    const filtered = this.query !== "";
    let closedAt = Infinity;
    for (let row = 0; row < this.rows.length; row += 1) {
      const depth = this.plainDepth(row);
      if (depth > closedAt) continue;
      closedAt = Infinity;
      if (filtered && this.kept[row] === 0) continue;
      const fold = filtered ? undefined : this.folds.byFirst.get(row);
      if (fold) {
        visible.push(~fold.id);
        if (!fold.open) {
          row = fold.end - 1;
          continue;
        }
      }
      visible.push(row);
      const closed = filtered ? this.closedInFilter.has(row) : this.open[row] !== true;
      if (closed) closedAt = depth;
    }
    this.visible = visible;
  }

  /** The rows from the root to `row`, by depth. */
  private trailTo(row: number): number[] {
    const trail: number[] = [];
    for (let up = row; up >= 0; up = this.parents[up] ?? -1) trail[this.plainDepth(up)] = up;
    return trail;
  }
}

/** The depth above which rows open at first: all of a small tree, else what fits a screen. */
function comfortableDepth(rows: readonly TreeRow[]): number {
  const counts: number[] = [];
  for (const [, depth] of rows) counts[depth] = (counts[depth] ?? 0) + 1;
  let shown = 0;
  for (let depth = 0; depth < counts.length; depth += 1) {
    shown += counts[depth] ?? 0;
    if (shown > COMFORTABLE && depth > 1) return depth - 1;
  }
  return counts.length;
}
