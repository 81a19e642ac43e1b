/** What the page knows, in one observable value. Nothing here asks the kernel. */

import type { Silence } from "./client";
import type { Picked } from "./picks";
import type { EffectReply, Hello, InterventionRow, Progress, State, Which } from "./protocol";

export interface PageState {
  hello: Hello | null;
  kernel: State;
  /** The selected site, canonical; what was clicked while the kernel has not answered yet. */
  selected: string;
  which: Which;
  /** Rows of the tree that have arrived; the shapes' run number once they are known. */
  treeRows: number;
  shapesOf: number;
  /** The rows that were sent and have not been answered, or null. */
  sentRows: InterventionRow[] | null;
  /** A run of this view is in flight. */
  running: boolean;
  progress: Progress | null;
  silence: Silence;
  /** Requests in flight, except those that only follow the pointer. */
  working: number;
  /** What went wrong, for a person; empty when nothing did. `fatal`: nothing can be shown. */
  problem: string;
  fatal: boolean;
  notice: string;
  /** The sizes that the tree's bars show: changes when they have arrived. */
  sizesOf: string;
  /** The region of a value that was chosen to be edited (see picks.ts), or null. */
  picked: Picked | null;
  /** What rows of the table do by themselves, by id, as far as it was asked for. */
  effects: Readonly<Record<string, EffectReply>>;
  /** Whose piece of which value the heatmap shows, in place of the whole. */
  piece: { site: string; rank: number } | null;
}

const NO_STATE: State = {
  run: 0,
  prompt: "",
  selected: "",
  busy: "",
  tokens: [],
  baseline: [],
  edited: [],
  interventions: [],
  notes: [],
  overlays: 0,
  can_undo: false,
  can_redo: false,
  runs: [],
  pair: [],
  divergence: null,
  checks: [],
  limits: null,
};

export const INITIAL: PageState = {
  hello: null,
  kernel: NO_STATE,
  selected: "",
  which: "latest",
  treeRows: 0,
  shapesOf: -1,
  sentRows: null,
  running: false,
  progress: null,
  silence: "none",
  working: 0,
  problem: "",
  fatal: false,
  notice: "",
  sizesOf: "",
  picked: null,
  effects: {},
  piece: null,
};

export type Listener = (now: PageState, before: PageState) => void;

export class Store {
  private value: PageState = INITIAL;
  private readonly listeners = new Set<Listener>();

  get now(): PageState {
    return this.value;
  }

  set(change: Partial<PageState>): void {
    const before = this.value;
    this.value = { ...before, ...change };
    for (const listener of this.listeners) listener(this.value, before);
  }

  /** Call `listener` on every change until `signal` ends, and once now. */
  watch(signal: AbortSignal, listener: Listener): void {
    this.listeners.add(listener);
    signal.addEventListener("abort", () => this.listeners.delete(listener));
    listener(this.value, this.value);
  }
}

/** The rows to show: those on their way to the kernel, else the kernel's. */
export function rowsOf(state: PageState): InterventionRow[] {
  return state.sentRows ?? state.kernel.interventions;
}

/** The rank whose piece of the selected value is shown; null: the whole. */
export function pieceOf({ piece, selected }: PageState): number | null {
  return piece?.site === selected ? piece.rank : null;
}

/** Whether there is another run to compare with: without interventions, or one that was chosen. */
export function hasEdits(state: PageState): boolean {
  return state.kernel.pair.length > 0 || state.kernel.edited.length > 0 || state.kernel.interventions.some((row) => row.enabled);
}
