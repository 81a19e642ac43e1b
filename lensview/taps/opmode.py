"""Op mode: a run's torch function mode, and whose op a call of a torch function is.

Owns the place on a thread's stack of modes and the walk over frames. What is done with an op is
`ops.py`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .opnames import op_name


class Scope(Protocol):
    """One call of a module whose ops are looked at."""

    def owns(self, frames: Sequence[FrameType]) -> bool:
        """Whether an op with these frames, innermost first, below the call is the forward's."""

    def op(
        self,
        name: str,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frames: Sequence[FrameType],
    ) -> Any:
        """Run the op; what the model gets of it."""


class OpMode(TorchFunctionMode):
    """The torch functions that one run's thread calls, while a forward that is asked about runs.

    An op is the forward's own if, from the op outwards, the first module call is that forward's:
    found by walking the frames, so that submodules need no hooks. A frame is known by itself, and
    a forward that ended without a word (an interrupt that the model caught) disturbs no other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scopes: dict[FrameType, Scope] = {}
        self._held: list[tuple[object, dict[FrameType, Scope]]] = []

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

    def _scope(self, frame: FrameType | None) -> tuple[Scope, list[FrameType]] | None:
        """The forward that a frame is part of, and the frames from there up to its call."""
        passed: list[FrameType] = []
        while frame is not None:
            code = frame.f_code
            if code is _INNER or code is _CALL:
                scope = self.scopes.get(frame)
                return (scope, passed) if scope is not None and scope.owns(passed) else None
            if code is _ASIDE:
                return None
            passed.append(frame)
            frame = frame.f_back
        return None

    def start(self, frame: FrameType, scope: Scope) -> None:
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


def aside(function: Callable[..., Any], *args: Any) -> Any:
    """Call what is not the model's: the torch functions that it uses are nobody's ops."""
    return function(*args)


def module_call(frame: FrameType | None) -> FrameType | None:
    """The innermost call of a module that a frame is part of, itself included."""
    while frame is not None and frame.f_code is not _INNER and frame.f_code is not _CALL:
        frame = frame.f_back
    return frame


_CALL: CodeType = nn.Module._call_impl.__code__
_INNER: CodeType = next(
    (c for c in _CALL.co_consts if isinstance(c, CodeType) and c.co_name == "inner"), _CALL
)
"""The code that runs every module's forward: without hooks the first, with hooks the second."""
_ASIDE: CodeType = aside.__code__
