"""Replies: traces, trees and tiles in the shape of the explorer's messages.

Owns the way from what the core gives to the dataclasses of `protocol.py`, and the limits that keep
every message below `MAX_MESSAGE_BYTES`. It decides nothing and keeps nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ..errors import InputError, NotRecordedError
from ..modules import ModuleRow
from ..session import Session
from ..sites import Site
from ..tensors.labels import token_labels
from ..tensors.planes import plane_dims
from ..tensors.tiles import Tile
from ..traces.trace import Trace
from .dims import dim_names, labels_beside
from .protocol import (
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    Hello,
    InterventionRow,
    Limits,
    NextToken,
    State,
    TileParams,
    TileReply,
    TreePage,
)
from .rows import MAX_TEXT, TYPED
from .runs import Latest, Runs

PAGE_BYTES = 768 << 10
"""Of a page of the tree or of shapes; the rest of a message is slack."""
LABEL_BYTES = 192 << 10
"""Of the prompt's token labels in a state."""
MAX_NOTE = 2_000
MAX_ROW_ERROR = 600
_OVERHEAD = 8 << 10
_SHORTEST_LABEL = 4


def json_bytes(value: Any) -> int:
    """The size of a value as the JSON that is sent."""
    return len(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))


def strict(value: Any) -> Any:
    """The same value for strict JSON: NaN and infinities as texts, no lone surrogates."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {strict(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    return value


def clip(text: str, most: int) -> str:
    """At most `most` characters, the last an ellipsis where some were cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def fit_labels(labels: Sequence[str], budget: int) -> list[str]:
    """Labels cut so that all together fit `budget` bytes; none at all where they cannot."""
    most = max([_SHORTEST_LABEL, *map(len, labels)])
    while most >= _SHORTEST_LABEL:
        cut = [clip(label, most) for label in labels]
        if json_bytes(cut) <= budget:
            return cut
        most //= 2
    return []


# --- state -----------------------------------------------------------------------------------


def state_of(runs: Runs, selected: str, overlays: int = 0) -> State:
    """All that a view shows besides tree and tiles."""
    with runs.lock:
        latest, wanted, pair = runs.shown(), runs.wanted, runs.pair
        rows = [e.row for e in wanted.entries]
        busy, failure, prompt = runs.busy, runs.failure, wanted.prompt
        stale = latest.trace is not None and latest.inputs is not wanted.inputs and not busy
        more = _more(runs)
    tokenizer = runs.session.tokenizer
    notes = [*latest.notes, *_labels_note(latest)]
    if pair is not None:
        notes = pair.notes()
    elif stale:
        notes.insert(0, f"The values shown are still those of {_named(latest.inputs)}.")
    faulty = sum(1 for row in rows if row.enabled and row.error)
    if faulty and latest.run:
        notes.insert(0, f"{faulty} intervention(s) could not run and were left out: see the rows.")
    if failure:
        notes.insert(0, failure)
    return State(
        run=latest.run,
        prompt=prompt,
        selected=selected,
        busy=busy,
        tokens=_tokens(latest),
        baseline=_labelled(latest.top_baseline, tokenizer),
        edited=_labelled(latest.top_edited, tokenizer),
        interventions=[_bounded(row) for row in rows],
        notes=[clip(note, MAX_NOTE) for note in notes],
        overlays=overlays,
        divergence=latest.divergence,
        **more,
    )


def _more(runs: Runs) -> dict[str, Any]:
    """What a state says of history, timeline, trust and limits."""
    wanted, kept, pair = runs.wanted, runs.timeline, runs.pair
    judged = pair.second if pair is not None else kept.runs[-1] if kept.runs else None
    checks = judged.all_checks if judged is not None else ()
    return {
        "can_undo": runs.history.can_undo,
        "can_redo": runs.history.can_redo,
        "runs": [run.row() for run in kept],
        "pair": pair.numbers if pair is not None else [],
        "checks": [replace(c, reason=clip(c.reason, MAX_NOTE)) for c in checks],
        "limits": Limits(
            list(wanted.sites), wanted.keep, runs.max_bytes, kept.held_bytes, kept.limit
        ),
    }


def _named(inputs: Any) -> str:
    return f"“{clip(inputs, 80)}”" if isinstance(inputs, str) else "the inputs given in code"


def _tokens(latest: Latest) -> list[str]:
    if latest.trace is None or latest.trace.tokens is None:
        return []
    return fit_labels(latest.trace.tokens.labels[0], LABEL_BYTES)


def _labels_note(latest: Latest) -> list[str]:
    tokens = None if latest.trace is None else latest.trace.tokens
    if tokens is not None and tokens.labels[0] and not _tokens(latest):
        return [f"The {len(tokens.labels[0]):,} tokens are too many to list."]
    return []


def _labelled(top: Sequence[NextToken], tokenizer: object | None) -> list[NextToken]:
    texts = token_labels(tokenizer, [t.id for t in top])
    return [NextToken(t.id, s, t.probability) for t, s in zip(top, texts, strict=True)]


def _bounded(row: InterventionRow) -> InterventionRow:
    return replace(
        row,
        site=clip(row.site, MAX_TEXT),
        index=clip(row.index, MAX_TEXT),
        value=clip(row.value, MAX_TEXT),
        error=clip(row.error, MAX_ROW_ERROR),
    )


def hello(session: Session, modules: int, state: State) -> Hello:
    """What a view gets first."""
    return Hello(
        version=PROTOCOL_VERSION,
        title=session.title,
        summary=session.summary,
        modules=modules,
        takes_text=session.tokenizer is not None,
        ranks=len(getattr(session, "ranks", ())),
        operations=list(TYPED),
        state=state,
    )


