"""The messages between an explorer in the page and its kernel.

This module owns the shape of every message, as dataclasses, and their JSON; what replies to views,
edits and ranks hold is in ``bodies.py``. It does not send
anything (``widget.py``) and does not act on anything (``handlers.py``). ``js/src/protocol.ts``
mirrors it field by field; a test holds the two together.

A request gets exactly one of `Ok`, `Failed` or `Cancelled`, and any number of `Progress` before
it. `Event` comes unasked and may be lost: whatever it tells can be asked for again with `hello`.
Numbers that JSON cannot write (NaN, infinities) travel as the strings ``"nan"``, ``"inf"`` and
``"-inf"``; tensors travel as one little-endian float32 buffer beside the message.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 20
"""No message, buffers included, is larger than this."""

Method = Literal[
    "hello",  # {} -> Hello
    "tree",  # {offset, limit} -> TreePage
    "outputs",  # {offset, limit} -> OutputsPage
    "run",  # {prompt} -> State; superseded by a later run
    "select",  # {site} -> {site}: the canonical text; sets the `selected` trait
    "tile",  # TileParams -> TileReply + one float32 buffer; superseded per view
    "value",  # {site, which, index, rank} -> {text}: one element, exactly
    "interventions",  # {rows: InterventionRow[]} -> State; validates, then runs again
    "sizes",  # {offset, limit} -> SizesPage
    "strips",  # {site} -> StripsReply
    "cancel",  # {id} -> {}: asks the request with this id to stop
    "views",  # {site} -> ViewsReply
    "distribution",  # {site, bins} -> DistributionReply
    "norms",  # {site, index} -> NormsReply
    "attention",  # {site, which, row, head} -> AttentionReply + two float32 buffers
    "lens",  # {which, row, start} -> LensReply
    "source",  # {site} -> SourceReply
    # -- editing and comparing
    "undo",  # {} -> State: the table as it was before its last change, and a run
    "redo",  # {} -> State
    "restore",  # {number} -> State: prompt and interventions of a run of the timeline, and a run
    "pair",  # {first, second} -> State: compare two runs of the timeline; null, null ends it
    "rename",  # {number, name} -> State
    "verify",  # {} -> State: compares the latest run without interventions with a plain call
    "effect",  # {id} -> EffectReply: one row, alone, against the run without any
    "names",  # {site, operation} -> NamesReply: variables of the user that may fit there
    "estimate",  # {prompt, sites, keep} -> CostReply; runs nothing
    "limits",  # {sites, keep, max_mib} -> State: what later runs record
    "code",  # {} -> {text}: Python that reproduces what is shown
    "save",  # {path, what, replace} -> SavedReply
    "figure",  # {} -> {text}: makes a plotly figure of the selected site; how to see it
    "ranks",  # {site} -> RanksReply; no rank is asked for it
]


@dataclass(frozen=True)
class Request:
    """Page -> kernel. `view` names one rendered copy of the widget; `key`, when not empty, says
    "only the latest request of this view with this key matters"."""

    kind: ClassVar[str] = "req"
    id: str
    view: str
    method: str
    params: dict[str, Any] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class Ok:
    """Kernel -> page: the request is done."""

    kind: ClassVar[str] = "ok"
    id: str
    result: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    """Kernel -> page: the request failed; `message` is a text for a person, never markup."""

    kind: ClassVar[str] = "error"
    id: str
    type: str
    message: str


@dataclass(frozen=True)
class Cancelled:
    """Kernel -> page: the request was cancelled, or a newer one with its key took its place."""

    kind: ClassVar[str] = "cancelled"
    id: str
    reason: str


@dataclass(frozen=True)
class Progress:
    """Kernel -> page: at most ten a second. `total` is 0 while it is not known."""

    kind: ClassVar[str] = "progress"
    id: str
    done: int
    total: int
    text: str


@dataclass(frozen=True)
class Event:
    """Kernel -> page, unasked: the explorer's state has changed (from code or another view)."""

    kind: ClassVar[str] = "event"
    state: dict[str, Any]


