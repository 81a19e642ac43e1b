"""Placements: what each rank holds of one value, and the whole it is a part of.

Owns the kinds of placement, their texts and JSON, and the tensor math of cutting and joining. It
does not decide which placement a value has, and it does not communicate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import PlacementError, TraceFileError


@dataclass(frozen=True)
class Whole:
    """Every rank holds all of it."""

    def __str__(self) -> str:
        return "whole"


@dataclass(frozen=True)
class Shard:
    """Each rank holds its chunk of one dim, as `torch.chunk` cuts it: the last ones may be shorter,
    or empty.

    Attributes:
        dim: which one, from the front.
        size: of the whole along `dim`.
    """

    dim: int
    size: int

    def __str__(self) -> str:
        return f"shard of dim {self.dim} ({self.size})"


@dataclass(frozen=True)
class Packed:
    """Each rank holds its chunk of each of `parts` equal parts of a dim, side by side; the whole is
    the first part of all ranks, then the second of all ranks, and so on.

    Attributes:
        dim: which one, from the front.
        size: of the whole along `dim`; a multiple of `parts`.
        parts: 2 for a gate and an up projection in one.
    """

    dim: int
    size: int
    parts: int

    def __str__(self) -> str:
        return f"packed shard of dim {self.dim} ({self.parts} × {self.size // self.parts})"


@dataclass(frozen=True)
class Scaled:
    """Every rank holds the whole divided by the number of ranks."""

    ranks: int

    def __str__(self) -> str:
        return f"1/{self.ranks} on each rank"


@dataclass(frozen=True)
class Local:
    """What a rank holds is its own: nothing tells how the ranks' values make a whole."""

    reason: str

    def __str__(self) -> str:
        return f"rank-local: {self.reason}"


Placement = Whole | Shard | Packed | Scaled | Local
KINDS: Mapping[str, type[Placement]] = {
    "whole": Whole,
    "shard": Shard,
    "packed": Packed,
    "scaled": Scaled,
    "local": Local,
}


def to_json(placement: Placement) -> dict[str, Any]:
    """Plain data that `from_json` reads back."""
    kind = next(name for name, cls in KINDS.items() if type(placement) is cls)
    return {"kind": kind, **asdict(placement)}


def from_json(data: object) -> Placement:
    """The placement that `to_json` wrote.

    Raises:
        TraceFileError: it is none of this version.
    """
    if isinstance(data, Mapping) and (cls := KINDS.get(str(data.get("kind")))) is not None:
        fields = {key: value for key, value in data.items() if key != "kind"}
        wanted: type = str if cls is Local else int
        plain = all(type(value) is wanted and value != "" for value in fields.values())
        named = plain and fields.keys() == cls.__dataclass_fields__.keys()
        least = {"parts": 1, "ranks": 1}
        if named and (cls is Local or all(n >= least.get(k, 0) for k, n in fields.items())):
            return cls(**fields)
    raise TraceFileError(f"{data!r:.200} is not a placement that this version of lensview knows.")


_SHARD = re.compile(r"shard of dim (\d+) \((\d+)\)")
_PACKED = re.compile(r"packed shard of dim (\d+) \((\d+) × (\d+)\)")
_SCALED = re.compile(r"1/(\d+) on each rank")


def read(text: str) -> Placement | None:
    """The placement whose words a text begins with, as a record's does; None where it has none."""
    if found := _SHARD.match(text):
        return Shard(int(found[1]), int(found[2]))
    if found := _PACKED.match(text):
        parts = int(found[2])
        return Packed(int(found[1]), parts * int(found[3]), parts)
    if found := _SCALED.match(text):
        return Scaled(int(found[1]))
    if text.startswith("rank-local: "):
        return Local(text.removeprefix("rank-local: "))
    return Whole() if text.startswith("whole") else None


