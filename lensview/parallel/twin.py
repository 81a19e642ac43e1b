"""Twin: which dims of every value in a model are features, read from an unsharded model.

Owns the tables of dims per visit, their lookups, and one twin per model. How the model that holds
no weights is made and called is `weightless.py`'s; what a dim means for a rank's piece is
`layout.py`'s.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


@dataclass(frozen=True)
class Mixed:
    """A dim whose size is `features` times a size of the call: "rows", "tokens" (those of a cache
    included), or "both", one times the other."""

    dim: int
    features: int
    of: str


@dataclass
class Table:
    """The dims of every tensor of every visit of one kind of forward.

    Attributes:
        dims: by visit and leaf.
        mixed: leaves with dims that are features times a size of the call, such as heads by rows.
        calls: how often each module ran.
    """

    dims: dict[Visit, dict[Path, Dims]] = field(default_factory=dict)
    mixed: dict[tuple[Visit, Path], list[Mixed]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


@dataclass
class Twin:
    """The tables of one model.

    Attributes:
        reason: why there is no table at all; "" where there is.
        ops_reason: why there is none of ops, once they were asked for.
        classes: each module's class, by path.
        prefill, step: of a first forward, and of one that reads a cache; `step` is empty where the
            model has no cache.
    """

    reason: str = ""
    ops_reason: str = ""
    classes: dict[str, str] = field(default_factory=dict)
    prefill: Table = field(default_factory=Table)
    step: Table = field(default_factory=Table)
    _model: Weightless | None = None
    _ops: tuple[Table, Table] | None = None

    def table(self, ops: bool, cached: bool) -> Table:
        """The table of modules' values, or of those of the ops of their own forwards. The ops, of
        all modules at once, are found out when they are first asked for."""
        if not ops:
            return self.step if cached else self.prefill
        if self._ops is None:
            self._ops = self._read_ops()
        return self._ops[cached]

    def _read_ops(self) -> tuple[Table, Table]:
        if self._model is None:
            return Table(), Table()
        try:
            with _quiet():
                return _tables(self._model, ops=True)
        except Exception as error:
            self.ops_reason = _first_line(error)
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
    for fake, stubbed in ((True, False), (False, False), (True, True)):
        try:
            with _quiet():
                copy = weightless(model, fake, stubbed)
                prefill, step = _tables(copy)
        except Exception as error:
            reason = reason or _first_line(error)
            continue
        classes = {path: type(m).__name__ for path, m in index(copy.model).items()}
        return Twin("", "", classes, prefill, step, copy)
    return Twin(reason)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Fake tensors log every error, those that are caught and answered here too."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _tables(copy: Weightless, ops: bool = False) -> tuple[Table, Table]:
    """The tables of a first forward and of a step, of modules or of their ops."""
    first, second = (_runs(copy, shape, ops) for shape in SHAPES)
    return _merged(first[0], second[0], cached=False), _merged(first[1], second[1], cached=True)


def _runs(copy: Weightless, shape: Shape, ops: bool) -> tuple[Shapes, Shapes]:
    """The shapes of one prefill and of the step after it (none where there is no step)."""
    prefill: Shapes = {}
    step: Shapes = {}
    state = torch.get_rng_state()
    try:
        with copy.running():
            with taps(copy.model, _points(copy.model, prefill, ops)):
                call, output = copy.prefill(shape)
            try:
                with taps(copy.model, _points(copy.model, step, ops)):
                    copy.step(shape, call, output)
            except Exception:
                step.clear()
    finally:
        torch.set_rng_state(state)
    return prefill, step


def _points(model: nn.Module, into: Shapes, ops: bool) -> list[Point]:
    points = []
    seen: set[int] = set()
    sides: tuple[Side, ...] = ("input", "output")
    for path, module in index(model).items():
        if id(module) in seen or only_holds(module):
            continue
        seen.add(id(module))
        point = Point(module)
        for side in sides:
            if ops:
                point.op_point().records[side].append(_op_wish(into, path, side))
            else:
                point.records[side].append(_recorder(into, path, side))
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
            mixed = [_mixed(d, a, b, cached) for d, (a, b) in enumerate(pairs) if a != b]
            if some := [m for m in mixed if m is not None]:
                table.mixed[visit, at] = some
        table.dims[visit] = dims
    table.calls = _calls(table.dims)
    return table


def _calls(dims: Mapping[Visit, Any]) -> dict[str, int]:
    calls: dict[str, int] = {}
    for path, _, call in dims:
        calls[path] = max(calls.get(path, 0), call + 1)
    return calls


def _mixed(dim: int, a: int, b: int, cached: bool) -> Mixed | None:
    """What a dim of size `a` in the first run and `b` in the second is, where it is a size of the
    call times a whole number above 1, the same in both."""
    one, two = SHAPES
    if cached:
        tokens, both = (one.tokens + 1, two.tokens + 1), (one.rows, two.rows)
    else:
        tokens = one.tokens, two.tokens
        both = one.rows * one.tokens, two.rows * two.tokens
    sizes = {"rows": (one.rows, two.rows), "tokens": tokens, "both": both}
    sizes["decoded"] = one.rows * one.decoded, two.rows * two.decoded
    for of, (m, n) in sizes.items():
        if a % m == 0 and b % n == 0 and a // m == b // n > 1:
            return Mixed(dim, a // m, of)
    return None
