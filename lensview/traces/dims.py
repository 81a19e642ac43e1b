"""Dims: what the dims of a record are, by name.

Owns the names batch, token, head, key and feature, and when they are known. A dim that could be
two things is neither: it is numbered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .trace import Trace

_HEADS = ("num_attention_heads", "num_key_value_heads", "n_head", "num_heads")


def dims_of(trace: Trace, text: str) -> tuple[str, ...]:
    """The names of a record's dims, one for each.

    ======================  ====================================================================
    batch, token, feature   a value of the run's tokens (B, T, D); (B, T) has no feature
    batch, token, head,     (B, T, H, D), and (B, H, T, D) with head before token: where H is a
    feature                 number of heads of the model's config, and not T
    batch, head, token,     attention weights (B, H, T, T)
    key
    flat_token, feature     the batch's tokens one after the other, padding included (B*T, D)
    dim0, dim1, …           anything else
    ======================  ====================================================================

    Raises:
        SiteError, NotRecordedError: there is no record at `text`.
    """
    shape, rows = trace.shape(text), trace.rows(text)
    numbered = tuple(f"dim{i}" for i in range(len(shape)))
    if rows == "flattened tokens":
        return ("flat_token", "feature")
    if len(shape) == 4:
        return _by_heads(trace, text, shape) or numbered
    if rows != "tokens" or len(shape) > 3:
        return numbered
    return ("batch", "token", "feature")[: len(shape)]


def _by_heads(trace: Trace, text: str, shape: tuple[int, ...]) -> tuple[str, ...] | None:
    """The dims of a value with a dim of heads; None where they are not known."""
    record, tokens = trace.record(text), trace.tokens
    if tokens is None or not record.aligned or not tokens.cover(record.site):
        return None
    batch, length = tokens.ids.shape
    counts = head_counts(trace.meta) - {length}
    if shape[0] != batch or length in counts:
        return None
    if shape[1] == length and shape[2] in counts and shape[3] != length:
        return ("batch", "token", "head", "feature")
    if shape[2] == length and shape[1] in counts:
        return ("batch", "head", "token", "key" if shape[3] == length else "feature")
    return None


def head_counts(meta: Mapping[str, Any]) -> set[int]:
    """How many heads, or key-value heads, the model of a run has, by its config; empty where it
    does not say."""
    config = meta.get("config")
    configs = [config] if isinstance(config, Mapping) else []
    configs += [c for one in configs for c in one.values() if isinstance(c, Mapping)]
    found = (one.get(name) for one in configs for name in _HEADS)
    return {count for count in found if isinstance(count, int)}
