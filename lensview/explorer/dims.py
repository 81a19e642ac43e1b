"""Dims: what the dims of a recorded value are, and the token labels that stand beside a plane.

Owns the names that are known ("batch", "head", "token", "feature"); a dim that nobody is sure of
has none, and no token stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..capture.heads import maps_at
from ..tensors.planes import plane_dims
from ..traces.tokens import UNUSUAL_ROWS
from ..traces.trace import Trace

PAD = "(pad)"
BATCH, HEAD, TOKEN, FEATURE = "batch", "head", "token", "feature"


def dim_names(trace: Trace, site: str, config: Any = None) -> list[str]:
    """A name per dim of the record at `site`, "" where it is not known.

    Args:
        config: of the model, which knows how many heads its attention weights have; None knows
            nothing.
    """
    shape = trace.shape(site)
    names = [""] * len(shape)
    if trace.tokens is None:
        return names
    rows = trace.rows(site)
    if rows == "tokens":
        names[:2] = [BATCH, TOKEN]
        if len(shape) == 3:
            names[2] = FEATURE
    elif not rows and _is_attention(trace, site, config):
        names = [BATCH, HEAD, TOKEN, TOKEN]
    return names


def _is_attention(trace: Trace, site: str, config: Any) -> bool:
    """Whether the record is attention weights (B, H, T, T) of the run's tokens."""
    record = trace.record(site)
    assert trace.tokens is not None
    heads = maps_at(config, record.site)
    batch, tokens = trace.tokens.ids.shape
    fits = trace.shape(site) == (batch, heads, tokens, tokens)
    return heads is not None and fits and record.aligned and trace.tokens.cover(record.site)


def labels_beside(
    trace: Trace,
    site: str,
    names: Sequence[str],
    index: Sequence[int],
    rows_dim: int | None,
    columns_dim: int | None,
) -> tuple[list[str], list[str], str]:
    """The token labels of a plane's rows and of its columns, empty where they are no tokens, and a
    remark.

    Args:
        names: as `dim_names` gives them.
        index: one int per dim that is not shown; missing ones are 0.
    """
    if trace.tokens is None:
        return [], [], ""
    rows = trace.rows(site)
    if rows in UNUSUAL_ROWS:
        return [], [], f"rows: {rows}"
    shape = trace.shape(site)
    down, across = plane_dims(shape, rows_dim, columns_dim)
    shown = [None if d is None else names[d] for d in (down, across)]
    if TOKEN not in shown:
        return [], [], "rows are not tokens" if len(shape) > 2 else ""
    if BATCH in shown and shape[0] > 1:
        return [], [], "the tokens differ by batch row: pick one to see them"
    others = [dim for dim in range(len(shape)) if dim not in (down, across)]
    at = dict(zip(others, index, strict=False))
    labels = _labels(trace, at.get(0, 0))
    return (
        labels if shown[0] == TOKEN else [],
        labels if shown[1] == TOKEN else [],
        "",
    )


def _labels(trace: Trace, row: int) -> list[str]:
    """One label per token column of a batch row, padding included."""
    tokens = trace.tokens
    assert tokens is not None
    labels = [PAD] * tokens.ids.shape[1]
    for column, label in zip(tokens.positions(row), tokens.labels[row], strict=True):
        labels[column] = label
    return labels
