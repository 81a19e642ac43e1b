"""Taps between ops: values that torch functions take and return inside one module's own forward.

Owns the count of ops within a call, and the order in which they are visited. Whose op a call of a
torch function is, is `opmode.py`'s; it does not know sites, plans or traces; a visitor does what is
to be done with a value. See README.md for why a mode, and what counts as an op.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..values import main_path
from .forwards import layers
from .opcalls import bound, is_in_place, versions, was_written, with_defaults
from .opmode import OpMode, aside, module_call
from .opnames import op_text

if TYPE_CHECKING:
    from ..sites import Side
    from .hooks import Visitor


@dataclass(frozen=True)
class OpWish:
    """What is to be done at some of a forward's ops.

    `takes(name, k)` says whether the k-th op of that name within a call is meant; `visitor(name,
    k)` is asked for what visits it, once for each.
    """

    takes: Callable[[str, int], bool]
    visitor: Callable[[str, int], Visitor]


@dataclass(frozen=True)
class OpSight:
    """One op that passed: `value` is its result, `frame` the line of model code that called it."""

    call: int
    text: str
    value: Any
    frame: FrameType


@dataclass(eq=False)
class OpsMet:
    """What a run met in one module. It holds no visitor, so that whoever keeps it is in no circle.

    `calls` counts the module's forwards; `texts` are the ops that passed, as ``matmul.1``, in the
    order in which they first did.
    """

    calls: int = 0
    texts: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class OpPoint:
    """What happens at the ops of one module's forward. Edits run before records."""

    edits: dict[Side, list[OpWish]] = field(default_factory=lambda: {"input": [], "output": []})
    records: dict[Side, list[OpWish]] = field(default_factory=lambda: {"input": [], "output": []})
    notice: Callable[[OpSight], None] | None = None
    met: OpsMet = field(default_factory=OpsMet)


@dataclass(frozen=True)
class _Visits:
    """What visits one op of one module."""

    text: str
    edits: Mapping[Side, Sequence[Visitor]]
    records: Mapping[Side, Sequence[Visitor]]


class OpTap:
    """The ops of one module during one run. `visited` runs visitors, as module taps do."""

    def __init__(
        self,
        module: nn.Module,
        point: OpPoint,
        mode: OpMode,
        visited: Callable[[Sequence[Visitor], int, Any], Any],
    ) -> None:
        self.point = point
        self.visited = visited
        self.code = forward_code(module)
        self._mode = mode
        self._known: dict[tuple[str, int], _Visits] = {}

    def start(self, call: int) -> None:
        """From the last pre-hook of a call: its forward comes next."""
        self.point.met.calls = call + 1
        frame = module_call(sys._getframe(1))
        if frame is not None:
            self._mode.start(frame, _OpenCall(self, call))

    def end(self, call: int) -> None:
        """From the first hook after the forward, and once more when the call ends in any way."""
        for frame, scope in list(self._mode.scopes.items()):
            if isinstance(scope, _OpenCall) and scope.tap is self and scope.call >= call:
                self._mode.end(frame)

    def visits(self, name: str, k: int) -> _Visits:
        """What visits the k-th op of a name."""
        known = self._known.get((name, k))
        if known is None:

            def chosen(wishes: Mapping[Side, list[OpWish]]) -> dict[Side, list[Visitor]]:
                return {
                    side: [w.visitor(name, k) for w in some if w.takes(name, k)]
                    for side, some in wishes.items()
                }

            point = self.point
            known = _Visits(op_text(name, k), chosen(point.edits), chosen(point.records))
            self._known[name, k] = known
        return known


class _OpenCall:
    """The ops of one call of one module."""

    def __init__(self, tap: OpTap, call: int) -> None:
        self.tap = tap
        self.call = call
        self._counts: dict[str, int] = {}

    def owns(self, frames: Sequence[FrameType]) -> bool:
        """Whether the forward itself is among the frames, and not only a wrapper around it."""
        code = self.tap.code
        return code is None or any(f.f_code is code for f in frames)

    def op(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frames: Sequence[FrameType],
    ) -> Any:
        """Run one op, visited on both sides; what the model gets of it."""
        k = self._counts.get(name, 0)
        visits = self.tap.visits(name, k)
        if visits.edits["input"] or visits.records["input"]:
            args, kwargs = self._input(visits, name, func, args, kwargs)
        written = versions(args, kwargs) if visits.edits["output"] else {}
        result = func(*args, **kwargs)
        # What an assignment to a part leaves behind is the tensor that it wrote to.
        value = args[0] if name == "setitem" else result
        if main_path(value) is None:
            return result
        self._counts[name] = k + 1
        self.tap.point.met.texts.setdefault(visits.text)
        new = self._visited(visits.edits["output"], value)
        if new is not None:
            if was_written(value, written, name, kwargs):
                # Others hold this very tensor and read from it what the op wrote.
                value.copy_(new)
            else:
                result = value = new
        self._visited(visits.records["output"], value)
        if self.tap.point.notice is not None:
            line = self._line(frames)
            self.tap.point.notice(OpSight(self.call, visits.text, value, line))
        return result

    def _input(
        self,
        visits: _Visits,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arguments = bound(func, args, kwargs)
        value = arguments.value
        new = self._visited(visits.edits["input"], value)
        if new is not None:
            target = next(iter(value))
            old = value[target]
            if is_in_place(name, value) and isinstance(old, Tensor) and new[target] is not old:
                # The op writes to this very tensor, which others hold.
                old.copy_(new[target])
                new = {**new, target: old}
            value = new
            args, kwargs = arguments.call(value)
        self._visited(visits.records["input"], with_defaults(func, value))
        return args, kwargs

    def _visited(self, visitors: Sequence[Visitor], value: Any) -> Any:
        return aside(self.tap.visited, visitors, self.call, value) if visitors else None

    def _line(self, frames: Sequence[FrameType]) -> FrameType:
        """The innermost line of model code: torch's own Python is passed over."""
        for frame in frames:
            code = frame.f_code
            if code is self.tap.code or not code.co_filename.startswith(_TORCH):
                return frame
        return frames[-1]


def forward_code(module: nn.Module) -> CodeType | None:
    """The code that a module's class has for its forward, decorators of the class included (some
    choose another implementation), but not what stands around it on the instance, as accelerate's
    hooks do; None where it is no Python."""
    *_, function = layers(module)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


_TORCH = str(Path(torch.__file__).parent / "_")[:-1]
"""Where torch's own files are, with a separator at its end."""
