"""View replies: distributions, norms, attention, logit lens and source as messages.

Owns the way from what the core gives to the dataclasses of `protocol.py`, and the limits that keep
each below `MAX_MESSAGE_BYTES`. It decides nothing and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..capture.lens import LogitLens
from ..capture.source import Source
from ..tensors.distribution import QUANTILES
from ..tensors.labels import token_labels
from ..tensors.tiles import tile
from ..traces.attention import Attention
from ..traces.tokens import UNUSUAL_ROWS
from ..traces.trace import Trace
from .bodies import AttentionReply, DistributionReply, LensReply, NormsReply, SourceReply, SourceRow
from .dims import PAD
from .replies import clip, fit_labels
from .runs import Latest

MAX_BINS = 400
MAX_ROWS = 2_048
LENS_K = 5
LENS_CELLS = 20_000
"""Layers x tokens x k of one reply."""
SIDE, SMALL_SIDE = 360, 32
SMALL_BYTES = 256 << 10
_FLOAT = 4
LABEL_BYTES = 96 << 10
MAX_LINES = 3_000
MAX_LINE = 240


def distribution_reply(session: Any, latest: Latest, site: str, bins: int) -> DistributionReply:
    """The distribution of a site in both runs, in the same bins."""
    trace, baseline = _both(latest)
    edges = [session.bounds(t, site) for t in _distinct(trace, baseline)]
    known = [e for e in edges if e is not None]
    low, high = min((e[0] for e in known), default=0.0), max((e[1] for e in known), default=0.0)
    now = session.distribution(trace, site, bins, (low, high))
    same = trace is baseline
    before = now if same else session.distribution(baseline, site, bins, (low, high))
    return DistributionReply(
        site=site,
        run=latest.run,
        low=low,
        high=high,
        counts=list(now.counts),
        baseline_counts=[] if same else list(before.counts),
        finite=now.finite,
        nan=now.nan,
        inf=now.inf,
        baseline_nan=before.nan,
        baseline_inf=before.inf,
        shares=list(QUANTILES),
        values=[value for _, value in now.quantiles],
        baseline_values=[] if same else [value for _, value in before.quantiles],
        stats=session.stats(trace, site).line(),
        note="; ".join(n for n in (now.note, trace.placement_note(site)) if n),
    )


def norms_reply(session: Any, latest: Latest, site: str, index: Sequence[int]) -> NormsReply:
    """The norms of a site's rows in both runs."""
    trace, baseline = _both(latest)
    shape, rows = trace.shape(site), trace.rows(site)
    tokens = rows == "tokens" and len(shape) > 2
    leading = (shape[0],) if tokens else shape[:-2]
    at = [min(i, size - 1) for i, size in zip([*index, *[0] * 64], leading, strict=False)]

    def norms(of: Trace) -> Any:
        if tokens:
            return session.token_norms(of, site, at[0])
        return session.row_norms(of, site, at)

    now = norms(trace)
    same = trace is baseline
    before = None if same else norms(baseline)
    labels = _labels(trace, at[0], len(now.norm)) if tokens else []
    notes = [] if len(now.norm) <= MAX_ROWS else [f"the first {MAX_ROWS:,} of {len(now.norm):,}"]
    if tokens and len(shape) > 3:
        notes.append(f"over dims 2 to {len(shape) - 1} together")
    return NormsReply(
        site=site,
        run=latest.run,
        shape=list(shape),
        index=at,
        rows_are=_named(rows, tokens),
        labels=labels[:MAX_ROWS],
        norm=list(now.norm[:MAX_ROWS]),
        rms=list(now.rms[:MAX_ROWS]),
        baseline_norm=[] if before is None else list(before.norm[:MAX_ROWS]),
        baseline_rms=[] if before is None else list(before.rms[:MAX_ROWS]),
        width=now.width,
        note="; ".join([*notes, *filter(None, [trace.placement_note(site)])]),
    )


def _named(rows: str, tokens: bool) -> str:
    if tokens:
        return "tokens"
    return f"rows ({rows})" if rows in UNUSUAL_ROWS else "rows of the plane, not tokens"


