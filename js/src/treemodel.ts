/**
 * The module tree as arrays: which rows there are, which are visible, where a key leads.
 *
 * Rows arrive in definition order (parents before children), so a subtree is a run of rows and
 * the visible list is one pass over them. No element of the page is known here.
 */

import type { TreePage, TreeRow } from "./protocol";

/** Rows that a tree opens with, at most, beyond the first level. */
const COMFORTABLE = 60;

export class TreeModel {
  /** Row numbers in the order shown. */
  visible: number[] = [];
  total = 0;
  /** Number of rows that match the filter; 0 without one. */
  matches = 0;

  private readonly rows: TreeRow[] = [];
  private readonly classNames: string[] = [];
  private readonly paths: string[] = [];
  private readonly parents: number[] = [];
  private readonly open: boolean[] = [];
  private readonly byPath = new Map<string, number>();
  private shapes: string[] = [];
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
    if (this.openDepth < 0) this.openDepth = comfortableDepth(page.rows);
    const trail = this.trailTo(this.rows.length - 1);
    for (const row of page.rows) {
      const [name, depth, kind] = row;
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
      this.open.push(depth < this.openDepth);
    }
    if (this.query !== "") this.match();
    this.flatten();
  }

  /** Output shapes of the rows from `offset` on; "" where nothing was recorded. */
  setShapes(offset: number, texts: readonly string[]): void {
    if (offset === 0) this.shapes = [];
    texts.forEach((text, i) => {
      this.shapes[offset + i] = text;
    });
  }

  name(row: number): string {
    return this.rows[row]?.[0] ?? "";
  }
  depth(row: number): number {
    return this.rows[row]?.[1] ?? 0;
  }
  className(row: number): string {
    return this.classNames[row] ?? "";
  }
  parameters(row: number): number {
    return this.rows[row]?.[3] ?? 0;
  }
  weights(row: number): string {
    return this.rows[row]?.[4] ?? "";
  }
  note(row: number): string {
    return this.rows[row]?.[5] ?? "";
  }
  path(row: number): string {
    return this.paths[row] ?? "";
  }
  shape(row: number): string {
    return this.shapes[row] ?? "";
  }
  parent(row: number): number {
    return this.parents[row] ?? -1;
  }
  find(path: string): number {
    return this.byPath.get(path) ?? -1;
  }
  hasChildren(row: number): boolean {
    return row + 1 < this.rows.length && this.depth(row + 1) > this.depth(row);
  }

  isOpen(row: number): boolean {
    if (this.query !== "") return this.hasKeptChild(row) && !this.closedInFilter.has(row);
    return (this.open[row] ?? false) && this.hasChildren(row);
  }

  /** Whether the filter shows this row for its own sake, not for a row below it. */
  isMatch(row: number): boolean {
    return this.kept[row] === 2;
  }

  setOpen(row: number, open: boolean): void {
    if (this.query === "") this.open[row] = open;
    else if (open) this.closedInFilter.delete(row);
    else this.closedInFilter.add(row);
    this.flatten();
  }

  setAllOpen(open: boolean): void {
    this.closedInFilter.clear();
    for (let row = 0; row < this.open.length; row += 1) this.open[row] = open || row === 0;
    this.flatten();
  }

  /** Open all that is above `row`. */
  reveal(row: number): void {
    let changed = false;
    for (let up = this.parent(row); up >= 0; up = this.parent(up)) {
      changed ||= !this.isOpen(up);
      this.open[up] = true;
      this.closedInFilter.delete(up);
    }
    if (changed) this.flatten();
  }

  filter(query: string): void {
    this.query = query.trim().toLowerCase();
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
      if (!found(this.path(row).toLowerCase()) && !found(this.className(row).toLowerCase())) continue;
      this.matches += 1;
      this.kept[row] = 2;
      for (let up = this.parent(row); up >= 0 && this.kept[up] === 0; up = this.parent(up)) {
        this.kept[up] = 1;
      }
    }
  }

  private hasKeptChild(row: number): boolean {
    for (let next = row + 1; next < this.rows.length; next += 1) {
      if (this.depth(next) <= this.depth(row)) return false;
      if (this.kept[next] !== 0) return true;
    }
    return false;
  }

  private flatten(): void {
    const visible: number[] = [];
    const filtered = this.query !== "";
    let closedAt = Infinity;
    for (let row = 0; row < this.rows.length; row += 1) {
      const depth = this.depth(row);
      if (depth > closedAt) continue;
      closedAt = Infinity;
      if (filtered && this.kept[row] === 0) continue;
      visible.push(row);
      const closed = filtered ? this.closedInFilter.has(row) : this.open[row] !== true;
      if (closed) closedAt = depth;
    }
    this.visible = visible;
  }

  /** The rows from the root to `row`, by depth. */
  private trailTo(row: number): number[] {
    const trail: number[] = [];
    for (let up = row; up >= 0; up = this.parent(up)) trail[this.depth(up)] = up;
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

/** What a query finds: texts that hold it or, with a `*`, sites as globs write them (`*` stays
 * within a name, `**` crosses dots). */
function matcher(query: string): (text: string) => boolean {
  if (!query.includes("*")) return (text) => text.includes(query);
  const pieces = query.split(/(\*\*\.?|\*)/).map((piece) => {
    if (piece.startsWith("**")) return piece.endsWith(".") ? "(?:.*\\.)?" : ".*";
    return piece === "*" ? "[^.]+" : piece.replace(/[.+?^${}()|[\]\\]/g, "\\$&");
  });
  const glob = new RegExp(`^${pieces.join("")}$`);
  return (text) => glob.test(text);
}
