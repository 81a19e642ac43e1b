"""Workers: which share of the items this process takes.

Owns the reading of rank and number of workers: from torchrun, where it is there. The ranks of one
tensor-parallel model are one worker.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import InputError
from ..parallel.group import Ranks


@dataclass(frozen=True)
class Worker:
    """One of the processes that extract together.

    Attributes:
        rank, world_size: which of how many.
        writes: whether it has the values: of a tensor-parallel model, its first rank alone.
        grouped: whether it is one of the ranks of such a model.
    """

    rank: int = 0
    world_size: int = 1
    writes: bool = True
    grouped: bool = False


def worker_of(module: nn.Module, rank: int | None, world_size: int | None) -> Worker:
    """This process as a worker.

    Args:
        rank, world_size: what the caller says; None takes torchrun's. Of a tensor-parallel model
            they count the groups of ranks that hold one model each.

    Raises:
        InputError: one without the other, out of range, or a tensor-parallel model whose groups
            cannot be told.
    """
    if (rank is None) != (world_size is None):
        raise InputError("rank and world_size go together: give both, or neither.")
    ranks = Ranks.of(module)
    writes = ranks is None or ranks.rank == 0
    if rank is None or world_size is None:
        rank, world_size = _torchrun()
        if ranks is not None:
            if world_size % ranks.size:
                raise InputError(
                    f"The model is split over {ranks.size} of {world_size} ranks: say which "
                    "worker this group of ranks is, by rank=… and world_size=…."
                )
            rank, world_size = rank // ranks.size, world_size // ranks.size
    if not 0 <= rank < world_size:
        raise InputError(f"rank={rank} is not one of world_size={world_size} workers.")
    return Worker(rank, world_size, writes, ranks is not None)


def _torchrun() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    said = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if said[0] is None or said[1] is None:
        return 0, 1
    return int(said[0]), int(said[1])
