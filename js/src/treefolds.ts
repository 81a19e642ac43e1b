/**
 * Folds: runs of sibling modules that are alike, such as a model's layers, shown as one row.
 *
 * Finds them while rows arrive, in one pass: a module is complete when a row at its depth or above
 * follows it. Two modules are alike when class, parameters, weights, notes, places and all that is
 * inside are. Knows nothing of what is open in the tree or drawn.
 */

/** Fewer alike siblings than this stay rows of their own. */
export const FOLD_LEAST = 5;

export interface Fold {
  id: number;
  first: number;
  /** The row after the last one of the last member. */
  end: number;
  /** The direct members, in order. */
  members: number[];
  open: boolean;
}

interface Frame {
  row: number;
  depth: number;
  own: string;
  inside: number[];
  names: string[];
  /** The run of alike numbered children that the last child belongs to. */
  run: { look: number; members: number[]; fold: Fold | null } | null;
}

const NUMBER = /^\d+$/;

export class Folds {
  readonly all: Fold[] = [];
  /** By a direct member's row, the fold that it is in. */
  readonly ofMember = new Map<number, Fold>();
  readonly byFirst = new Map<number, Fold>();
  private readonly looks = new Map<string, number>();
  private readonly frames: Frame[] = [];

  /** Take the next row: its depth, its name and all that makes it like another. */
  add(row: number, depth: number, name: string, own: string): void {
    this.close(depth, row);
    this.frames.at(-1)?.names.push(name);
    this.frames.push({ row, depth, own, inside: [], names: [], run: null });
  }

  /** The first row of a numbered module that is not complete yet, and may join a fold. */
  unfinished(): number {
    const at = this.frames.findIndex((_, i) => i > 0 && NUMBER.test(this.frames[i - 1]?.names.at(-1) ?? ""));
    return this.frames[at]?.row ?? Infinity;
  }

  /** All modules at `depth` or below are complete; `end` is the row after them. */
  close(depth: number, end: number): void {
    for (let last = this.frames.at(-1); last && last.depth >= depth; last = this.frames.at(-1)) {
      this.frames.pop();
      const look = this.lookOf(last);
      const above = this.frames.at(-1);
      if (above) this.join(above, last.row, look, end);
    }
  }

  private lookOf({ own, inside, names }: Frame): number {
    const key = `${own}\n${inside.join()}\n${names.join("\n")}`;
    const known = this.looks.get(key) ?? this.looks.size;
    this.looks.set(key, known);
    return known;
  }

  private join(above: Frame, row: number, look: number, end: number): void {
    above.inside.push(look);
    const name = above.names.at(-1) ?? "";
    if (!NUMBER.test(name)) {
      above.run = null;
      return;
    }
    if (above.run?.look !== look) above.run = { look, members: [], fold: null };
    const { run } = above;
    run.members.push(row);
    if (run.members.length < FOLD_LEAST) return;
    if (!run.fold) {
      run.fold = { id: this.all.length, first: run.members[0] ?? row, end, members: run.members, open: false };
      this.all.push(run.fold);
      this.byFirst.set(run.fold.first, run.fold);
      for (const member of run.members) this.ofMember.set(member, run.fold);
    }
    run.fold.end = end;
    this.ofMember.set(row, run.fold);
  }
}
