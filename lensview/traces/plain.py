"""Plain values: what is kept of a value that is no tensor, as it was when it passed.

Owns the short descriptions that stand for caches and other objects, and their JSON. A description
never refers to the object: a cache goes on growing after the call that it was passed to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CacheSummary:
    """A key-value cache at the moment it passed.

    Attributes:
        kind: its class's name.
        lengths: tokens held per layer; None for a layer that counts none (a recurrent state).
    """

    kind: str
    lengths: tuple[int | None, ...]

    def __str__(self) -> str:
        held = {n for n in self.lengths if n is not None}
        length = f"{held.pop()} tokens" if len(held) == 1 else f"lengths {list(self.lengths)}"
        return f"a {self.kind} of {len(self.lengths)} layers, {length}"


@dataclass(frozen=True)
class ObjectSummary:
    """An object of which only the class's name is kept."""

    kind: str

    def __str__(self) -> str:
        return f"a {self.kind}"


Plain = None | bool | int | float | str | CacheSummary | ObjectSummary


def plain(value: Any) -> Plain:
    """What is kept of `value`, which holds no tensor: itself where nothing can change it."""
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    kind = type(value).__name__
    if callable(getattr(value, "get_seq_length", None)):
        return CacheSummary(kind, _lengths(value))
    return ObjectSummary(kind)


def said(value: Plain) -> str:
    """`value` in a sentence: "a DynamicCache of 3 layers, 6 tokens", "a NoneType", "the int 3"."""
    if isinstance(value, (CacheSummary, ObjectSummary)):
        return str(value)
    kind = type(value).__name__
    return f"a {kind}" if value is None else f"the {kind} {value!r:.80}"


def _lengths(cache: Any) -> tuple[int | None, ...]:
    layers = getattr(cache, "layers", None)
    if layers is None:  # a pair of caches for an encoder and a decoder: that of the decoder counts
        layers = getattr(getattr(cache, "self_attention_cache", None), "layers", None)
    return tuple(map(_length, [cache] if layers is None else layers))


def _length(layer: Any) -> int | None:
    try:
        return int(layer.get_seq_length())
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError):
        return None


def to_json(value: Plain) -> Any:
    """`value` as strict JSON."""
    if isinstance(value, CacheSummary):
        return {"cache": value.kind, "lengths": list(value.lengths)}
    if isinstance(value, ObjectSummary):
        return {"object": value.kind}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    return value


def from_json(body: Any) -> Plain:
    """The inverse of `to_json`.

    Raises:
        KeyError, TypeError, ValueError: it is nothing that `to_json` writes.
    """
    if body is None or isinstance(body, (bool, int, float, str)):
        return body
    if not isinstance(body, Mapping):
        raise TypeError(f"{body!r:.80} is no plain value")
    if "cache" in body:
        return CacheSummary(body["cache"], tuple(body["lengths"]))
    if "object" in body:
        return ObjectSummary(body["object"])
    return float(body["number"])