def attention_reply(
    latest: Latest, pattern: Attention, before: Attention | None, row: int, head: int, site: str
) -> tuple[AttentionReply, list[bytes]]:
    """One head's pattern and small pictures of all; minus another run's where one is given."""
    weights = pattern.weights if before is None else pattern.weights - before.weights
    batch, heads, queries, keys = weights.shape
    row, head = min(row, batch - 1), min(head, heads - 1)
    shown = tile(weights[row, head], None, SIDE, SIDE)
    side = max(4, min(SMALL_SIDE, math.isqrt(SMALL_BYTES // (_FLOAT * heads))))
    small = [tile(weights[row, h], None, side, side) for h in range(heads)]
    trace = latest.trace
    assert trace is not None
    labels = _labels(trace, row, keys)
    reply = AttentionReply(
        site=site,
        path=pattern.path,
        run=latest.run,
        batch=batch,
        row=row,
        heads=heads,
        head=head,
        queries=queries,
        keys=keys,
        rows=shown.rows,
        columns=shown.columns,
        row_step=shown.row_step,
        column_step=shown.column_step,
        small_rows=small[0].rows,
        small_columns=small[0].columns,
        high=_largest(weights[row]),
        difference=max(p.difference for p in (pattern, before) if p is not None),
        largest=pattern.largest,
        how=pattern.source,
        query_labels=labels if queries == keys else [],
        key_labels=labels,
    )
    return reply, [shown.data, b"".join(picture.data for picture in small)]


def _largest(weights: Tensor) -> float | None:
    finite = weights[torch.isfinite(weights)].abs()
    return float(finite.max()) if finite.numel() else None


def lens_reply(latest: Latest, lens: LogitLens, start: int, tokenizer: object | None) -> LensReply:
    """The table of a lens."""
    trace = latest.trace
    assert trace is not None and trace.tokens is not None and trace.logits is not None
    flat = lens.ids.flatten().tolist()
    vocabulary = sorted(set(flat))
    labels = trace.tokens.labels[lens.row]
    before = [] if lens.before is None else lens.before.flatten().tolist()
    return LensReply(
        run=latest.run,
        sites=list(lens.sites),
        labels=fit_labels(labels[start : start + len(lens.positions)], LABEL_BYTES),
        start=start,
        total=len(labels),
        batch=len(trace.logits),
        row=lens.row,
        k=lens.ids.shape[-1],
        ids=flat,
        probabilities=[_short(p) for p in lens.probabilities.flatten().tolist()],
        before=[_short(p) for p in before],
        vocabulary=vocabulary,
        texts=[clip(text, 32) for text in token_labels(tokenizer, vocabulary)],
        way=lens.way,
        difference=lens.difference,
    )


def lens_width(layers: int) -> int:
    """How many tokens of a lens fit a reply."""
    return max(1, LENS_CELLS // (LENS_K * max(layers, 1)))


def source_reply(source: Source, run: int) -> SourceReply:
    """The lines of a module's forward."""
    note = "" if source.calls else "Run a prompt to see ops, shapes and sites at each line."
    if len(source.lines) > MAX_LINES:
        note = f"The first {MAX_LINES:,} of {len(source.lines):,} lines. {note}".strip()
    rows = [
        SourceRow(
            number=line.number,
            text=clip(line.text, MAX_LINE),
            function=line.function,
            sites=[op.site for op in line.ops],
            shapes=[f"{op.dtype} {' x '.join(map(str, op.shape)) or 'scalar'}" for op in line.ops],
        )
        for line in source.lines[:MAX_LINES]
    ]
    if not rows:
        note = "This forward is not written in Python, or its file is gone."
    return SourceReply(source.path, run, source.calls, rows, note)


def _short(probability: float) -> float:
    return float(f"{probability:.5g}")


def _labels(trace: Trace, row: int, count: int) -> list[str]:
    """One label per column of a batch row, padding included; none where they are others."""
    tokens = trace.tokens
    if tokens is None or tokens.ids.shape[1] != count or row >= len(tokens.labels):
        return []
    labels = [PAD] * count
    for column, label in zip(tokens.positions(row), tokens.labels[row], strict=True):
        labels[column] = label
    return fit_labels(labels, LABEL_BYTES)


def _both(latest: Latest) -> tuple[Trace, Trace]:
    assert latest.trace is not None and latest.baseline is not None
    return latest.trace, latest.baseline


def _distinct(trace: Trace, baseline: Trace) -> list[Trace]:
    return [trace] if trace is baseline else [trace, baseline]
