/**
 * The messages between a page and its kernel: a mirror of `lensview/explorer/protocol.py`, which
 * explains each field. A Python test holds the two together, so names here are the wire's.
 */

import type {
  ViewsReply,
  DistributionReply,
  NormsReply,
  AttentionReply,
  LensReply,
  SourceReply,
  EffectReply,
  NamesReply,
  CostReply,
  SavedReply,
  RanksReply,
} from "./bodies";
export type * from "./bodies";

export const PROTOCOL_VERSION = 1;

export type Method =
  | "hello"
  | "tree"
  | "outputs"
  | "run"
  | "select"
  | "tile"
  | "value"
  | "interventions"
  | "sizes"
  | "strips"
  | "cancel"
  | "views"
  | "distribution"
  | "norms"
  | "attention"
  | "lens"
  | "source"
  | "undo"
  | "redo"
  | "restore"
  | "pair"
  | "rename"
  | "verify"
  | "effect"
  | "names"
  | "estimate"
  | "limits"
  | "code"
  | "save"
  | "figure"
  | "ranks";

/** A float of Python: what JSON cannot write comes as a string. */
export type Float = number | "nan" | "inf" | "-inf";

export type Which = "latest" | "baseline" | "difference";

export interface Request {
  id: string;
  view: string;
  method: Method;
  params: Record<string, unknown>;
  key: string;
}

export interface Ok {
  id: string;
  result: Record<string, unknown>;
}

export interface Failed {
  id: string;
  type: string;
  message: string;
}

export interface Cancelled {
  id: string;
  reason: string;
}

export interface Progress {
  id: string;
  done: number;
  total: number;
  text: string;
}

export interface Event {
  state: State;
}

export interface NextToken {
  id: number;
  text: string;
  probability: Float;
}

export interface InterventionRow {
  id: string;
  enabled: boolean;
  site: string;
  operation: string;
  index: string;
  value: string;
  locked: boolean;
  error: string;
  changed: number | null;
}

export interface State {
  run: number;
  prompt: string;
  selected: string;
  busy: string;
  tokens: string[];
  baseline: NextToken[];
  edited: NextToken[];
  interventions: InterventionRow[];
  notes: string[];
  overlays: number;
  can_undo: boolean;
  can_redo: boolean;
  runs: RunRow[];
  pair: number[];
  divergence: Divergence | null;
  checks: Check[];
  limits: Limits | null;
}

export interface RunRow {
  number: number;
  name: string;
  prompt: string;
  interventions: string[];
  time: string;
  seconds: Float;
  seed: number | null;
  held: boolean;
  amber: number;
}

export interface Divergence {
  forward: Float | null;
  backward: Float | null;
  note: string;
}

export interface Check {
  name: string;
  ok: boolean | null;
  reason: string;
}

export interface Limits {
  sites: string[];
  keep: string;
  max_bytes: number | null;
  held_bytes: number;
  held_limit: number;
}

export interface Hello {
  version: number;
  title: string;
  summary: string;
  modules: number;
  takes_text: boolean;
  operations: string[];
  state: State;
  ranks: number;
}

/** `[name, depth, class, parameters, weights, note, place]` */
export type TreeRow = [string, number, number, number, string, string, number];

export interface TreePage {
  total: number;
  offset: number;
  classes: string[];
  places: string[];
  rows: TreeRow[];
}

export interface OutputsPage {
  run: number;
  offset: number;
  shapes: string[];
  rows: number[];
  calls: number[];
}

export interface SizesPage {
  run: number;
  offset: number;
  rms: (Float | null)[];
  odd: number[];
  changes: (Float | null)[];
  overlay_name: string;
  overlay: (Float | null)[];
}

export interface Strip {
  name: string;
  values: Float[];
}

export interface StripsReply {
  site: string;
  strips: Strip[];
}

export interface TileParams {
  site: string;
  which: Which;
  window: number[] | null;
  max_rows: number;
  max_columns: number;
  index: number[];
  rows_dim: number | null;
  columns_dim: number | null;
  percentile: Float | null;
  rank: number | null;
}

export interface TileReply {
  site: string;
  run: number;
  rows: number;
  columns: number;
  window: number[];
  row_step: number;
  column_step: number;
  plane: number[];
  shape: number[];
  dtype: string;
  low: Float | null;
  high: Float | null;
  nan: number;
  inf: number;
  stats: string;
  row_labels: string[];
  note: string;
  rows_dim: number;
  columns_dim: number;
  dims: string[];
  column_labels: string[];
  reach: Float | null;
  sampled: boolean;
}

export type Outgoing = Request & { kind: "req" };

export type Incoming =
  | (Ok & { kind: "ok" })
  | (Failed & { kind: "error" })
  | (Cancelled & { kind: "cancelled" })
  | (Progress & { kind: "progress" })
  | (Event & { kind: "event" });

/** What each method takes. */
export interface Params {
  hello: Record<string, never>;
  tree: { offset: number; limit: number };
  outputs: { offset: number; limit: number };
  run: { prompt: string };
  select: { site: string };
  tile: TileParams;
  value: { site: string; which: Which; index: number[]; rank: number | null };
  interventions: { rows: InterventionRow[] };
  sizes: { offset: number; limit: number };
  strips: { site: string };
  cancel: { id: string };
  views: { site: string };
  distribution: { site: string; bins: number };
  norms: { site: string; index: number[] };
  attention: { site: string; which: Which; row: number; head: number };
  lens: { which: Which; row: number; start: number };
  source: { site: string };
  undo: Record<string, never>;
  redo: Record<string, never>;
  restore: { number: number };
  pair: { first: number | null; second: number | null };
  rename: { number: number; name: string };
  verify: Record<string, never>;
  effect: { id: string };
  names: { site: string; operation: string };
  estimate: { prompt: string; sites: string[]; keep: string };
  limits: { sites: string[]; keep: string; max_mib: number | null };
  code: Record<string, never>;
  save: { path: string; what: "trace" | "baseline" | "html"; replace: boolean };
  figure: Record<string, never>;
  ranks: { site: string };
}

/** What each method answers. */
export interface Results {
  hello: Hello;
  tree: TreePage;
  outputs: OutputsPage;
  run: State;
  select: { site: string };
  tile: TileReply;
  value: { text: string };
  interventions: State;
  sizes: SizesPage;
  strips: StripsReply;
  cancel: Record<string, never>;
  views: ViewsReply;
  distribution: DistributionReply;
  norms: NormsReply;
  attention: AttentionReply;
  lens: LensReply;
  source: SourceReply;
  undo: State;
  redo: State;
  restore: State;
  pair: State;
  rename: State;
  verify: State;
  effect: EffectReply;
  names: NamesReply;
  estimate: CostReply;
  limits: State;
  code: { text: string };
  save: SavedReply;
  figure: { text: string };
  ranks: RanksReply;
}
