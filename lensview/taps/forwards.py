"""Forwards: what stands around a module's own forward, and what is under it.

Owns the way from `module.forward` down to the forward that the module's class has, through
decorators, partials, and the functions that others put on the instance around the bound forward
(tensor parallelism does, without naming what it wraps). It changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn

Forward = Callable[..., Any]


def layers(module: nn.Module, forward: Forward | None = None) -> Iterator[Any]:
    """`forward` (by default what is called) and what it wraps, each inside the one before; the
    last one is the class's own where all that stands around it can be followed."""
    function: Any = module.forward if forward is None else forward
    own = type(module).forward
    while function is not None:
        yield function
        if getattr(function, "__func__", function) is own:
            return
        function = _inside(function, module)


def signed(module: nn.Module, forward: Forward | None = None) -> Any:
    """The first of `layers` whose arguments have names: what a call of it is bound to."""
    *above, last = layers(module, forward)
    for function in above:
        if not _is_nameless(inspect.unwrap(function)):
            return function
    return last


def _inside(function: Any, module: nn.Module) -> Any:
    """What a function wraps: as it says itself, or what it holds of the module's bound method."""
    inner = getattr(function, "__wrapped__", None)
    if inner is None and isinstance(function, partial):
        return function.func
    if inner is not None:
        return inner
    for cell in getattr(function, "__closure__", None) or ():
        held = _content(cell)
        if isinstance(held, MethodType) and held.__self__ is module:
            return held
        if isinstance(held, FunctionType) and held is not function and _inside(held, module):
            return held
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _is_nameless(function: Any) -> bool:
    """Whether a plain function takes ``*args, **kwargs`` alone."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == 0 and code.co_kwonlyargcount == 0