# --- the tree --------------------------------------------------------------------------------


def tree_page(rows: Sequence[ModuleRow], offset: int, limit: int) -> TreePage:
    """Rows from `offset` on, at most `limit` and as many as fit a message."""
    classes: dict[str, int] = {}
    places: dict[str, int] = {}
    page: list[list[Any]] = []
    size = 0
    for row in rows[offset : offset + limit]:
        known = len(classes)
        index = classes.setdefault(clip(row.class_name, 200), known)
        weights = "" if row.weights is None else " x ".join(map(str, row.weights))
        place = places.setdefault(f"{row.dtype} {row.device}".strip(), len(places))
        note = clip(row.note, 400)
        line = [row.name, row.depth, index, row.parameters, weights, note, place]
        size += json_bytes(line) + (json_bytes(row.class_name) if index == known else 0) + 2
        if size > PAGE_BYTES and page:
            break
        page.append(line)
    return TreePage(len(rows), offset, list(classes), list(places), page)


# --- tiles and values ------------------------------------------------------------------------


def tile_reply(session: Session, latest: Latest, wanted: TileParams) -> tuple[TileReply, bytes]:
    """The tile of a site that the latest run recorded, and its cells.

    Raises:
        NotRecordedError, SiteError: the run does not have it; says why.
        IndexError: index or window out of range.
    """
    trace, baseline = _traces(latest)
    site = wanted.site
    options: dict[str, Any] = {
        "window": wanted.window,
        "max_rows": wanted.max_rows,
        "max_columns": wanted.max_columns,
        "index": tuple(wanted.index),
        "rows_dim": wanted.rows_dim,
        "columns_dim": wanted.columns_dim,
        "percentile": wanted.percentile,
    }
    shown = baseline if wanted.which == "baseline" else trace
    if wanted.which == "difference":
        tile = session.difference_tile(trace, baseline, site, **options)
        stats = latest.difference
    else:
        tile = session.tile(shown, site, **options)
        stats = session.stats(shown, site).line()
    names = dim_names(shown, site, getattr(session.root, "config", None))
    rows, columns, note = _labels(shown, site, tile, names, wanted)
    down, across = plane_dims(tile.shape, wanted.rows_dim, wanted.columns_dim)
    reply = TileReply(
        site=site,
        run=latest.run,
        rows=tile.rows,
        columns=tile.columns,
        window=list(tile.window),
        row_step=tile.row_step,
        column_step=tile.column_step,
        plane=list(tile.plane),
        shape=list(tile.shape),
        dtype=tile.dtype,
        low=tile.low,
        high=tile.high,
        nan=tile.nan,
        inf=tile.inf,
        stats=stats,
        row_labels=rows,
        note="; ".join(n for n in (tile.note, note, shown.placement_note(site)) if n),
        rows_dim=-1 if down is None else down,
        columns_dim=-1 if across is None else across,
        dims=names,
        column_labels=columns,
        reach=tile.reach,
        sampled=tile.sampled,
    )
    return reply, tile.data


def _traces(latest: Latest) -> tuple[Trace, Trace]:
    if latest.run and (latest.trace is None or latest.baseline is None):
        raise NotRecordedError(
            "The values of a run that is compared were let go; its next tokens are kept. Restore "
            "it to run it again."
        )
    if latest.trace is None or latest.baseline is None:
        raise InputError("Nothing has run yet: give a prompt and run it.")
    return latest.trace, latest.baseline


def _labels(
    trace: Trace, site: str, tile: Tile, names: Sequence[str], wanted: TileParams
) -> tuple[list[str], list[str], str]:
    """One label per source row and per source column of the tile's window, and a remark."""
    down, across, note = labels_beside(
        trace, site, names, wanted.index, wanted.rows_dim, wanted.columns_dim
    )
    row0, row1, column0, column1 = tile.window
    budget = MAX_MESSAGE_BYTES - len(tile.data) - _OVERHEAD
    rows = fit_labels(down[row0:row1], budget // 2 if across else budget)
    columns = fit_labels(across[column0:column1], budget // 2 if down else budget)
    if len(rows) + len(columns) < len(down[row0:row1]) + len(across[column0:column1]):
        note = "too many rows to label: zoom in"
    return rows, columns, note


def value_text(
    session: Session, latest: Latest, site: str, which: str, index: Sequence[int]
) -> str:
    """One element exactly, as text; of a difference also what it is made of."""
    trace, baseline = _traces(latest)
    if which == "baseline":
        return session.value(baseline, site, index)
    now = session.value(trace, site, index)
    if which == "latest":
        return now
    before = session.value(baseline, site, index)
    change = _number(now, trace.dtype(site)) - _number(before, baseline.dtype(site))
    return f"{change!r} ({before} → {now})"


def _number(text: str, dtype: torch.dtype) -> float | complex:
    """What `Session.value` said, exactly: its text reads back as the same value of its dtype."""
    if dtype == torch.bool:
        return float(text == "True")
    if dtype.is_complex:
        return complex(torch.tensor(complex(text), dtype=dtype).item())
    if dtype.is_floating_point:
        return float(torch.tensor(float(text), dtype=torch.float64).to(dtype).double())
    return float(int(text))


def missing(latest: Latest, site: str, which: str) -> bool:
    """Whether a run with `site` added may show what the latest run does not hold.

    Raises:
        NotRecordedError, SiteError: it would not; says why.
    """
    trace, baseline = _traces(latest)
    holder = baseline if which == "baseline" else trace
    try:
        holder.record(site)
    except NotRecordedError:
        reason = holder.missed.get(str(Site.parse(site)), "left out")
        if reason.startswith("left out"):
            return True
        raise
    return False
