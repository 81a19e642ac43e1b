"""Ranks: the processes that hold one model's parts, and how values move between them.

Owns what of values travels, and together with what; `collectives.py` moves the bytes. The values
of a flush travel together, uneven pieces padded; what every rank holds travels not at all. Which
placement a value has is decided elsewhere, and the same on every rank: whether and how much a call
here communicates follows from placements and shapes alone, never from what one rank holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import PlacementError
from .collectives import Collectives
from .mesh import mesh_of
from .pack import Parcel
from .placements import (
    Local,
    Packed,
    Placement,
    Scaled,
    Shard,
    Whole,
    join,
    piece_shape,
    whole_shape,
)

Grads = Literal["sum", "same"]
"""What the gradient of a whole is on each rank: a part of a sum, or the same and complete."""
Values = Sequence[tuple[Tensor, Placement]]
MAX_BYTES = 1 << 30
"""Of one collective, as the rank that receives all pieces sees it."""


class Ranks(Collectives):
    """The ranks of one process group, as one of them sees them.

    Every method that moves values is to be called on all ranks, with the same placements and
    with shapes that fit them.
    """

    @classmethod
    def of(cls, model: nn.Module) -> Ranks | None:
        """The ranks that hold parts of `model`; None where it is whole in this process."""
        mesh = mesh_of(model)
        if mesh is None or mesh.size() == 1:
            return None
        kind = mesh.device_type
        at = "" if kind == "cpu" else f":{torch.get_device_module(kind).current_device()}"
        return cls(mesh.get_group(), torch.device(kind + at))

    def to_first(self, values: Values, max_bytes: int = MAX_BYTES) -> list[Tensor] | None:
        """The wholes on the first rank, None on the others; in one collective, or in as many as
        `max_bytes` asks for. Of a rank-local value, the first rank's own."""
        return self._gather(values, self.gather_first, max_bytes)

    def to_all(self, values: Values, max_bytes: int = MAX_BYTES) -> list[Tensor]:
        """As `to_first`, on every rank. Of a rank-local value, each rank's own."""
        wholes = self._gather(values, self.gather_all, max_bytes)
        assert wholes is not None
        return wholes

    def whole(self, tensor: Tensor, placement: Placement, grads: Grads = "sum") -> Tensor:
        """The whole on every rank, with a gradient; `tensor` itself where it is whole.

        Args:
            grads: "sum" where each rank goes on to compute a part of the loss from the whole: the
                ranks' gradients are summed. "same" where all compute the same from it.
        """
        from .moves import gathered

        if isinstance(placement, Whole):
            return tensor
        return gathered(self, tensor, placement, grads)

    def own(self, whole: Tensor, placement: Placement, grads: Grads = "sum") -> Tensor:
        """This rank's piece of a value that every rank has, with a gradient: the inverse of
        `whole`, whose `grads` this goes with."""
        from .moves import sliced

        if isinstance(placement, Whole):
            return whole
        return sliced(self, whole, placement, grads)

    def on_first(
        self, tensor: Tensor, placement: Placement, fn: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, str | None]:
        """`fn(whole)`, run on the first rank alone; this rank's piece of what it returned.

        The result has the whole's shape and dtype. If `fn` raises, gives something else or
        communicates, each rank gets its unedited piece back, and the error's text. Gradients go
        the same way: through `fn`, on the first rank, where a whole's is taken from.

        Raises:
            PlacementError: the value is rank-local. On every rank, before anything is moved.
        """
        from .moves import edited

        if isinstance(placement, Local):
            raise PlacementError(f"A rank-local value cannot be edited: {placement.reason}")
        return edited(self, tensor, placement, fn)

    def shapes(self, tensor: Tensor) -> list[tuple[int, ...]]:
        """The shape that each rank's tensor has, on every rank; of at most 15 dims."""
        said = [tensor.ndim, *tensor.shape, *[0] * (15 - tensor.ndim)]
        rows = self.gather_all(torch.tensor(said, device=self.device))
        return [tuple(dims[1 : 1 + dims[0]]) for dims in (row.tolist() for row in rows)]

    def to_all_uneven(self, rows: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """Every rank's rows, `counts` of them along dim 0 by rank, on every rank."""
        shapes = [(count, *rows.shape[1:]) for count in counts]
        parcel = Parcel([rows.dtype], [shapes])
        if not parcel.length:
            return [rows.new_empty(shape) for shape in shapes]
        collected = self.gather_all(parcel.pack([rows], self.device))
        return [parcel.unpack(row, rank)[0] for rank, row in enumerate(collected)]

    def _gather(
        self,
        values: Values,
        collect: Callable[[Tensor], list[Tensor] | None],
        max_bytes: int,
    ) -> list[Tensor] | None:
        self.check(values)
        wholes: dict[int, Tensor] = {}
        for chunk in self._chunks(values, max_bytes):
            parcel = self.parcel([values[i] for i in chunk])
            rows = collect(parcel.pack([values[i][0] for i in chunk], self.device))
            if rows is not None:
                held = [parcel.unpack(row, rank) for rank, row in enumerate(rows)]
                for i, pieces in zip(chunk, zip(*held, strict=True), strict=True):
                    wholes[i] = join(pieces, values[i][1]).to(values[i][0].device)
        if collect == self.gather_first and self.rank:
            return None
        return [wholes[i] if i in wholes else self._alone(*v) for i, v in enumerate(values)]

    def check(self, values: Values) -> None:
        """See that this rank's pieces have the shapes that their placements tell.

        Raises:
            PlacementError: one has not. On this rank alone: the others wait for it in vain, so a
                placement is to be given only once all ranks' shapes are known to fit.
        """
        for tensor, placement in values:
            fits = piece_shape(placement, tensor.shape, self.size, self.rank)
            if fits != tuple(tensor.shape):
                raise PlacementError(
                    f"Rank {self.rank} of {self.size} holds {tuple(tensor.shape)}, not {fits}: "
                    f"this is no {placement} as torch cuts it."
                )

    def parcel(self, values: Values) -> Parcel:
        """How these values' pieces travel, and where each rank's lie."""
        shapes = [
            [piece_shape(p, t.shape, self.size, r) for r in range(self.size)] for t, p in values
        ]
        return Parcel([t.dtype for t, _ in values], shapes)

    def _alone(self, tensor: Tensor, placement: Placement) -> Tensor:
        """What needs no other rank, in memory of its own: the whole, or an empty or own value."""
        tensor = tensor.detach()
        if isinstance(placement, Scaled):
            return join([tensor] * self.size, placement)
        if isinstance(placement, (Shard, Packed)):
            return tensor.new_empty(whole_shape(placement, tensor.shape))
        return tensor.clone()

    def _chunks(self, values: Values, max_bytes: int) -> Iterator[list[int]]:
        """Which values travel together: those in pieces, until one rank receives `max_bytes`."""
        chunk: list[int] = []
        room = max_bytes
        for i, value in enumerate(values):
            if not isinstance(value[1], (Shard, Packed)):
                continue
            need = self.parcel([value]).length * self.size
            if chunk and need > room:
                yield chunk
                chunk, room = [], max_bytes
            if need:
                chunk.append(i)
                room -= need
        if chunk:
            yield chunk
