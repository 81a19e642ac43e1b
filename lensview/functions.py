"""Function: a user's function as data.

Owns the three ways in which a function can be held: by an import path, by its source text, or just
as an object of this process, which cannot travel. Reading one from a file runs nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

from .errors import InterventionError


@dataclass(frozen=True)
class Function:
    """A function from a tensor to a tensor.

    Attributes:
        name: how it is shown.
        path: ``"module:function"``, or "".
        source: Python text that defines `name`, or ""; ``torch`` is known in it.
        callee: the function itself; None where it was read from a file.
        on_all: on a model that is split over ranks, every rank calls it with what it holds of the
            value; else the first rank calls it with the whole.
    """

    name: str
    path: str = ""
    source: str = ""
    callee: Callable[..., Any] | None = None
    on_all: bool = False

    def __str__(self) -> str:
        return self.path or self.name

    @property
    def portable(self) -> bool:
        """Whether another process can have it: by its import path or its source."""
        return bool(self.path or self.source)

    def trusted(self) -> Function:
        """The same, ready to be called: imports its module or runs its source.

        Raises:
            InterventionError: it is of another process, or cannot be imported or compiled.
        """
        if self.callee is not None:
            return self
        if not self.portable:
            raise InterventionError(
                f"call: the function {self.name} was not portable when it was saved, so only its "
                "name is here. Make the intervention again with lv.call(site, fn)."
            )
        return replace(self, callee=_imported(self.path) if self.path else _run(self))


def function(fn: Any, source: str | None, name: str | None, ranks: str = "first") -> Function:
    """A `Function` from what `lv.call` takes.

    Raises:
        InterventionError: neither or both were given, it cannot be found, or `ranks` is neither
            "first" nor "all".
    """
    if ranks not in ("first", "all"):
        raise InterventionError(f"call: ranks is 'first' or 'all', not {ranks!r}.")
    return replace(_function(fn, source, name), on_all=ranks == "all")


def _function(fn: Any, source: str | None, name: str | None) -> Function:
    if (fn is None) == (source is None):
        raise InterventionError("call: give a function (or its 'module:function'), or source=.")
    if source is not None:
        return Function(name or _defined(source), source=source).trusted()
    if isinstance(fn, str):
        return Function(fn.rpartition(":")[2], path=fn).trusted()
    if not callable(fn):
        raise InterventionError(f"call: {fn!r} ({type(fn).__name__}) cannot be called.")
    shown = name or getattr(fn, "__qualname__", None) or repr(fn)
    return Function(shown, path=_path_of(fn), callee=fn)


def _path_of(fn: Any) -> str:
    """The import path under which another process finds `fn` itself, or ""."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", "")
    if module in (None, "__main__") or not name or "<" in name:
        return ""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is fn else ""


def _imported(path: str) -> Callable[..., Any]:
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise InterventionError(f"call: {path!r} is no import path; write 'module:function'.")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InterventionError(f"call: {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise InterventionError(f"call: {path!r} is a {type(found).__name__}, not a function.")
    return found  # type: ignore[no-any-return]


def _defined(source: str) -> str:
    """The name of the one function that a source text defines."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise InterventionError(f"call: the source cannot be read: {error}") from error
    names = [part.name for part in body if isinstance(part, ast.FunctionDef)]
    if len(names) != 1:
        raise InterventionError(
            f"call: the source defines {len(names)} functions ({', '.join(names) or 'none'}); say "
            "which one with name=."
        )
    return names[0]


def _run(function: Function) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch, "__name__": f"lensview:{function.name}"}
    try:
        exec(compile(function.source, f"<source of {function.name}>", "exec"), namespace)
    except Exception as error:
        raise InterventionError(
            f"call: the source of {function.name} fails: {type(error).__name__}: {error}"
        ) from error
    found = namespace.get(function.name)
    if not callable(found):
        raise InterventionError(f"call: the source defines no function {function.name!r}.")
    return found  # type: ignore[no-any-return]