@dataclass(frozen=True)
class NextToken:
    """One row of a next-token table."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class InterventionRow:
    """One row of the interventions table.

    `operation` is one of the names in `Hello.operations`. `index` is a torch-style index as text
    (``""`` is everything, ``"0, 3"``, ``":, 1:3"``). `value` is what the operation takes, as text:
    a number for scale, add and put, ``"low, high"`` for clamp, nothing for zero. `locked` rows
    came from code with a value that has no text form (a tensor): site, index and enabled can
    still be changed, operation and value cannot. `error` is empty, or says why the row cannot
    run; `changed` is the number of elements that the last run changed, or null.
    """

    id: str
    enabled: bool
    site: str
    operation: str
    index: str
    value: str
    locked: bool = False
    error: str = ""
    changed: int | None = None


@dataclass(frozen=True)
class RunRow:
    """One run of the timeline.

    `number` counts from 1 and is what a patch names ("run 3"). `prompt` and `interventions` are
    short texts. `time` is ISO 8601 in the kernel's zone, `seconds` the run's length, `seed` the
    one that torch was seeded with last (null over ranks). `held` says whether its values are still
    there; its plan and its next tokens always are. `amber` counts checks that found something.
    """

    number: int
    name: str
    prompt: str
    interventions: list[str]
    time: str
    seconds: float
    seed: int | None
    held: bool
    amber: int


@dataclass(frozen=True)
class Divergence:
    """How far two next-token distributions are apart, in nats: Kullback-Leibler, over the whole
    vocabulary, computed in float64. `forward` is KL(first || second), `backward` KL(second ||
    first); null where there is none, and `note` says why."""

    forward: float | None
    backward: float | None
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One reason to believe a run, or not to: green where `ok`, else amber."""

    name: str
    ok: bool | None
    reason: str


@dataclass(frozen=True)
class Limits:
    """What later runs record: `sites`, how much of each value (`keep`: ``""`` all of it,
    ``"last token"``, ``"half"`` for bfloat16) and at most `max_bytes` for a run (null has no
    limit). `held_bytes` of `held_limit` are what the timeline holds."""

    sites: list[str]
    keep: str
    max_bytes: int | None
    held_bytes: int
    held_limit: int


@dataclass(frozen=True)
class State:
    """All that a view shows besides the tree and the tiles. Small by rule.

    `run` counts runs and changes whenever tiles or outputs may have: 0 before the first.
    `tokens` are the labels of the real tokens of batch row 0. `edited` is empty unless an
    enabled intervention ran. `busy` names the run in progress or is empty. `overlays` changes with
    every call of `Explorer.overlay`.

    `runs` are the timeline's latest, oldest first. While `pair` holds two of their numbers, tiles
    and tables are of these: the first takes the place of the baseline, the second that of the
    latest run. `divergence` is of `baseline` and `edited`, null without a second table.
    """

    run: int
    prompt: str
    selected: str
    busy: str
    tokens: list[str]
    baseline: list[NextToken]
    edited: list[NextToken]
    interventions: list[InterventionRow]
    notes: list[str]
    overlays: int
    can_undo: bool = False
    can_redo: bool = False
    runs: list[RunRow] = field(default_factory=list)
    pair: list[int] = field(default_factory=list)
    divergence: Divergence | None = None
    checks: list[Check] = field(default_factory=list)
    limits: Limits | None = None


@dataclass(frozen=True)
class Hello:
    """Reply to ``hello``: what does not change while the explorer lives, and the state.

    `operations` are those that can be typed in the table; a locked row may have another. `ranks`
    is how many processes hold the model, 0 where it is in the kernel's own.
    """

    version: int
    title: str
    summary: str
    modules: int
    takes_text: bool
    operations: list[str]
    state: State
    ranks: int = 0


