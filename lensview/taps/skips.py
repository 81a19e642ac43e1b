"""Skips: modules that do not run; their value is given.

Owns the seam around a module's outermost forward, for the length of one run: what stands in
``module.forward`` then, whether the class's own or one that accelerate or tensor parallelism put
on the instance. Everyone's hooks stand outside it and fire as ever. Which value is given is the
giver's to say. Besides `hooks.py` this is the only place that touches a module.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from ..values import Arguments, binder
from .forwards import signed
from .hooks import UNCHANGED, current_run

Giver = Callable[[int, dict[str, Any]], Any]
"""``giver(call, arguments) -> value | UNCHANGED``. `call` counts this module's calls in the run
from 0; `arguments` are those of the call by name. UNCHANGED lets the module run."""

_changing = threading.Lock()
"""Two threads may put a seam on one module, or take it away, at once."""


class _Entry:
    """What one run gives for one module."""

    def __init__(self, giver: Giver, bind: Callable[..., Arguments]) -> None:
        self.run = current_run()
        self.giver = giver
        self.bind = bind
        self.calls = 0

    def value(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call, self.calls = self.calls, self.calls + 1
        try:
            return self.giver(call, self.bind(args, kwargs).value)
        except BaseException as error:
            # A model that catches errors of its parts must not hide ours.
            self.run.failures.append(error)
            raise


class _Seam:
    """What stands in a module's ``forward`` while some run skips it.

    A call of any other run, thread or copy of the model gets the true forward.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = module.__dict__.get("forward")
        self.entries: list[_Entry] = []

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The true forward; `inspect.signature` follows this name."""
        if self.own is not None:
            return self.own  # type: ignore[no-any-return]
        return types.MethodType(type(self.module).forward, self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value: Any = UNCHANGED
        for entry in tuple(self.entries):
            if entry.run.is_current():
                given = entry.value(args, kwargs)
                value = value if given is UNCHANGED else given
        return self.__wrapped__(*args, **kwargs) if value is UNCHANGED else value

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the model made meanwhile gets the true forward of the copy."""
        from copy import deepcopy

        if self.own is not None:
            return deepcopy(self.own, memo)
        return types.MethodType(type(self.module).forward, memo[id(self.module)])

    def __reduce__(self) -> Any:
        """A model that is pickled meanwhile, too."""
        if self.own is not None:
            return _itself, (self.own,)
        return partial, (type(self.module).forward, self.module)


def _itself(forward: Any) -> Any:
    return forward


@contextmanager
def skips(givers: Sequence[tuple[nn.Module, Giver]]) -> Iterator[None]:
    """Let `givers` stand in for their modules in the capture in progress on this thread.

    Of several for one module the last one counts. On the way out, by whatever way, every module
    has the forward that it had before: on the instance or not.
    """
    modules = [module for module, _ in givers]
    seams: list[_Seam] = []
    run = current_run() if givers else None
    try:
        with _changing:
            for module, giver in givers:
                _install(module, giver, seams)
        yield
    finally:
        _remove_all(modules, seams, run)


def _install(module: nn.Module, giver: Giver, seams: list[_Seam]) -> None:
    seam = module.__dict__.get("forward")
    if not isinstance(seam, _Seam):
        seam = _Seam(module)
        module.__dict__["forward"] = seam
    seams.append(seam)
    seam.entries.append(_Entry(giver, binder(signed(module, seam.__wrapped__))))


def _remove_all(modules: Sequence[nn.Module], seams: list[_Seam], run: Any) -> None:
    """Remove by looking, as an interrupt may have come between any two steps; one during the
    removal itself starts it again."""
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            with _changing:
                for seam in seams:
                    seam.entries[:] = [e for e in seam.entries if e.run is not run]
                for module in modules:
                    _restore(module, run)
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


def _restore(module: nn.Module, run: Any) -> None:
    """Put the forward back as it was, once no run skips the module. Where someone has wrapped the
    seam meanwhile it stays inside, and passes every call on."""
    seam = module.__dict__.get("forward")
    if not isinstance(seam, _Seam):
        return
    seam.entries[:] = [e for e in seam.entries if e.run is not run]
    if seam.entries:
        return
    if seam.own is None:
        del module.__dict__["forward"]
    else:
        module.__dict__["forward"] = seam.own
