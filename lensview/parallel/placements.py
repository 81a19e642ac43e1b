"""Placements: what one rank holds of a whole value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Whole:
    """Every rank holds the whole value."""


@dataclass(frozen=True)
class Shard:
    """Each rank holds its chunk of dim `dim`; `size` is the whole's."""

    dim: int
    size: int


@dataclass(frozen=True)
class Packed:
    """Each rank holds its chunk of each of `parts` equal parts of `dim`, side by side."""

    dim: int
    size: int
    parts: int


@dataclass(frozen=True)
class Scaled:
    """Every rank holds the whole divided by `ranks`."""

    ranks: int


@dataclass(frozen=True)
class Local:
    """Rank-local: nothing says how the whole is made; `reason` is a sentence."""

    reason: str


Placement = Whole | Shard | Packed | Scaled | Local


def local_size(size: int, ranks: int, rank: int) -> int:
    """How much of a dim of `size` a rank holds, as ``torch.chunk`` cuts it."""
    chunk = -(-size // ranks)
    return max(0, min(size, chunk * (rank + 1)) - chunk * rank)
