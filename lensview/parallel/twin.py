"""Twin: which dims of every value in a model are features, read from an unsharded model.

Owns the tables of dims per visit, their lookups, and one twin per model. How the model that holds
no weights is made and called is `weightless.py`'s; what a dim means for a rank's piece is
`layout.py`'s.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..modules import index, only_holds
from ..sites import Side
from ..taps.hooks import UNCHANGED, Point, Visitor, taps
from ..taps.ops import OpWish
from ..values import Path, leaves
from .weightless import SHAPES, Shape, Weightless, weightless

Dims = tuple[int | None, ...]
"""A size for each feature dim, None for each dim that the call decides."""

Visit = tuple[str, Side, int]
"""A module's path, a side and a call; an op's path has its name and number: ``path/op.k``."""

Shapes = dict[Visit, dict[Path, tuple[int, ...]]]


@dataclass
class Table:
    """The dims of every tensor of every visit of one kind of forward.

    Attributes:
        dims: by visit and leaf.
        mixed: leaves of which a dim is a feature times a size of the call, such as heads by rows.
        calls: how often each module ran.
    """

    dims: dict[Visit, dict[Path, Dims]] = field(default_factory=dict)
    mixed: set[tuple[Visit, Path]] = field(default_factory=set)
    calls: dict[str, int] = field(default_factory=dict)


@dataclass
class Twin:
    """The tables of one model.

    Attributes:
        reason: why there is no table at all; "" where there is.
        classes: each module's class, by path.
        prefill, step: of a first forward, and of one that reads a cache; `step` is empty where the
            model has no cache.
    """

    reason: str = ""
    classes: dict[str, str] = field(default_factory=dict)
    prefill: Table = field(default_factory=Table)
    step: Table = field(default_factory=Table)
    _model: Weightless | None = None
    _ops: dict[str, tuple[Table, Table]] = field(default_factory=dict)

    def table(self, path: str, ops: bool, cached: bool) -> Table:
        """The table that holds a module's values, or those of the ops of its own forward. The ops
        of a module are found out when they are first asked for."""
        if not ops:
            return self.step if cached else self.prefill
        known = self._ops.get(path)
        if known is None:
            known = self._ops[path] = self._ops_of(path)
        return known[cached]

    def _ops_of(self, path: str) -> tuple[Table, Table]:
        if self._model is None:
            return Table(), Table()
        try:
            return _tables(self._model, path)
        except Exception:
            return Table(), Table()


_twins: weakref.WeakKeyDictionary[nn.Module, dict[str, Twin]] = weakref.WeakKeyDictionary()


def twin_of(model: nn.Module) -> Twin:
    """The model's twin, made when it is first asked for; one without tables, and with a reason,
    where none can be made. The model is not touched, and neither is the random state."""
    config = getattr(model, "config", None)
    kernel = str(getattr(config, "_attn_implementation", None))
    known = _twins.setdefault(model, {})
    if kernel not in known:
        known[kernel] = _made(model)
    return known[kernel]


def _made(model: nn.Module) -> Twin:
    if not hasattr(getattr(model, "config", None), "to_dict"):
        return Twin(f"{type(model).__name__} has no configuration to make it again from")
    reason = ""
    for fake in (True, False):
        try:
            copy = weightless(model, fake)
            prefill, step = _tables(copy)
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        classes = {path: type(m).__name__ for path, m in index(copy.model).items()}
        return Twin("", classes, prefill, step, copy)
    return Twin(reason)


def _tables(copy: Weightless, ops_of: str | None = None) -> tuple[Table, Table]:
    """The tables of a first forward and of a step, over all modules or over one module's ops."""
    first, second = (_runs(copy, shape, ops_of) for shape in SHAPES)
    return _merged(first[0], second[0], cached=False), _merged(first[1], second[1], cached=True)


def _runs(copy: Weightless, shape: Shape, ops_of: str | None) -> tuple[Shapes, Shapes]:
    """The shapes of one prefill and of the step after it (none where there is no step)."""
    prefill: Shapes = {}
    step: Shapes = {}
    state = torch.get_rng_state()
    try:
        with copy.running():
            with taps(copy.model, _points(copy.model, prefill, ops_of)):
                call, output = copy.prefill(shape)
            try:
                with taps(copy.model, _points(copy.model, step, ops_of)):
                    copy.step(shape, call, output)
            except Exception:
                step.clear()
    finally:
        torch.set_rng_state(state)
    return prefill, step


def _points(model: nn.Module, into: Shapes, ops_of: str | None) -> list[Point]:
    points = []
    modules = index(model)
    if ops_of is not None:
        modules = {ops_of: modules[ops_of]} if ops_of in modules else {}
    seen: set[int] = set()
    sides: tuple[Side, ...] = ("input", "output")
    for path, module in modules.items():
        if id(module) in seen or only_holds(module):
            continue
        seen.add(id(module))
        point = Point(module)
        for side in sides:
            if ops_of is None:
                point.records[side].append(_recorder(into, path, side))
            else:
                point.op_point().records[side].append(_op_wish(into, path, side))
        points.append(point)
    return points


def op_path(path: str, name: str, k: int) -> str:
    """The path of an op in a table."""
    return f"{path}/{name}.{k}"


def _op_wish(into: Shapes, path: str, side: Side) -> OpWish:
    return OpWish(
        lambda name, k: True, lambda name, k: _recorder(into, op_path(path, name, k), side)
    )


def _recorder(into: Shapes, path: str, side: Side) -> Visitor:
    def record(call: int, value: Any) -> Any:
        into[path, side, call] = {
            at: tuple(int(n) for n in leaf.shape)
            for at, leaf in leaves(value)
            if isinstance(leaf, Tensor)
        }
        return UNCHANGED

    return record


def _merged(first: Shapes, second: Shapes, cached: bool) -> Table:
    """What two runs agree on. A visit that only one of them made is in no table."""
    table = Table()
    for visit, shapes in first.items():
        others = second.get(visit)
        if others is None:
            continue
        dims: dict[Path, Dims] = {}
        for at, shape in shapes.items():
            other = others.get(at)
            if other is None or len(other) != len(shape):
                continue
            pairs = list(zip(shape, other, strict=True))
            dims[at] = tuple(a if a == b else None for a, b in pairs)
            if any(_is_mixed(a, b, cached) for a, b in pairs if a != b):
                table.mixed.add((visit, at))
        table.dims[visit] = dims
    table.calls = _calls(table.dims)
    return table


def _calls(dims: Mapping[Visit, Any]) -> dict[str, int]:
    calls: dict[str, int] = {}
    for path, _, call in dims:
        calls[path] = max(calls.get(path, 0), call + 1)
    return calls


def _is_mixed(a: int, b: int, cached: bool) -> bool:
    """Whether a dim of size `a` in the first run and `b` in the second is a size of the call times
    a whole number above 1, the same in both."""
    one, two = SHAPES
    further = int(cached)
    for m, n in (
        (one.rows, two.rows),
        (one.tokens + further, two.tokens + further),
        (one.rows * one.tokens, two.rows * two.tokens),
        (one.rows * one.decoded, two.rows * two.decoded),
    ):
        if a % m == 0 and b % n == 0 and a // m == b // n > 1:
            return True
    return False
