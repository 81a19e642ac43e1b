/** The rows of the interventions table as data: what each edit makes of them. */

import type { InterventionRow } from "./protocol";

/** What "Add" starts with: scaling by 0 is the plainest question that one can ask of a site. */
const FIRST = "scale";

/** The rows with one of them changed. */
export function withChange(
  rows: readonly InterventionRow[],
  id: string,
  change: Partial<InterventionRow>,
): InterventionRow[] {
  return rows.map((row) => (row.id === id ? { ...row, ...change, error: "", changed: null } : row));
}

/** The rows with a new one, whose id none of them has. */
export function withNew(
  rows: readonly InterventionRow[],
  site: string,
  operations: readonly string[],
  index = "",
): InterventionRow[] {
  const operation = operations.includes(FIRST) ? FIRST : (operations[0] ?? FIRST);
  return [...rows, {
    id: freeId(rows), enabled: true, site, operation, index,
    value: operation === FIRST ? "0" : "", locked: false, error: "", changed: null,
  }];
}

/** The rows with a copy of one below it. A value from code cannot be copied by its text. */
export function withCopy(rows: readonly InterventionRow[], id: string): InterventionRow[] {
  return rows.flatMap((row) =>
    row.id === id && !row.locked ? [row, { ...row, id: freeId(rows), error: "", changed: null }] : [row]);
}

/** The rows with one moved by so many places; the same rows where it is at the end already. */
export function withMove(rows: readonly InterventionRow[], id: string, by: number): readonly InterventionRow[] {
  const from = rows.findIndex((row) => row.id === id);
  const row = rows[from];
  const to = from + by;
  if (!row || to < 0 || to >= rows.length) return rows;
  const others = rows.filter((other) => other !== row);
  return [...others.slice(0, to), row, ...others.slice(to)];
}

function freeId(rows: readonly InterventionRow[]): string {
  const taken = new Set(rows.map((row) => row.id));
  let count = rows.length + 1;
  while (taken.has(`page-${count}`)) count += 1;
  return `page-${count}`;
}
