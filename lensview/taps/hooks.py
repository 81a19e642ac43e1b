"""Taps on module boundaries: the only place that installs and removes hooks.

Owns one context manager, `taps`, and the order in which values are visited. It does not know
sites, plans or traces; a visitor does what is to be done with a value. See README.md for why hooks
stand this way and what they hold to.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..sites import Side
from ..values import Arguments, binder
from .forwards import signed
from .fused import outermost
from .opmode import OpMode
from .ops import OpPoint, OpTap


class _Unchanged:
    """What a visitor returns to let the value pass as it is."""


UNCHANGED = _Unchanged()
Visitor = Callable[[int, Any], Any]
"""``visitor(call, value) -> value | UNCHANGED``. `call` counts this module's calls in the run from
0; an input's value is a dict of name to argument, in signature order."""


@dataclass
class Point:
    """What happens at one module. Edits run before other people's hooks, records after them.

    `passed` is called at the start of every call; it may raise to stop the run. `ops` is what
    happens between the ops of its own forward.
    """

    module: nn.Module
    edits: dict[Side, list[Visitor]] = field(default_factory=lambda: {"input": [], "output": []})
    records: dict[Side, list[Visitor]] = field(default_factory=lambda: {"input": [], "output": []})
    passed: Callable[[], None] | None = None
    ops: OpPoint | None = None
    quiet: bool = False

    def op_point(self) -> OpPoint:
        """`ops`, made where there was none."""
        if self.ops is None:
            self.ops = OpPoint()
        return self.ops


