/** Which plane of a tensor is wanted: the dims shown down and across, and an index for the rest. */

import type { PlaneOf } from "./picks";
import type { TileReply } from "./protocol";

export class PlaneView {
  shape: readonly number[] = [];
  names: readonly string[] = [];
  /** null: as the kernel has it, the last two. */
  private rows: number | null = null;
  private columns: number | null = null;
  private at: number[] = [];

  /** Start over: another site is shown. */
  reset(): void {
    this.rows = null;
    this.columns = null;
    this.at = [];
  }

  /** Whether it is what the kernel shows without being told. */
  get plain(): boolean {
    return this.rows === null && this.at.every((index) => index === 0);
  }

  get rowsDim(): number {
    return this.rows ?? this.shape.length - 2;
  }
  get columnsDim(): number {
    return this.columns ?? this.shape.length - 1;
  }

  /** The dims that are not shown. */
  others(): number[] {
    return this.shape.map((_, dim) => dim).filter((dim) => dim !== this.rowsDim && dim !== this.columnsDim);
  }

  indexOf(dim: number): number {
    return this.at[dim] ?? 0;
  }

  /** "head", or "dim 1" where nobody knows. */
  nameOf(dim: number): string {
    const name = this.names[dim] ?? "";
    const twice = this.names.filter((other) => other === name).length > 1;
    return name === "" ? `dim ${dim}` : twice ? `${name} (dim ${dim})` : name;
  }

  /** Take the shape of what arrived. Returns whether dims or shape are other than before. */
  follow(reply: TileReply): boolean {
    const same = reply.shape.join() === this.shape.join() && reply.dims.join() === this.names.join();
    this.shape = reply.shape;
    this.names = reply.dims;
    this.at = reply.shape.map((length, dim) => Math.max(0, Math.min(this.at[dim] ?? 0, length - 1)));
    return !same;
  }

  setIndex(dim: number, wanted: number): number {
    const last = Math.max(0, (this.shape[dim] ?? 1) - 1);
    const index = Math.max(0, Math.min(last, Number.isFinite(wanted) ? Math.round(wanted) : 0));
    this.at[dim] = index;
    return index;
  }

  /** Show `dim` at a side; the dim that was there takes the place where this one was shown. */
  show(side: "rows" | "columns", dim: number): void {
    const [rows, columns] = [this.rowsDim, this.columnsDim];
    if (side === "rows") {
      this.rows = dim;
      this.columns = dim === columns ? rows : columns;
    } else {
      this.columns = dim;
      this.rows = dim === rows ? columns : rows;
    }
    if (this.rowsDim === this.shape.length - 2 && this.columnsDim === this.shape.length - 1) {
      this.rows = null;
      this.columns = null;
    }
  }

  /** As the kernel is asked. */
  params(): { rows_dim: number | null; columns_dim: number | null; index: number[] } {
    const index = this.others().map((dim) => this.indexOf(dim));
    return {
      rows_dim: this.rows,
      columns_dim: this.columns,
      index: index.some((at) => at !== 0) ? index : [],
    };
  }
}

/** How the plane of a tile lies in its tensor. */
export function planeOf(reply: TileReply, index: readonly number[]): PlaneOf {
  const { shape, rows_dim: rowsDim, columns_dim: columnsDim } = reply;
  const others = shape.map((_, dim) => dim).filter((dim) => dim !== rowsDim && dim !== columnsDim);
  const at = shape.map(() => 0);
  others.forEach((dim, i) => { at[dim] = index[i] ?? 0; });
  return { shape, rowsDim, columnsDim, at };
}
