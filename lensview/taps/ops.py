"""Taps between ops: values that torch functions take and return inside one module's own forward.

Owns the torch function mode of a run, which op belongs to which forward, and how ops are named and
counted. It does not know sites, plans or traces; a visitor does what is to be done with a value.
See README.md for why a mode, and what counts as an op.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, get_testing_overrides

from ..values import Arguments, binder, main_path
from .opnames import op_name, op_text

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


class OpMode(TorchFunctionMode):
    """The torch functions that one run's thread calls, while a forward that is asked about runs.

    An op is the forward's own if, from the op outwards, the first module call is that forward's:
    found by walking the frames, so that submodules need no hooks. A frame is known by itself, and
    a forward that ended without a word (an interrupt that the model caught) disturbs no other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scopes: dict[FrameType, _Scope] = {}
        self._held: list[tuple[object, dict[FrameType, _Scope]]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        name = op_name(func)
        # Inside vmap and its like a value is one of many at once, and means nothing outside.
        if name is None or torch._C._functorch.peek_interpreter_stack() is not None:
            return func(*args, **kwargs)
        found = self._scope(sys._getframe(1))
        if found is None:
            return func(*args, **kwargs)
        scope, frames = found
        return scope.op(name, func, tuple(args), kwargs, frames)

    def _scope(self, frame: FrameType | None) -> tuple[_Scope, list[FrameType]] | None:
        """The forward that a frame is part of, and the frames from there up to its call."""
        passed: list[FrameType] = []
        while frame is not None:
            code = frame.f_code
            if code is _INNER or code is _CALL:
                scope = self.scopes.get(frame)
                return (scope, passed) if scope is not None and scope.owns(passed) else None
            if code is _VISITING:
                return None
            passed.append(frame)
            frame = frame.f_back
        return None

    def start(self, frame: FrameType, scope: _Scope) -> None:
        """Look at the ops of the forward that the call `frame` runs, until `end`."""
        self.scopes[frame] = scope
        self._stand()

    def end(self, frame: FrameType) -> None:
        """Look no longer."""
        self.scopes.pop(frame, None)
        self._stand()

    def suspend(self, key: object) -> None:
        """Be off while a part runs that must not meet a mode, until `resume` with the same key.
        Forwards inside of it may be looked at all the same."""
        self._held.append((key, self.scopes))
        self.scopes = {}
        self._stand()

    def resume(self, key: object) -> None:
        """Take up again what `suspend` put away; a second time does nothing."""
        if self._held and self._held[-1][0] == key:
            _, self.scopes = self._held.pop()
            self._stand()

    def off(self) -> None:
        """The run is over: leave this thread's stack of modes."""
        self.scopes, self._held = {}, []
        self._stand()

    def _stand(self) -> None:
        """Be on the thread's stack of modes where there is something to look at, else not, wherever
        in it we stood; the modes of others stay as they are."""
        if self.scopes and not self._is_on():
            torch._C._push_on_torch_function_stack(self)
        while not self.scopes and self._is_on():
            above = []
            while (mode := torch._C._pop_torch_function_stack()) is not self:
                above.append(mode)
            for mode in reversed(above):
                torch._C._push_on_torch_function_stack(mode)

    def _is_on(self) -> bool:
        height = torch._C._len_torch_function_stack()
        return any(torch._C._get_function_stack_at(i) is self for i in range(height))


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
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not _INNER and frame.f_code is not _CALL:
            frame = frame.f_back
        if frame is not None:
            self._mode.start(frame, _Scope(self, call))

    def end(self, call: int) -> None:
        """From the first hook after the forward, and once more when the call ends in any way."""
        for frame, scope in list(self._mode.scopes.items()):
            if scope.tap is self and scope.call >= call:
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


class _Scope:
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
        written = _versions(args, kwargs) if visits.edits["output"] else {}
        result = func(*args, **kwargs)
        # What an assignment to a part leaves behind is the tensor that it wrote to.
        value = args[0] if name == "setitem" else result
        if main_path(value) is None:
            return result
        self._counts[name] = k + 1
        self.tap.point.met.texts.setdefault(visits.text)
        new = self._visited(visits.edits["output"], value)
        if new is not None:
            if _was_written(value, written, name, kwargs):
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
        bound = _bound(func, args, kwargs)
        value = bound.value
        new = self._visited(visits.edits["input"], value)
        if new is not None:
            target = next(iter(value))
            old = value[target]
            if _is_in_place(name, value) and isinstance(old, Tensor) and new[target] is not old:
                # The op writes to this very tensor, which others hold.
                old.copy_(new[target])
                new = {**new, target: old}
            value = new
            args, kwargs = bound.call(value)
        self._visited(visits.records["input"], value)
        return args, kwargs

    def _visited(self, visitors: Sequence[Visitor], value: Any) -> Any:
        return self.tap.visited(visitors, self.call, value) if visitors else None

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
    function: Any = module.forward
    own = type(module).forward
    while own is not getattr(function, "__func__", function):
        inner = getattr(function, "__wrapped__", None)
        if inner is None and isinstance(function, partial):
            inner = function.func
        if inner is None:
            break
        function = inner
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments of a torch function by name; by ``arg0``, ``arg1``, … where it tells none."""
    bound = _binder(func)(args, kwargs)
    if any(n in kwargs for n in bound.positional):
        return _UNNAMED(args, kwargs)
    return bound


@lru_cache(maxsize=1024)
def _binder(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Arguments]:
    # Functions written in C have no signature; PyTorch keeps a table of stand-ins that do.
    return binder(get_testing_overrides().get(func, func))


_UNNAMED = binder(cast(Any, None))


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]


def _versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, int | None]:
    """The version counters of an op's arguments, by identity; None where there is no counter."""
    return {id(t): None if t.is_inference() else t._version for t in _tensors(args, kwargs)}


def _was_written(
    value: Any, before: Mapping[int, int | None], name: str, kwargs: Mapping[str, Any]
) -> bool:
    """Whether `value` is an argument that the op wrote to, not one that it handed back as it was
    (dropout in eval mode, a `to` that has nothing to do)."""
    if not isinstance(value, Tensor) or id(value) not in before:
        return False
    version = before[id(value)]
    if version is None:
        return _is_in_place(name, kwargs) or "out" in kwargs
    return value._version != version


def _is_in_place(name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether an op is to write to its first argument, by what it is called and told."""
    return name == "setitem" or name.endswith("_") or arguments.get("inplace") is True


_TORCH = str(Path(torch.__file__).parent)
_CALL: CodeType = nn.Module._call_impl.__code__
_INNER: CodeType = next(
    (c for c in _CALL.co_consts if isinstance(c, CodeType) and c.co_name == "inner"), _CALL
)
"""The code that runs every module's forward: without hooks the first, with hooks the second."""
_VISITING: CodeType = _Scope._visited.__code__
"""What visitors do with tensors is no op of anybody's forward."""
