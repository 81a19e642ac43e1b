"""Pieces: what one rank holds of a record.

Owns cutting it out of the whole, which rank 0 has; ranks do not keep their pieces.
"""

from __future__ import annotations

from torch import Tensor

from ..errors import PlacementError
from ..parallel.placements import Packed, Shard, piece, read
from ..traces.trace import Trace


def split_dim(trace: Trace, site: str) -> int | None:
    """The dim of a record of which each rank holds a part; None where there is none. Errors as
    `Trace.record`."""
    record = trace.record(site)
    lies = read(record.placement)
    return lies.dim if isinstance(lies, (Shard, Packed)) and not record.part else None


def piece_of(trace: Trace, site: str, rank: int, ranks: int) -> Tensor:
    """What rank `rank` of `ranks` holds of a record.

    Raises:
        PlacementError: the record does not lie in pieces, or is only a part of one; there is no
            such rank.
    """
    record = trace.record(site)
    lies = read(record.placement)
    if not 0 <= rank < ranks:
        raise PlacementError(f"There is no rank {rank}: the model lies over {ranks}.")
    if not isinstance(lies, (Shard, Packed)):
        raise PlacementError(
            f"{site} does not lie in pieces: {record.placement or 'nothing says how it lies'}."
        )
    if record.part:
        raise PlacementError(f"{site} has no pieces: only [{record.part}] of it was kept.")
    return piece(record.tensor, lies, ranks, rank)
