"""Hidden: what the attributes and hooks of modules hold besides modules, parameters and buffers.

Owns the bounded search through containers (dicts, lists, tuples, sets, deques, dataclasses,
namespaces, partial functions). What is in an object of any other class is not looked at: running
strangers' code is not looking. What a class means is `kinds.py`'s.
"""

from __future__ import annotations

import types
from collections import UserDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .kinds import Kinds

MAX_DEPTH = 8
"""Containers within containers; deeper is not searched, and an unfinished search refuses."""
MAX_MEMBERS = 200_000
"""Members that are looked at one by one in one scan."""

ATOMS = frozenset(
    {
        type(None),
        *(bool, int, float, complex, str, bytes, type, range, slice, property),
        *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType),
        *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout),
        *(Tensor, nn.Parameter, nn.Buffer),
    }
)
"""Exact types that hide nothing."""

_LISTS = (list, tuple, set, frozenset, deque)


class Unfinished(Exception):
    """The search met its bounds; the text says where."""


class Search:
    """One scan's search; what was found clean is not gone through again."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._seen: set[int] = set()
        self._left = MAX_MEMBERS

    def knows(self, values: list[Any]) -> bool:
        """Whether all that could hide something has been gone through before."""
        return all(type(v) in ATOMS or id(v) in self._seen for v in values)

    def inside(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Every member, however deep, whose class means something, and every module; with its
        name, e.g. ``groups['tp'][0]``.

        Raises:
            Unfinished: there is more than the bounds allow.
        """
        stack: list[tuple[str, Any, int]] = [(name, value, 0)]
        through: set[int] = set()
        clean = True
        while stack:
            at, current, depth = stack.pop()
            kind = type(current)
            if kind in ATOMS:
                continue
            if self._kinds.of(kind) or isinstance(current, nn.Module):
                clean = False
                yield at, current
                continue
            open_ = _opener(kind)
            if open_ is None or id(current) in self._seen or id(current) in through:
                continue
            through.add(id(current))
            keys, members = open_(current)
            if set(map(type, members)) <= ATOMS:
                continue
            if depth >= MAX_DEPTH:
                raise Unfinished(f"{at} is nested deeper than {MAX_DEPTH} containers.")
            self._left -= len(members)
            if self._left < 0:
                raise Unfinished(f"{at} and what was before it hold over {MAX_MEMBERS:,} members.")
            pairs = zip(keys, members, strict=True)
            stack.extend((f"{at}{key}", m, depth + 1) for key, m in reversed(list(pairs)))
        if clean:
            # What two modules share and is refused is told at both.
            self._seen |= through


_Opened = tuple[list[str], list[Any]]


def _opener(kind: type) -> Callable[[Any], _Opened] | None:
    """How a container of this class gives its members, without any code of its own."""
    if issubclass(kind, dict):
        return _of_dict
    if issubclass(kind, _LISTS):
        return _of_list
    if issubclass(kind, partial):
        return _of_partial
    if issubclass(kind, UserDict) or kind is types.SimpleNamespace:
        return _of_object
    return _of_object if "__dataclass_fields__" in kind.__dict__ or _dataclass(kind) else None


def _dataclass(kind: type) -> bool:
    return any("__dataclass_fields__" in base.__dict__ for base in kind.__mro__)


def _of_dict(value: Any) -> _Opened:
    items = list(dict.items(value))
    return [f"[{key!r:.40}]" for key, _ in items], [member for _, member in items]


def _of_list(value: Any) -> _Opened:
    base = next(base for base in _LISTS if isinstance(value, base))
    members = list(base.__iter__(value))
    return [f"[{i}]" for i in range(len(members))], members


def _of_partial(value: Any) -> _Opened:
    keys = [".func", ".args", ".keywords"]
    return keys, [value.func, value.args, value.keywords]


def _of_object(value: Any) -> _Opened:
    held = dict(getattr(value, "__dict__", None) or {})
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = base.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    held[name] = member.__get__(value)
                except AttributeError:  # an empty slot
                    continue
    return [f".{name}" for name in held], list(held.values())
