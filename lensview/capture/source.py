"""Source: the code of a module's forward, with the ops that a run met on each line.

Owns `lv.source`. The text is what Python itself has of the functions; nothing is rewritten. Which
ops there are is `taps/ops.py`'s to see.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from torch import nn

from ..modules import index
from ..resolve import Target, find
from ..sites import Site
from ..taps.forwards import layers
from ..taps.hooks import Point, taps
from ..taps.ops import OpPoint, OpSight
from ..values import main_in
from ..watch import Watch
from ..wrappers.refusal import refuse
from ..wrappers.unwrap import eagerly, unwrap
from .inputs import prepare
from .opsites import no_ops
from .run import follow

_WIDTH = 88
"""Columns of code before the column of sites."""


@dataclass(frozen=True)
class SourceOp:
    """One op met on a line: its site, and shape and dtype of its result's main tensor."""

    site: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.site} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class SourceLine:
    """One line of a function that the forward ran, and the ops met there, in order.

    Attributes:
        file: as Python names it.
        number: the line's number in that file, from 1.
        text: without its line end.
        function: the qualified name of the function.
        ops: empty without inputs, and on lines that ran none.
    """

    file: str
    number: int
    text: str
    function: str
    ops: tuple[SourceOp, ...] = ()


@dataclass(frozen=True)
class Source:
    """The code of one module's forward and of the helpers that ran ops for it.

    ``str()`` is the text with the sites in a right column.

    Attributes:
        path: the module's site path.
        lines: the forward's, then each helper's, in the order in which they ran ops.
        calls: how often the module was called in the run; 0 without inputs.
    """

    path: str
    lines: tuple[SourceLine, ...]
    calls: int = 0

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites of all ops met, line by line."""
        return tuple(op.site for line in self.lines for op in line.ops)

    def __str__(self) -> str:
        rows: list[str] = []
        function = ""
        prefix = f"{self.path}/"
        for line in self.lines:
            if line.function != function:
                function = line.function
                rows += [*([""] if rows else []), f"# {function}, {line.file}:{line.number}"]
            code = f"{line.number:5} {line.text}"
            for position, op in enumerate(line.ops):
                left = code if not position else ""
                rows.append(f"{left:{_WIDTH}}  # {str(op).removeprefix(prefix)}")
            if not line.ops:
                rows.append(code.rstrip())
        return "\n".join(rows)


@dataclass
class _Met:
    """The ops that a run met, by function and line."""

    functions: dict[CodeType, dict[int, list[tuple[int, str, Any]]]] = field(default_factory=dict)

    def notice(self, sight: OpSight) -> None:
        lines = self.functions.setdefault(sight.frame.f_code, {})
        _, tensor = main_in(sight.value, ())
        ops = lines.setdefault(sight.frame.f_lineno, [])
        if tensor is not None:
            ops.append((sight.call, sight.text, (tuple(tensor.shape), str(tensor.dtype))))


def source(
    model: nn.Module,
    path: str,
    inputs: Any = None,
    tokenizer: Any = None,
    *,
    watch: Watch | None = None,
) -> Source:
    """The code of the forward of the module at `path`, with the ops met on each line.

    Args:
        model: as for `trace`.
        path: the module's site path; "" is the root.
        inputs: as for `trace`; the model is run once, under ``torch.no_grad()``. None runs nothing
            and gives the code alone.
        tokenizer: reads strings.
        watch: follows the run and can cancel it.

    Returns:
        A `Source`; print it, or read its `lines`. Sites carry ``@call`` where the module was called
        several times.

    Raises:
        SiteError: there is no such module; has near matches. Or its ops cannot be looked at without
            changing what it computes (PyTorch's fused attention); says how they can.
        InputError, TypeError, CaptureUnsupportedError, RunCancelled: as for `trace`.
    """
    root = unwrap(model)
    call = None if inputs is None else prepare(root, inputs, tokenizer)
    modules = index(root)
    if call is not None:
        refuse(modules)
    place = find(Site.parse(path).path, modules, path)
    module = modules[place]
    if call is not None:
        no_ops(Target(path, Site(place), module, False))
    met = _Met()
    ops = OpPoint(notice=met.notice)
    if call is not None:
        points = {id(module): Point(module, ops=ops)}
        if watch is not None:
            follow(root, watch, lambda at: points.setdefault(id(at), Point(at)), points)
        with torch.no_grad(), eagerly(root, True), taps(root, list(points.values())):
            root(*call.args, **call.kwargs)
    calls = ops.met.calls
    return Source(place, tuple(_lines(place, _written(module), met, calls)), calls)


def _written(module: nn.Module) -> CodeType | None:
    """The code of a forward as its author wrote it, under all decorators and wrappers."""
    *_, function = layers(module)
    function = inspect.unwrap(function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _lines(path: str, forward: CodeType | None, met: _Met, calls: int) -> Iterable[SourceLine]:
    own = [] if forward is None else [forward]
    for code in dict.fromkeys([*own, *met.functions]):
        ops = met.functions.get(code, {})
        known: dict[int, tuple[SourceOp, ...]] = {
            number: tuple(_op(path, some, calls) for some in found) for number, found in ops.items()
        }
        for number, text in _text(code, known):
            yield SourceLine(
                code.co_filename, number, text, code.co_qualname, known.get(number, ())
            )


def _op(path: str, found: tuple[int, str, Any], calls: int) -> SourceOp:
    call, text, (shape, dtype) = found
    site = Site.parse(f"{path}/{text}").at_call(call if calls > 1 else None)
    return SourceOp(str(site), shape, dtype.removeprefix("torch."))


def _text(code: CodeType, ops: dict[int, Any]) -> Sequence[tuple[int, str]]:
    """The numbered lines of a function; of one that has no file, those that ran ops."""
    try:
        lines, first = inspect.getsourcelines(code)
    except OSError:  # made in memory: by exec, by torch.fx, in a session without history
        return [(number, "(its source is not on file)") for number in sorted(ops)]
    return [(first + i, line.rstrip("\n")) for i, line in enumerate(lines)]
