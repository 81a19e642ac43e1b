"""Collectives: the calls of torch.distributed that move bytes, counted.

Owns the process group of a model. What the bytes mean is `group.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass
class Counts:
    """What a model's ranks were made to do.

    Attributes:
        collectives: how many.
        bytes: what each rank gave to them, or got of them where it gave nothing; with padding.
    """

    collectives: int = 0
    bytes: int = 0


class Collectives:
    """One process group, as one of its ranks sees it. Every method is to be called on all ranks.

    Attributes:
        group: the process group.
        rank: this process within the group.
        size: how many ranks.
        device: where the group's collectives find their tensors.
        counts: the collectives so far.
    """

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        import torch.distributed as dist

        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.device = device
        self.counts = Counts()

    def gather_all(self, payload: Tensor) -> list[Tensor]:
        """Every rank's bytes, which are as many on each."""
        import torch.distributed as dist

        everything = [torch.empty_like(payload) for _ in range(self.size)]
        dist.all_gather(everything, payload, group=self.group)
        self._count(payload)
        return everything

    def gather_first(self, payload: Tensor) -> list[Tensor] | None:
        """As `gather_all`, on the first rank; None on the others."""
        import torch.distributed as dist

        everything = None
        if self.rank == 0:
            everything = [torch.empty_like(payload) for _ in range(self.size)]
        dist.gather(payload, everything, dst=self.first, group=self.group)
        self._count(payload)
        return everything

    def scatter(self, payloads: Sequence[Tensor] | None, length: int) -> Tensor:
        """Each rank's `length` bytes, of those that the first rank gives."""
        import torch.distributed as dist

        got = torch.empty(length, dtype=torch.uint8, device=self.device)
        dist.scatter(got, list(payloads) if payloads else None, src=self.first, group=self.group)
        self._count(got)
        return got

    def broadcast(self, payload: Tensor | None, length: int) -> Tensor:
        """The first rank's `length` bytes."""
        import torch.distributed as dist

        if payload is None:
            payload = torch.empty(length, dtype=torch.uint8, device=self.device)
        dist.broadcast(payload, src=self.first, group=self.group)
        self._count(payload)
        return payload

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of what all ranks give, on every rank."""
        import torch.distributed as dist

        total = tensor.detach().to(self.device, copy=True).contiguous()
        dist.all_reduce(total, group=self.group)
        self.counts.collectives += 1
        self.counts.bytes += total.nbytes
        return total.to(tensor.device)

    @property
    def first(self) -> int:
        """The group's first rank, by its number in the world."""
        import torch.distributed as dist

        return dist.get_global_rank(self.group, 0)

    def _count(self, payload: Tensor) -> None:
        self.counts.collectives += 1
        self.counts.bytes += payload.nbytes
