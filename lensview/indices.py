"""Index: which part of a tensor an intervention touches, as data and as text.

Owns the torch-style index and `lv.at`. What an index selects of a tensor is `regions.py`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from .errors import InterventionError

Item = int | slice | EllipsisType | tuple[int, ...]


@dataclass(frozen=True)
class At:
    """An index by meaning instead of by dim; `token` counts real tokens, never padding."""

    batch: Item | None = None
    token: Item | None = None
    head: Item | None = None
    feature: Item | None = None

    def __str__(self) -> str:
        given = [(n, getattr(self, n)) for n in ("batch", "token", "head", "feature")]
        return f"at({', '.join(f'{n}={_item_text(i)}' for n, i in given if i is not None)})"


Index = None | At | Item | tuple[Item, ...]


def at(*, batch: Any = None, token: Any = None, head: Any = None, feature: Any = None) -> At:
    """An index by meaning: each an int, a slice or a list of ints, counted from either end.

    Args:
        batch: rows of the batch, dim 0.
        token: real tokens of each row (padding is never counted), dim 1 of a (B, T, …) value.
        head: attention heads, in the last dim of a ``q_proj``/``k_proj``/``v_proj`` output or an
            ``o_proj`` input, or dim 1 of attention weights (B, H, T, T); an error elsewhere.
        feature: the last dim; with `head`, features within the head.
    """
    return At(*(None if v is None else _item(v) for v in (batch, token, head, feature)))


def normal(index: Any) -> Index:
    """`index` in its one form: None, `At`, or a tuple of items.

    Raises:
        InterventionError: it is no torch-style index (a mask, None for a new dim, two lists).
    """
    if index is None or isinstance(index, At):
        return index
    items = tuple(_item(i) for i in (index if isinstance(index, tuple) else (index,)))
    if sum(i is Ellipsis for i in items) > 1:
        raise InterventionError(f"An index can hold only one '...', not {index!r}.")
    if sum(isinstance(i, tuple) for i in items) > 1:
        raise InterventionError(
            f"The index {index!r} has two lists, which torch reads as pairs and others as a grid. "
            "Use one list, and a slice or an intervention of its own for the rest."
        )
    return items


def _item(item: Any) -> Item:
    if isinstance(item, bool):
        raise InterventionError(f"{item} is not an index: use ints, slices, lists of ints or '...'")
    if isinstance(item, int) or item is Ellipsis:
        return item
    if isinstance(item, slice):
        for bound in (item.start, item.stop, item.step):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise InterventionError(f"The slice {item!r} has a bound that is not an int.")
        if item.step is not None and item.step < 1:
            raise InterventionError(f"The slice {item!r} needs a step of 1 or more.")
        return item
    if isinstance(item, Tensor) and item.dim() <= 1 and item.dtype in (torch.int64, torch.int32):
        item = item.tolist()
        if isinstance(item, int):
            return item
    if isinstance(item, (list, tuple, range)):
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in item):
            raise InterventionError(f"The list {list(item)!r} in an index is not all ints.")
        if not item:
            raise InterventionError("An empty list in an index selects nothing.")
        return tuple(item)
    raise InterventionError(
        f"{item!r} ({type(item).__name__}) cannot be part of an index: use ints, slices, lists of "
        "ints or '...'."
    )


_NUMBER = r"-?\d+"
_SLICE = re.compile(rf"({_NUMBER})?\s*:\s*({_NUMBER})?(?:\s*:\s*({_NUMBER})?)?")


def index_text(index: Index) -> str:
    """An index as it is typed: ``""`` for everything, ``"0, 1:3"``, ``"[0, 2], :"``."""
    if index is None:
        return ""
    if isinstance(index, At):
        return str(index)
    if isinstance(index, tuple):
        return ", ".join(_item_text(i) for i in index)
    return _item_text(index)


def _item_text(item: Any) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        ends = ["" if b is None else str(b) for b in (item.start, item.stop)]
        return ":".join(ends) + (f":{item.step}" if item.step not in (None, 1) else "")
    if isinstance(item, tuple):
        return f"[{', '.join(map(str, item))}]"
    return str(item)


def parse_index(text: str) -> Index:
    """Read an index from what `index_text` writes.

    Raises:
        InterventionError: the text is not one.
    """
    text = text.strip()
    if not text:
        return None
    if match := re.fullmatch(r"at\((.*)\)", text):
        return _parse_at(match[1], text)
    return normal(tuple(_parse_item(t, text) for t in _split(text)))


def _split(text: str) -> list[str]:
    parts = re.split(r",\s*(?![^\[]*\])", text)
    return [p.strip() for p in parts if p.strip()]


def _parse_item(text: str, whole: str) -> Item:
    if text == "...":
        return Ellipsis
    if re.fullmatch(_NUMBER, text):
        return int(text)
    if match := _SLICE.fullmatch(text):
        start, stop, step = (None if g is None else int(g) for g in match.groups())
        return slice(start, stop, step)
    if match := re.fullmatch(rf"\[\s*({_NUMBER}(?:\s*,\s*{_NUMBER})*)\s*,?\s*\]", text):
        return tuple(int(n) for n in match[1].split(","))
    raise InterventionError(
        f"{whole!r} is not an index ({text!r} cannot be read). Write for example '0', ':, 1:3', "
        "'..., -1', '[0, 2], :' or 'at(token=-1)'; empty means everything."
    )


def _parse_at(inside: str, whole: str) -> At:
    given: dict[str, Any] = {}
    for part in _split(inside):
        name, _, item = part.partition("=")
        if name.strip() not in ("batch", "token", "head", "feature") or not item:
            raise InterventionError(f"{whole!r}: at() takes batch=, token=, head= and feature=.")
        given[name.strip()] = _parse_item(item.strip(), whole)
    return at(**given)