def local_size(size: int, ranks: int, rank: int) -> int:
    """How many of `size` the rank's chunk has, as `torch.chunk` and DTensor cut: ⌈size / ranks⌉,
    less for those at the end."""
    start = local_start(size, ranks, rank)
    return min(start + -(-size // ranks), size) - start


def local_start(size: int, ranks: int, rank: int) -> int:
    """Where the rank's chunk of `size` begins; `size` for an empty one."""
    return min(rank * -(-size // ranks), size)


def whole_shape(placement: Placement, local_shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of the whole, from that of any one rank's piece."""
    return _with_dim(placement, local_shape, getattr(placement, "size", 0))


def piece_shape(
    placement: Placement, whole: Sequence[int], ranks: int, rank: int
) -> tuple[int, ...]:
    """The shape of one rank's piece, from that of the whole or of any other piece.

    Raises:
        PlacementError: no value of this shape has this placement.
    """
    match placement:
        case Shard(size=size):
            return _with_dim(placement, whole, local_size(size, ranks, rank))
        case Packed(size=size, parts=parts):
            return _with_dim(placement, whole, parts * local_size(size // parts, ranks, rank))
    return tuple(whole)


def _with_dim(placement: Placement, shape: Sequence[int], size: int) -> tuple[int, ...]:
    if not isinstance(placement, (Shard, Packed)):
        return tuple(shape)
    if not 0 <= placement.dim < len(shape):
        raise PlacementError(f"{tuple(shape)} has no dim {placement.dim}: it is no {placement}.")
    if isinstance(placement, Packed) and placement.size % placement.parts:
        raise PlacementError(f"{placement.size} is not {placement.parts} equal parts.")
    return (*shape[: placement.dim], size, *shape[placement.dim + 1 :])


def join(pieces: Sequence[Tensor], placement: Placement) -> Tensor:
    """The whole, in memory of its own.

    Args:
        pieces: those of all ranks, in their order.

    Raises:
        PlacementError: they are not the pieces of such a whole, or nothing tells the whole.
    """
    check_pieces([tuple(p.shape) for p in pieces], placement)
    match placement:
        case Shard(dim=dim):
            return torch.cat(list(pieces), dim)
        case Packed(dim=dim, parts=parts):
            cut = [p.tensor_split(parts, dim) for p in pieces]
            return torch.cat([halves[part] for part in range(parts) for halves in cut], dim)
        case Scaled(ranks=ranks):
            return pieces[0] * ranks
        case Local(reason=reason):
            raise PlacementError(f"The whole of a rank-local value is not known: {reason}")
    return pieces[0].clone()


def check_pieces(shapes: Sequence[Sequence[int]], placement: Placement) -> None:
    """See that pieces of these shapes, in the order of the ranks, are the pieces of one whole.

    Raises:
        PlacementError: they are not; it says which rank's is not.
    """
    whole = whole_shape(placement, shapes[0])
    if isinstance(placement, Scaled) and placement.ranks != len(shapes):
        raise PlacementError(f"{len(shapes)} ranks cannot hold {placement}.")
    for rank, shape in enumerate(shapes):
        fits = piece_shape(placement, whole, len(shapes), rank)
        if tuple(shape) != fits:
            raise PlacementError(
                f"Rank {rank} of {len(shapes)} holds {tuple(shape)}, not {fits}: this is no "
                f"{placement} as torch cuts it."
            )


def piece(whole: Tensor, placement: Placement, ranks: int, rank: int) -> Tensor:
    """What one rank holds of `whole`: the inverse of `join`, contiguous, in memory of its own.

    Raises:
        PlacementError: `whole` has not the size that the placement tells, or nothing tells it.
    """
    if whole_shape(placement, whole.shape) != tuple(whole.shape):
        raise PlacementError(f"{tuple(whole.shape)} is not the whole of a {placement}.")
    match placement:
        case Shard(dim=dim, size=size):
            parts = [whole]
            start, length = local_start(size, ranks, rank), local_size(size, ranks, rank)
        case Packed(dim=dim, size=size, parts=count):
            parts = list(whole.tensor_split(count, dim))
            part = size // count
            start, length = local_start(part, ranks, rank), local_size(part, ranks, rank)
        case Scaled(ranks=scale):
            return (whole / scale).to(whole.dtype)
        case Local(reason=reason):
            raise PlacementError(f"A rank-local value has no pieces: {reason}")
        case _:
            return whole.clone(memory_format=torch.contiguous_format)
    return torch.cat([p.narrow(dim, start, length) for p in parts], dim)
