/**
 * What replies to views, edits and about ranks hold: a mirror of `lensview/explorer/bodies.py`, and a
 * part of `protocol.ts`.
 */

import type { Float } from "./protocol";

export interface ViewReason {
  view: string;
  reason: string;
}

export interface ViewsReply {
  site: string;
  reasons: ViewReason[];
}

export interface DistributionReply {
  site: string;
  run: number;
  low: Float;
  high: Float;
  counts: number[];
  baseline_counts: number[];
  finite: number;
  nan: number;
  inf: number;
  baseline_nan: number;
  baseline_inf: number;
  shares: Float[];
  values: Float[];
  baseline_values: Float[];
  stats: string;
  note: string;
}

export interface NormsReply {
  site: string;
  run: number;
  shape: number[];
  index: number[];
  rows_are: string;
  labels: string[];
  norm: Float[];
  rms: Float[];
  baseline_norm: Float[];
  baseline_rms: Float[];
  width: number;
  note: string;
}

export interface AttentionReply {
  site: string;
  path: string;
  run: number;
  batch: number;
  row: number;
  heads: number;
  head: number;
  queries: number;
  keys: number;
  rows: number;
  columns: number;
  row_step: number;
  column_step: number;
  small_rows: number;
  small_columns: number;
  high: Float | null;
  difference: Float;
  largest: Float;
  how: string;
  query_labels: string[];
  key_labels: string[];
}

export interface LensReply {
  run: number;
  sites: string[];
  labels: string[];
  start: number;
  total: number;
  batch: number;
  row: number;
  k: number;
  ids: number[];
  probabilities: Float[];
  before: Float[];
  vocabulary: number[];
  texts: string[];
  way: string;
  difference: Float;
}

export interface SourceRow {
  number: number;
  text: string;
  function: string;
  sites: string[];
  shapes: string[];
}

export interface SourceReply {
  path: string;
  run: number;
  calls: number;
  lines: SourceRow[];
  note: string;
}

export interface EffectReply {
  id: string;
  text: string;
  first: string;
  moved: boolean | null;
}

export interface NamedValue {
  name: string;
  about: string;
}

export interface NamesReply {
  names: NamedValue[];
}

export interface CostChoice {
  name: string;
  sites: string[];
  keep: string;
  bytes: number | null;
  note: string;
}

export interface CostReply {
  sites: number;
  bytes: number | null;
  limit: number | null;
  largest: string[];
  choices: CostChoice[];
  note: string;
}

export interface SavedReply {
  path: string;
  bytes: number;
  exists: boolean;
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
