/**
 * The messages between a page and its kernel: a mirror of `lensview/explorer/protocol.py`, which
 * explains each field. A Python test holds the two together, so names here are the wire's.
 */

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
  | "cancel"
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

/** `[name, depth, class, parameters, weights, note]` */
export type TreeRow = [string, number, number, number, string, string];

export interface TreePage {
  total: number;
  offset: number;
  classes: string[];
  rows: TreeRow[];
}

export interface OutputsPage {
  run: number;
  offset: number;
  shapes: string[];
  rows: number[];
}

export interface TileParams {
  site: string;
  which: Which;
  window: number[] | null;
  max_rows: number;
  max_columns: number;
  index: number[];
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
}

export interface RankRow {
  rank: number;
  group: number;
  host: string;
  state: string;
  doing: string;
  since: Float;
  memory: number;
  gpu_memory: number;
  line: string;
}

export interface RanksReply {
  rows: RankRow[];
  pieces: number;
  lies: string;
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
  cancel: { id: string };
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
  cancel: Record<string, never>;
  ranks: RanksReply;
}