@dataclass(frozen=True)
class TreePage:
    """Reply to ``tree``: rows ``offset`` to ``offset + len(rows)`` of ``total``, in definition
    order (parents before children).

    Each row is ``[name, depth, class, parameters, weights, note, place]``: `name` the last segment
    of the path as written in a site (the root's is ``""``, depth 0; a child of the root has depth
    1), `class` an index into `classes`, `parameters` the number of elements in the whole
    subtree, `weights` the shape of the module's own main weight as text (``"576 x 1536"``) or
    ``""``, `note` short remarks (``"tied, container"``) or ``""``, `place` an index into `places`,
    which are the dtype and the device of that weight (``"float32 cpu"``).
    """

    total: int
    offset: int
    classes: list[str]
    places: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class OutputsPage:
    """Reply to ``outputs``: per tree row, the shape of its output in the latest run.

    `rows[i]` is an index into `shapes`, or -1 where the latest run recorded nothing there.
    `calls[i]` is how often the module was called in it, -1 where nobody counted.
    """

    run: int
    offset: int
    shapes: list[str]
    rows: list[int]
    calls: list[int]


@dataclass(frozen=True)
class SizesPage:
    """Reply to ``sizes``: per tree row, how large its output was in the latest run.

    `rms` is the root mean square over the finite elements of the first call's output, null where
    nothing was recorded or nothing is finite; `odd` counts the NaN and infinite ones. `changes` is
    the same of the difference to the run without interventions, empty where none was on. `overlay`
    are the numbers that the user's code laid over the modules under `overlay_name`, empty without
    any. A page ends early where its numbers took long: ask on from ``offset + len(rms)``.
    """

    run: int
    offset: int
    rms: list[float | None]
    odd: list[int]
    changes: list[float | None]
    overlay_name: str
    overlay: list[float | None]


@dataclass(frozen=True)
class Strip:
    """Numbers of the user's code, one per token of a site."""

    name: str
    values: list[float]


@dataclass(frozen=True)
class StripsReply:
    """Reply to ``strips``: what the user's code laid beside the rows of a site."""

    site: str
    strips: list[Strip]


@dataclass(frozen=True)
class TileParams:
    """Params of ``tile``. `which` picks the latest run (edited where interventions are on), the
    run without interventions, or their difference. `window` is ``[row0, row1, column0,
    column1]`` in source cells, half open, or null for everything. `max_rows` and `max_columns`
    bound the reply (the page passes its pixels). `rows_dim` and `columns_dim` are the tensor's dims
    that are shown down and across, null for the last two; `index` fixes the others, one int each
    in order; missing ones are 0. With a `percentile`, the reply has a `reach`. `rank` asks for what
    that rank holds of the value, not null only where ``ranks`` says that it lies in pieces."""

    site: str
    which: Literal["latest", "baseline", "difference"]
    window: list[int] | None
    max_rows: int
    max_columns: int
    index: list[int]
    rows_dim: int | None = None
    columns_dim: int | None = None
    percentile: float | None = None
    rank: int | None = None


@dataclass(frozen=True)
class TileReply:
    """Reply to ``tile``; the cells are its one buffer, float32, row after row.

    A cell that stands for several source cells (`row_step` x `column_step` of them) is the one
    of largest magnitude, NaN before all. `rows` x `columns` cells cover `window` of a plane of
    `plane` = ``[rows, columns]``. `shape` is the whole tensor's. `low` and `high` are the finite
    extremes of the plane, null where it has none; `nan`, `inf` its counts. `stats` is a line of
    statistics over the whole tensor. `row_labels` are token labels, one for each source row of
    `window`, only where the plane's rows are the run's tokens, else empty; `column_labels` too.
    `note` says what the reader must know ("each cell is the largest of 4 x 2", "rows are not
    tokens"), or is empty. `rows_dim` and `columns_dim` are the dims shown, -1 where the tensor has
    too few; `dims` names every dim, "" where it is not known. `reach` is the magnitude that the
    asked percentage of the plane's finite values do not exceed; of a sample where `sampled`.
    """

    site: str
    run: int
    rows: int
    columns: int
    window: list[int]
    row_step: int
    column_step: int
    plane: list[int]
    shape: list[int]
    dtype: str
    low: float | None
    high: float | None
    nan: int
    inf: int
    stats: str
    row_labels: list[str]
    note: str
    rows_dim: int
    columns_dim: int
    dims: list[str]
    column_labels: list[str]
    reach: float | None
    sampled: bool


def message(body: Request | Ok | Failed | Cancelled | Progress | Event) -> dict[str, Any]:
    """The JSON object of a message: its fields and its ``kind``."""
    return {"kind": body.kind, **asdict(body)}
