"""Pack: several tensors as one row of bytes, and back.

Owns the layout of what travels together: the same on every rank, from shapes and dtypes alone, with
room for the rank that holds most. It does not communicate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Parcel:
    """Some values of each rank as a row of bytes of one length.

    Args:
        dtypes: one per value.
        shapes: per value, what each rank holds of it.

    Attributes:
        length: bytes of each rank's row; shorter ones are padded at their end.
    """

    def __init__(self, dtypes: Sequence[torch.dtype], shapes: Sequence[Sequence[Shape]]) -> None:
        self._dtypes = dtypes
        self._shapes = shapes
        # Wider dtypes first: then each value lies where its dtype can be read in place.
        self._order = sorted(range(len(dtypes)), key=lambda i: -dtypes[i].itemsize)
        ranks = range(len(shapes[0]) if shapes else 0)
        self.length = max((sum(self._sizes(rank)) for rank in ranks), default=0)

    def pack(self, tensors: Sequence[Tensor], device: torch.device) -> Tensor:
        """This rank's row: uint8 (length,) on `device`."""
        row = torch.zeros(self.length, dtype=torch.uint8, device=device)
        start = 0
        for i in self._order:
            data = as_bytes(tensors[i])
            row[start : start + data.numel()].copy_(data)
            start += data.numel()
        return row

    def unpack(self, row: Tensor, rank: int) -> list[Tensor]:
        """The values of one rank, as views of its row, in the order they were given in."""
        found: dict[int, Tensor] = {}
        start = 0
        for i, size in zip(self._order, self._sizes(rank), strict=True):
            data = row[start : start + size]
            found[i] = data.view(self._dtypes[i]).view(self._shapes[i][rank])
            start += size
        return [found[i] for i in range(len(found))]

    def _sizes(self, rank: int) -> list[int]:
        return [math.prod(self._shapes[i][rank]) * self._dtypes[i].itemsize for i in self._order]


def as_bytes(tensor: Tensor) -> Tensor:
    """The elements of a tensor as they lie in memory: uint8 (bytes,); often a view."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.view(-1).view(torch.uint8)