class _Run:
    """One capture in progress on one thread."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self.failures: list[BaseException] = []
        self.ops = OpMode()

    def is_current(self) -> bool:
        """Whether a forward on this thread belongs to this run: not another thread's, and not that
        of a capture of the same model which started inside it (that is a run of its own)."""
        for run in reversed(_active.runs):
            if run is self:
                return True
            if run.root is self.root:
                return False
        return False

    def visited(self, visitors: Sequence[Visitor], call: int, value: Any) -> Any:
        """The value after all visitors, or None (a hook's "unchanged") where none changed it."""
        changed = False
        try:
            for visitor in visitors:
                new = visitor(call, value)
                if new is not UNCHANGED:
                    value, changed = new, True
        except BaseException as error:
            # A model that catches errors of its parts must not hide ours.
            self.failures.append(error)
            raise
        return value if changed else None


class _Active(threading.local):
    """The captures in progress on each thread, outermost first."""

    def __init__(self) -> None:
        self.runs: list[_Run] = []


_active = _Active()
_registering = threading.Lock()
"""PyTorch numbers hooks by a counter that two threads can read at once, and one hook of a pair with
the same number is lost without a word."""


class _NoTap:
    """What a pickle of the model made during a run has in a tap's place: hooks that do nothing."""

    def enter(self, *_: Any) -> None:
        """Nothing."""

    seen = edit = leave = enter


class _Tap:
    """The hooks of one point during one run.

    A copy of the model made while the run lasts carries copies of the hooks: they hold the same
    tap (`__deepcopy__`), see another module than theirs, and do nothing. A pickle of it has
    `_NoTap` instead.
    """

    def __init__(self, point: Point, run: _Run) -> None:
        self.point = point
        self.run = run
        self.calls = 0
        self.open: list[int] = []
        needs_names = point.edits["input"] or point.records["input"]
        self.bind = binder(signed(point.module)) if needs_names else None
        self.ops: OpTap | None = None
        if point.ops is not None:
            self.ops = OpTap(point.module, point.ops, run.ops, run.visited)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Tap:
        return self

    def __reduce__(self) -> tuple[type[_NoTap], tuple[()]]:
        return _NoTap, ()

    def foreign(self, module: nn.Module) -> bool:
        """Whether this call is another run's, or of a copy of our module."""
        return module is not self.point.module or not self.run.is_current()

    # `kwargs` is missing where a forward on another thread meets a hook that is half installed.
    def enter(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """Before everyone's pre-hooks: count the call, edit its input."""
        if self.foreign(module):
            return None
        if self.point.passed is not None:
            self.point.passed()
        self.open.append(self.calls)
        self.calls += 1
        return self._input(self.point.edits["input"], args, kwargs)

    def seen(self, module: nn.Module, args: Any, kwargs: Any = None) -> Any:
        """After everyone's pre-hooks: record the input that the module gets; its ops come next."""
        if self.foreign(module) or not self.open:
            return None
        self._input(self.point.records["input"], args, kwargs)
        if self.point.quiet:
            self.run.ops.suspend((id(self), self.open[-1]))
        if self.ops is not None:
            self.ops.start(self.open[-1])
        return None

    def edit(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Before everyone's forward hooks: its ops are over; edit the output."""
        if self.foreign(module) or not self.open:
            return None
        self._ops_are_over(self.open[-1])
        return self.run.visited(self.point.edits["output"], self.open[-1], output)

    def leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        """After everyone's forward hooks, and when the call raised: record, end the call."""
        if self.foreign(module) or not self.open:
            return None
        call = self.open.pop()
        self._ops_are_over(call)
        return self.run.visited(self.point.records["output"], call, output)

    def _ops_are_over(self, call: int) -> None:
        if self.ops is not None:
            self.ops.end(call)
        if self.point.quiet:
            self.run.ops.resume((id(self), call))

    def _input(self, visitors: Sequence[Visitor], args: Any, kwargs: Any) -> Any:
        if not visitors or self.bind is None:
            return None
        bound: Arguments = self.bind(args, kwargs)
        value = self.run.visited(visitors, self.open[-1], bound.value)
        return None if value is None else bound.call(value)


def current_run() -> _Run:
    """The innermost capture in progress on this thread; there must be one."""
    return _active.runs[-1]


@contextmanager
def taps(root: nn.Module, points: Sequence[Point]) -> Iterator[Callable[[], None]]:
    """Hold hooks on the points' modules for the length of one run of `root` on this thread.

    Gives a function that counts the calls from 0 again, for runs of several forwards: it is to be
    called between two of them.

    On the way out, by whatever way, every module has the hooks that it had before.

    Raises:
        Whatever a visitor raised, also where the model itself caught it.
    """
    run = _Run(root)
    held = [(point.module, _Tap(point, run)) for point in _with_quiet(points)]
    try:
        _active.runs.append(run)
        with _registering:
            for module, tap in held:
                _install(module, tap)
        yield lambda: _restart(held)
    finally:
        _remove_all(held, run)
    if run.failures:
        raise run.failures[0]


def _with_quiet(points: Sequence[Point]) -> list[Point]:
    """The points, and those of parts that must not meet the mode of a module around them."""
    found = {id(part): part for p in points if p.ops is not None for part in outermost(p.module)}
    for point in points:
        point.quiet = found.pop(id(point.module), None) is not None
    return [*points, *(Point(part, quiet=True) for part in found.values())]


def _restart(held: Sequence[tuple[nn.Module, _Tap]]) -> None:
    for _, tap in held:
        tap.calls = 0


def _install(module: nn.Module, tap: _Tap) -> None:
    module.register_forward_pre_hook(tap.enter, with_kwargs=True, prepend=True)
    module.register_forward_hook(tap.leave, always_call=True)
    between = tap.ops is not None or tap.point.quiet
    if tap.point.records["input"] or between:
        module.register_forward_pre_hook(tap.seen, with_kwargs=True)
    if tap.point.edits["output"] or between:
        module.register_forward_hook(tap.edit, prepend=True)


def _remove_all(held: Sequence[tuple[nn.Module, _Tap]], run: _Run) -> None:
    """Remove by looking, not by handle: an interrupt between a registration and the keeping of its
    handle would leave a hook behind, and one during the removal itself starts it again."""
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            run.ops.off()
            _active.runs[:] = [r for r in _active.runs if r is not run]
            for module, tap in held:
                _remove(module, tap)
            break
        except KeyboardInterrupt as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted


def _remove(module: nn.Module, tap: _Tap) -> None:
    for hooks, extras in (
        (module._forward_pre_hooks, (module._forward_pre_hooks_with_kwargs,)),
        (
            module._forward_hooks,
            (module._forward_hooks_with_kwargs, module._forward_hooks_always_called),
        ),
    ):
        # A list first: another thread's run may add its hooks meanwhile.
        for key, hook in list(hooks.items()):
            if getattr(hook, "__self__", None) is not tap:
                continue
            for table in (*extras, hooks):
                table.pop(key, None)
