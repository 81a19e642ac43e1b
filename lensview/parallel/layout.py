"""Layout: what one rank's value is of the whole, at every site of a sharded model.

Owns the decision and its checks: a value's own DTensor placement, the public facts at a Linear or
Embedding, the styles of containers, the twin's table; where none of them decides, or two disagree,
the value is rank-local, with a sentence that says why. Every rank decides the same: from the plan,
the twin and shapes alone. Moving data is `group.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..modules import index
from ..sites import Side
from ..values import Path
from .placements import Local, Packed, Placement, Scaled, Shard, Whole, local_size
from .styles import GATHERING, REDUCING, Sharding, Split, sharding, split_of, splits
from .twin import Dims, Table, Twin, op_path, twin_of


@dataclass(frozen=True)
class _Known:
    """What the twin knows of a leaf: its dims, and which of them mix features with a size of the
    call, so that a part of them is no chunk."""

    dims: Dims
    mixed: tuple[int, ...] = ()


class Layout:
    """The layout of one sharded model.

    Attributes:
        sharding: how transformers split it.
    """

    def __init__(self, model: nn.Module) -> None:
        """Read how `model`, which must be sharded, is split.

        Raises:
            CaptureUnsupportedError: this version of transformers splits in another way.
        """
        self.sharding: Sharding = sharding(model)
        self._model = model
        self._sizes: dict[str, int] = {}
        self._first: dict[int, str] = {}
        self._packed: list[tuple[str, int, int]] = []
        for path, module in index(model).items():
            self._first.setdefault(id(module), path)
            packed = [s for s in splits(module).values() if s.parts > 1]
            self._packed += [(path, s.size, s.parts) for s in packed]

    @property
    def twin(self) -> Twin:
        """The unsharded twin, made when it is first needed."""
        return twin_of(self._model)

    def style(self, path: str) -> str:
        """The style that the plan gives a module, "" for none."""
        return self.sharding.styles.get(path, "")

    def whole_shape(self, path: str, side: Side, call: int = 0, leaf: Path = ()) -> Dims | None:
        """The whole's shape before any run, None at dims that the call decides; None where the
        twin did not see the value."""
        return self.twin.prefill.dims.get((path, side, call), {}).get(leaf)

    def begin(self, rows: int, tokens: int, past: int = 0) -> None:
        """Say how large the next forward's call is: how many rows, of how many tokens each, and how
        many tokens its cache has. Without it, values of which a dim is heads by tokens are
        rank-local."""
        self._sizes = {"tokens": tokens + past, "both": rows * tokens}
        if not past or tokens == 1:
            self._sizes["rows"] = rows

    def check_calls(self, counts: Mapping[str, int], cached: bool = False) -> dict[str, str]:
        """The modules of `counts` (how often each ran in one forward) that ran another number of
        times in the twin, with a sentence each: their visits cannot be told apart."""
        known = self.twin.table(False, cached).calls
        wrong = {}
        for path, count in counts.items():
            expected = known.get(path)
            if expected is not None and expected != count and not self._in_experts(path):
                wrong[path] = f"{path} ran {count} times, and {expected} in the unsharded twin"
        return wrong

    def of(
        self,
        path: str,
        module: nn.Module,
        side: Side,
        call: int,
        leaf: Path,
        tensor: Tensor,
        *,
        op: str | None = None,
        op_index: int = 0,
        cached: bool = False,
    ) -> Placement:
        """What `tensor`, one rank's leaf of a visit, is of the whole.

        Args:
            path, module, side, call, leaf: the visit, as taps see it.
            op, op_index: the op of the module's own forward whose value it is.
            cached: whether the forward reads a cache that earlier ones filled.
        """
        own = dtensor_placement(tensor, self.sharding.mesh)
        if own is not None:
            return own
        if self.sharding.refused:
            return Local(f"Nothing says what this is of the whole: {self.sharding.refused}.")
        if path == "" and side == "input" and op is None:
            return Whole()
        path = self._first.get(id(module), path)
        container = self._inside(path, strict=op is None)
        if container is not None and self.style(container) == "ep_dispatch_experts":
            return Local(f"Inside {container}, each rank has the tokens of its own experts.")
        known = self._dims(path, module, side, call, leaf, op, op_index, cached)
        if op is None:
            stated = self._stated(path, module, side, tensor)
            if stated is not None:
                return _agreed(stated, known, tensor)
        placed = self._by_twin(path, known, tensor, op)
        if isinstance(placed, Whole):
            return _maybe_partial(container)
        return placed

    def _stated(self, path: str, module: nn.Module, side: Side, tensor: Tensor) -> Placement | None:
        """What a container's style, or the weight of a Linear or Embedding, says of a side."""
        style = self.style(path)
        if style in GATHERING:
            return Whole()
        if style == "moe_identity_expert":
            return Whole() if side == "input" else Scaled(self.sharding.ranks)
        split = split_of(module)
        if split is None or tensor.ndim == 0:
            return None
        if isinstance(module, nn.Embedding):
            return Whole()
        width = getattr(module, "in_features" if side == "input" else "out_features", None)
        weight = module._parameters["weight"]
        if weight is None or weight.ndim != 2 or not isinstance(width, int):
            return None
        if weight.shape != (getattr(module, "out_features", 0), getattr(module, "in_features", 0)):
            return None
        return self._of_linear(split, side, width, tensor)

    def _of_linear(self, split: Split, side: Side, width: int, tensor: Tensor) -> Placement:
        """A side of a Linear: its split side is whole or this rank's chunk, the other is whole."""
        local, last = tensor.shape[-1], tensor.ndim - 1
        if split.dim != (0 if side == "output" else 1):
            return Whole() if local == width else _unfit(local, width)
        if width == 1:
            return Local("A single feature that is split cannot be told from a whole one.")
        if local == width:
            return Whole()
        if local != self._chunk(width, split.parts):
            return _unfit(local, width)
        return Shard(last, width) if split.parts == 1 else Packed(last, width, split.parts)

    def _chunk(self, size: int, parts: int = 1) -> int:
        return parts * local_size(size // parts, self.sharding.ranks, self.sharding.rank)

    def _dims(
        self,
        path: str,
        module: nn.Module,
        side: Side,
        call: int,
        leaf: Path,
        op: str | None,
        op_index: int,
        cached: bool,
    ) -> _Known | str:
        """The twin's dims of a visit, or why it has none."""
        twin = self.twin
        if twin.reason:
            return f"there is no unsharded twin to compare with ({twin.reason})"
        if twin.classes.get(path) != type(module).__name__:
            return "the model's own configuration does not make this module"
        if op is not None and self._other_experts(path):
            return "its experts are computed by another implementation than the twin's"
        where = path if op is None else op_path(path, op, op_index)
        tables = [twin.table(op is not None, False)]
        if op is not None and twin.ops_reason:
            return f"the ops of the unsharded twin cannot be read ({twin.ops_reason})"
        if cached:
            tables.insert(0, twin.table(op is not None, True))
        for table in tables:
            known = self._visit(table, where, path, side, call, leaf)
            if known is not None:
                return known
        return "the unsharded twin did not see this value"

    def _visit(
        self, table: Table, where: str, path: str, side: Side, call: int, leaf: Path
    ) -> _Known | str | None:
        visit = (where, side, call)
        if visit not in table.dims and self._in_experts(path):
            # How often a part of the experts runs is the routing's choice; each run is alike.
            alike = {
                table.dims[where, side, c].get(leaf)
                for c in range(table.calls.get(where, 0))
                if (where, side, c) in table.dims
            }
            same = alike.pop() if len(alike) == 1 else None
            return None if same is None else _Known(same)
        dims = table.dims.get(visit, {}).get(leaf)
        if dims is None:
            return None
        mixed = table.mixed.get((visit, leaf), [])
        if not mixed or self._in_experts(path):
            return _Known(dims)
        if any(m.of not in self._sizes for m in mixed):
            return "one of its dims is a number of features times a size of the call"
        sizes = {m.dim: m.features * self._sizes[m.of] for m in mixed}
        return _Known(tuple(sizes.get(d, size) for d, size in enumerate(dims)), tuple(sizes))

    def _by_twin(self, path: str, known: _Known | str, tensor: Tensor, op: str | None) -> Placement:
        if isinstance(known, str):
            return Local(f"Nothing says what this is of the whole: {known}.")
        dims = known.dims
        if len(dims) != tensor.ndim:
            return Local(f"It has {tensor.ndim} dims, and {len(dims)} in the unsharded twin.")
        other = _differing(dims, tensor)
        if not other:
            return Whole()
        if len(other) > 1:
            return Local(f"More than one of its feature dims is not whole: {other}.")
        dim = other[0]
        if dim in known.mixed:
            return Local(f"Dim {dim} is a number of features times a size of the call, and split.")
        size = dims[dim]
        assert size is not None
        parts = self._parts(path, size, op)
        if parts is None:
            return Local(f"Dim {dim} may be packed parts of {size} features, or one chunk of them.")
        if tensor.shape[dim] != self._chunk(size, parts):
            return _unfit(tensor.shape[dim], size)
        return Shard(dim, size) if parts == 1 else Packed(dim, size, parts)

    def _parts(self, path: str, size: int, op: str | None) -> int | None:
        """In how many packed parts a rank's chunk of `size` features is; None where it may be
        packed or not: near a module whose weight gives as many features packed."""
        for owner, packed, parts in self._packed:
            if packed != size:
                continue
            if path == owner and op is not None:
                return parts
            around = owner.rpartition(".")[0]
            if path == around or path.startswith(f"{around}." if around else ""):
                return None
        return 1

    def _inside(self, path: str, strict: bool) -> str | None:
        """The innermost module around (or at, unless strict) `path` that adds up parts."""
        at = path.rpartition(".")[0] if strict else path
        first = not strict
        while at or first:
            style = self.style(at)
            if style in GATHERING or (first and style in REDUCING):
                return at
            first = False
            at = at.rpartition(".")[0]
        return None

    def _in_experts(self, path: str) -> bool:
        inner = self._inside(path, strict=False)
        return inner is not None and self.style(inner) in GATHERING

    def _other_experts(self, path: str) -> bool:
        """Whether ops at `path` are of experts computed in another way than the twin's."""
        from .weightless import EXPERTS

        used = getattr(getattr(self._model, "config", None), "_experts_implementation", EXPERTS)
        return self._in_experts(path) and used != EXPERTS


def dtensor_placement(tensor: Tensor, mesh: Any) -> Placement | None:
    """The placement that a DTensor states; None for a plain tensor."""
    placements = getattr(tensor, "placements", None)
    if placements is None:
        return None
    if len(placements) != 1:
        return Local("It is a DTensor on a mesh of more than one dim.")
    placement = placements[0]
    if placement.is_replicate():
        return Whole()
    dim = getattr(placement, "dim", None)
    if dim is None:
        return Local("It is a DTensor whose parts are not added up yet.")
    dim %= tensor.ndim
    parts = int(getattr(placement, "split_factor", 1))
    size = tensor.shape[dim]
    return Shard(dim, size) if parts == 1 else Packed(dim, size, parts)


def _differing(dims: Dims, tensor: Tensor) -> list[int]:
    """The feature dims that a rank does not hold whole. A dim of one may be broadcast over tokens
    in a real call, and cannot be split."""
    pairs = zip(dims, tensor.shape, strict=True)
    return [d for d, (size, held) in enumerate(pairs) if size not in (None, 1) and size != held]


def _agreed(stated: Placement, known: _Known | str, tensor: Tensor) -> Placement:
    """What a style or a weight states, unless the twin has it otherwise."""
    if isinstance(known, str) or isinstance(stated, (Local, Packed, Scaled)):
        return stated
    dims = known.dims
    if len(dims) != tensor.ndim:
        return Local(f"It has {tensor.ndim} dims, and {len(dims)} in the unsharded twin.")
    other = _differing(dims, tensor)
    expected = [stated.dim] if isinstance(stated, Shard) else []
    if other != expected or (isinstance(stated, Shard) and dims[stated.dim] != stated.size):
        return Local(
            f"The weights say {stated}, but in the unsharded twin it has the sizes {dims} and here "
            f"{tuple(tensor.shape)}."
        )
    return stated


def _maybe_partial(container: str | None) -> Placement:
    """A value that has the whole's shape: inside of what adds up parts, it may be one of them."""
    if container is None:
        return Whole()
    return Local(f"Inside {container or 'the root'}, it may be this rank's part of a sum.")


def _unfit(held: int, size: int) -> Local:
    return Local(f"A rank's chunk of {size} features is not the {held} that are here.")
