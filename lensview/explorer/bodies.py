"""Bodies: what replies to the views of a site, to edits and about ranks hold.

A part of `protocol.py`, which explains how they travel. ``js/src/bodies.ts`` mirrors it field by
field; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

# --- views of a site besides its heatmap ---------------------------------------------------------


@dataclass(frozen=True)
class ViewReason:
    """Why a view does not apply to a site; "" where it does."""

    view: str
    reason: str


@dataclass(frozen=True)
class ViewsReply:
    """Reply to ``views``: one entry per view besides the heatmap."""

    site: str
    reasons: list[ViewReason]


@dataclass(frozen=True)
class DistributionReply:
    """Reply to ``distribution``: elements of the latest run per bin of equal width from `low` to
    `high`, and of the run without interventions (empty where that is the same run). `shares` are
    those of the quantiles in `values` and `baseline_values`."""

    site: str
    run: int
    low: float
    high: float
    counts: list[int]
    baseline_counts: list[int]
    finite: int
    nan: int
    inf: int
    baseline_nan: int
    baseline_inf: int
    shares: list[float]
    values: list[float]
    baseline_values: list[float]
    stats: str
    note: str


@dataclass(frozen=True)
class NormsReply:
    """Reply to ``norms``: L2 norm and root mean square of each row, of the latest run and of the
    one without interventions (empty where that is the same run). `rows_are` says what the rows are;
    `labels` are token labels, only where they are tokens. `index` is what was looked at of `shape`,
    one number per leading dim."""

    site: str
    run: int
    shape: list[int]
    index: list[int]
    rows_are: str
    labels: list[str]
    norm: list[float]
    rms: list[float]
    baseline_norm: list[float]
    baseline_rms: list[float]
    width: int
    note: str


@dataclass(frozen=True)
class AttentionReply:
    """Reply to ``attention``: the pattern of one head and small pictures of all.

    The first buffer is the head's `rows` x `columns` cells, each the largest of `row_step` x
    `column_step`; the second `heads` pictures of `small_rows` x `small_columns`. Rows are query
    tokens, columns key tokens. `difference` is the largest difference between the weights times the
    values and what the module got, whose largest magnitude is `largest`.
    """

    site: str
    path: str
    run: int
    batch: int
    row: int
    heads: int
    head: int
    queries: int
    keys: int
    rows: int
    columns: int
    row_step: int
    column_step: int
    small_rows: int
    small_columns: int
    high: float | None
    difference: float
    largest: float
    how: str
    query_labels: list[str]
    key_labels: list[str]


@dataclass(frozen=True)
class LensReply:
    """Reply to ``lens``: layers x tokens x k flat lists, the likeliest token first.

    `start` is the number of the first token shown of `total`. `before` are the probabilities of the
    same tokens in the run without interventions (empty where that is the same run). `texts[i]` is
    the label of the token id `vocabulary[i]`. `way` names norm and head; `difference` is from the
    model's own logits.
    """

    run: int
    sites: list[str]
    labels: list[str]
    start: int
    total: int
    batch: int
    row: int
    k: int
    ids: list[int]
    probabilities: list[float]
    before: list[float]
    vocabulary: list[int]
    texts: list[str]
    way: str
    difference: float


@dataclass(frozen=True)
class SourceRow:
    """One line of code, and the sites and shapes of the ops met there."""

    number: int
    text: str
    function: str
    sites: list[str]
    shapes: list[str]


@dataclass(frozen=True)
class SourceReply:
    """Reply to ``source``: the code of the forward of the module at `path`."""

    path: str
    run: int
    calls: int
    lines: list[SourceRow]
    note: str


# --- editing and comparing ------------------------------------------------------------------


@dataclass(frozen=True)
class EffectReply:
    """Reply to ``effect``. `first` is the first site whose record differs, ``""`` where none does;
    `moved` says whether the logits of the last token do, null without logits."""

    id: str
    text: str
    first: str
    moved: bool | None


@dataclass(frozen=True)
class NamedValue:
    """A variable of the user's: a tensor's shape, or what else it is."""

    name: str
    about: str


@dataclass(frozen=True)
class NamesReply:
    """Reply to ``names``: those that may fit, the best first; names and shapes, no values."""

    names: list[NamedValue]


@dataclass(frozen=True)
class CostChoice:
    """One way to record less. `bytes` is null where it could not be told; `note` says why."""

    name: str
    sites: list[str]
    keep: str
    bytes: int | None
    note: str


@dataclass(frozen=True)
class CostReply:
    """Reply to ``estimate``: what one run would hold, twice that with interventions. `bytes` is
    null where `note` says why it is unknown."""

    sites: int
    bytes: int | None
    limit: int | None
    largest: list[str]
    choices: list[CostChoice]
    note: str


@dataclass(frozen=True)
class SavedReply:
    """Reply to ``save``. With `exists`, nothing was written: ask with `replace`."""

    path: str
    bytes: int
    exists: bool


@dataclass(frozen=True)
class RankRow:
    """One rank: `state` is starting, idle, running, stopped or gone; `doing` a command, or how it
    ended; `since` seconds; `memory` and `gpu_memory` bytes; `line` the last that it printed."""

    rank: int
    group: int
    host: str
    state: str
    doing: str
    since: float
    memory: int
    gpu_memory: int
    line: str


@dataclass(frozen=True)
class RanksReply:
    """Reply to ``ranks``: no rows where the session is in one process. `pieces` is in how many
    pieces the value at `site` lies, 0 where not in any that can be shown; `lies` says how it lies
    over the ranks."""

    rows: list[RankRow]
    pieces: int
    lies: str
