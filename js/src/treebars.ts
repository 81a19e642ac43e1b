/**
 * The bars of the tree: how large each module's output is, how much it changed, or the user's own
 * numbers. Knows numbers and shares of a bar, not rows on screen.
 */

import { float } from "./format";

export type BarKind = "rms" | "change" | "overlay";

/** A bar is empty for what is this much smaller than the largest, on the log scale. */
const DECADES = 6; // and so in the head's text
/** What is there at all is seen. */
const LEAST = 0.05;

export class TreeBars {
  kind: BarKind = "rms";
  name = "";
  private rms: (number | null)[] = [];
  private odd: number[] = [];
  private changes: (number | null)[] = [];
  private overlay: (number | null)[] = [];
  private largest = 0;

  /** Take the numbers of the rows from `offset` on. */
  set(offset: number, page: {
    rms: (number | null)[]; odd: number[]; changes: (number | null)[];
    name: string; overlay: (number | null)[];
  }): void {
    if (offset === 0) this.clear();
    page.rms.forEach((value, i) => { this.rms[offset + i] = value; });
    page.odd.forEach((value, i) => { this.odd[offset + i] = value; });
    page.changes.forEach((value, i) => { this.changes[offset + i] = value; });
    page.overlay.forEach((value, i) => { this.overlay[offset + i] = value; });
    this.name = page.name;
    this.kind = page.name !== "" ? "overlay" : this.changes.length > 0 ? "change" : "rms";
    for (const value of this.shown()) {
      if (value !== null && Number.isFinite(value)) this.largest = Math.max(this.largest, Math.abs(value));
    }
  }

  clear(): void {
    this.rms = [];
    this.odd = [];
    this.changes = [];
    this.overlay = [];
    this.largest = 0;
  }

  private shown(): (number | null)[] {
    return this.kind === "overlay" ? this.overlay : this.kind === "change" ? this.changes : this.rms;
  }

  value(row: number): number | null {
    return this.shown()[row] ?? null;
  }

  /** How many elements of the row's output are NaN or infinite. */
  oddOf(row: number): number {
    return this.odd[row] ?? 0;
  }

  /** How much of the bar is filled, from 0 to 1; 0 for what is 0 or nothing. */
  share(row: number): number {
    const value = this.value(row);
    if (value === null || value === 0 || !(this.largest > 0)) return 0;
    if (!Number.isFinite(value)) return Number.isNaN(value) ? 0 : 1;
    const part = Math.abs(value) / this.largest;
    const share = this.kind === "overlay" ? part : 1 + Math.log10(part) / DECADES;
    return Math.max(LEAST, Math.min(1, share));
  }

  /** The head of the column, and what its bars mean. */
  head(): [string, string] {
    const log = `Log scale: a full bar is ${float(this.largest, 3)}, the largest here; an empty one ` +
      `10⁻⁶ of it or less.`;
    if (this.kind === "overlay") {
      return [this.name, `${this.name}: numbers of your code. Linear scale: a full bar is ${float(this.largest, 3)}.`];
    }
    if (this.kind === "change") {
      return ["Δ rms", `Root mean square of the edited run's output minus the baseline's. ${log}`];
    }
    return ["rms", `Root mean square of the output, over its finite elements. ${log}`];
  }

  /** The row's numbers in words; "" where there is none. */
  say(row: number): string {
    const said: string[] = [];
    const tell = (name: string, value: number | null | undefined): void => {
      if (value !== null && value !== undefined) said.push(`${name} ${float(value)}`);
    };
    tell(this.name, this.overlay[row]);
    tell("rms", this.rms[row]);
    if (this.changes.length > 0) tell("rms of the change", this.changes[row]);
    const odd = this.oddOf(row);
    if (odd > 0) said.push(`${odd} NaN or infinite`);
    return said.join(" · ");
  }
}
