"""Nested values: what modules are called with and what they return.

Owns the walk over a nested value (tuple, list, dict, namedtuple, dataclass, ModelOutput), its main
tensor, and putting one leaf back without touching the rest. Anything else (a cache, a string,
None) is a leaf of its own and is never looked into. It does not know sites or hooks.

A container comes back as the type it was; the caller's own container is never written to.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from .errors import SiteError, near

Path = tuple[str | int, ...]


def children(value: Any) -> list[tuple[str | int, Any]] | None:
    """The direct members of a container with their keys, in its own order; None for a leaf."""
    if value is None or isinstance(value, (Tensor, str, int, float)):
        return None
    if isinstance(value, Mapping):
        return [(k, v) for k, v in value.items() if isinstance(k, (str, int))]
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):
        return list(zip(names, value, strict=True))
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (f.name, getattr(value, f.name))
            for f in dataclasses.fields(value)
            if hasattr(value, f.name)
        ]
    return None


def leaves(value: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf with its path, depth first."""
    members = children(value)
    if members is None:
        yield at, value
        return
    for key, member in members:
        yield from leaves(member, (*at, key))


def main_path(value: Any) -> Path | None:
    """The path of the main tensor: the first tensor leaf, integers included. None without one."""
    if isinstance(value, Tensor):
        return ()
    for key, member in children(value) or ():
        inner = main_path(member)
        if inner is not None:
            return (key, *inner)
    return None


def main_in(value: Any, leaf: Path) -> tuple[Path, Tensor | None]:
    """The main tensor of the member at `leaf` (of the whole value for ``()``), and its whole path;
    None, with `leaf` itself, where the member holds no tensor.

    Raises:
        SiteError: there is no such member.
    """
    member = get(value, leaf) if leaf else value
    if isinstance(member, Tensor):
        return leaf, member
    inner = main_path(member)
    if inner is None:
        return leaf, None
    return (*leaf, *inner), get(member, inner)


def get(value: Any, path: Path) -> Any:
    """The member at `path`.

    Raises:
        SiteError: there is none; the text says what is there instead.
    """
    for depth, key in enumerate(path):
        members = children(value)
        if members is None:
            where = "".join(f"[{k}]" for k in path[:depth]) or "the value"
            raise SiteError(f"{where} is a {type(value).__name__} and has no [{key}].")
        value = members[_position(members, key)][1]
    return value


def replace(value: Any, path: Path, new: Any) -> Any:
    """`value` with the member at `path` replaced; containers on the way are copied, never changed.

    Raises:
        SiteError: there is no such member.
    """
    if not path:
        return new
    members = children(value)
    if members is None:
        raise SiteError(f"A {type(value).__name__} has no [{path[0]}].")
    position = _position(members, path[0])
    key, member = members[position]
    return _rebuilt(value, key, position, replace(member, path[1:], new))


def _position(members: Sequence[tuple[str | int, Any]], key: str | int) -> int:
    keys = [k for k, _ in members]
    if key in keys:
        return keys.index(key)
    if isinstance(key, int) and -len(keys) <= key < len(keys):
        return key % len(keys)
    names = ", ".join(map(repr, keys)) or "none"
    hint = near(str(key), [str(k) for k in keys])
    raise SiteError(f"There is no [{key}]; the members are {names}.{hint}")


def _rebuilt(value: Any, key: str | int, position: int, new: Any) -> Any:
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value)
        changed[key] = new
        return changed
    if isinstance(value, (tuple, list)):
        items = [*value[:position], new, *value[position + 1 :]]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    changed = copy.copy(value)
    object.__setattr__(changed, str(key), new)
    return changed


@dataclasses.dataclass(frozen=True)
class Arguments:
    """One call, bound to the signature of `forward`: positional and keyword alike, by name.

    `value` maps each name to what was passed, in signature order; members of ``**kwargs`` stand
    under their own names, ``*args`` under theirs as one tuple. `positional` are the names that were
    passed by position.
    """

    value: dict[str, Any]
    positional: tuple[str, ...]
    _star: str | None

    def call(self, value: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`value` as ``(args, kwargs)``, each name passed in the way it was passed before."""
        args = tuple(value[n] for n in self.positional)
        if self._star is not None:
            args += tuple(value[self._star])
        by_keyword = {n: v for n, v in value.items() if n not in (*self.positional, self._star)}
        return args, by_keyword


def binder(forward: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    """A function that binds ``(args, kwargs)`` to the signature of `forward`.

    Where a call does not fit (the forward itself will say so), or there is no signature, positional
    arguments are named ``arg0``, ``arg1``, ….
    """
    names, keywords, star = _parameter_names(forward)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        fixed, rest = args[: len(names)], args[len(names) :]
        positional = tuple(names[: len(fixed)])
        value = dict(zip(positional, fixed, strict=True))
        extra = star
        if rest and star is None:
            spare = tuple(f"arg{i}" for i in range(len(fixed), len(args)))
            value.update(zip(spare, rest, strict=True))
            positional += spare
        elif rest and star is not None:
            value[star] = rest
        else:
            extra = None
        # Signature order, whichever way each argument was passed.
        value.update((n, kwargs[n]) for n in (*names, *keywords) if n in kwargs)
        value.update((n, v) for n, v in kwargs.items() if n not in value)
        return Arguments(value, positional, extra)

    return bind


_Names = tuple[tuple[str, ...], tuple[str, ...], str | None]
_names: weakref.WeakKeyDictionary[Any, _Names] = weakref.WeakKeyDictionary()
"""By plain function: reading a signature costs more than a small layer's forward."""


def _parameter_names(forward: Callable[..., Any]) -> _Names:
    """The names that take positional arguments, the keyword-only ones, and ``*args``' own."""
    function = getattr(forward, "__func__", None)
    if function is None:
        return _read_names(forward)
    known = _names.get(function)
    if known is None:
        known = _names[function] = _read_names(forward)
    return known


def _read_names(forward: Callable[..., Any]) -> _Names:
    try:
        parameters = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):  # builtins have no signature; their arguments go unnamed
        return (), (), None
    kind = inspect.Parameter
    fixed = (kind.POSITIONAL_ONLY, kind.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters if p.kind in fixed)
    keywords = tuple(p.name for p in parameters if p.kind is kind.KEYWORD_ONLY)
    star = next((p.name for p in parameters if p.kind is kind.VAR_POSITIONAL), None)
    return names, keywords, star
