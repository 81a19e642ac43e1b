"""Op calls: the arguments of one call of a torch function, by name, and what it wrote in place.

It runs no op and knows no visitors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from inspect import signature
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import get_testing_overrides

from ..values import Arguments, binder


def bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a torch function by name; by ``arg0``, ``arg1``, … where it tells none."""
    named = _binder(func)(args, kwargs)
    if any(n in kwargs for n in named.positional):
        return _UNNAMED(args, kwargs)
    return named


@lru_cache(maxsize=1024)
def _binder(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    # Functions written in C have no signature; PyTorch keeps a table of stand-ins that do.
    return binder(_TOLD.get(func) or get_testing_overrides().get(func, func))


def with_defaults(func: Any, value: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with what the function takes for those that were left out, where
    that is known: whoever reads an attention must know its scale."""
    told = _TOLD.get(func)
    if told is None:
        return value
    defaults = {n: p.default for n, p in signature(told).parameters.items()}
    return {**value, **{n: d for n, d in defaults.items() if n not in value}}


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    """The signature of PyTorch's function; its table's stand-in lacks the last three."""


_TOLD: dict[Any, Callable[..., Any]] = {F.scaled_dot_product_attention: _attention}

_UNNAMED = binder(cast(Any, None))


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]


def versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, int | None]:
    """The version counters of an op's arguments, by identity; None where there is no counter."""
    return {id(t): None if t.is_inference() else t._version for t in _tensors(args, kwargs)}


def was_written(
    value: Any, before: Mapping[int, int | None], name: str, kwargs: Mapping[str, Any]
) -> bool:
    """Whether `value` is an argument that the op wrote to, not one that it handed back as it was
    (dropout in eval mode, a `to` that has nothing to do)."""
    if not isinstance(value, Tensor) or id(value) not in before:
        return False
    version = before[id(value)]
    if version is None:
        return is_in_place(name, kwargs) or "out" in kwargs
    return value._version != version


def is_in_place(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an op is to write to its first argument, by what it is called and told."""
    return name == "setitem" or name.endswith("_") or arguments.get("inplace") is True
