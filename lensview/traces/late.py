"""Late: records whose tensor is somewhere else until it is looked at.

Owns `LateRecord`, which knows shape, dtype and bytes without the tensor. Where the tensor comes
from (a file, another process) is for whoever makes one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..sites import Site
from ..tensors.dense import full_shape, held_bytes
from .gradients import Gradient
from .parts import Record


class LateRecord(Record):
    """A record whose tensor is fetched when it is first looked at, and then kept.

    Attributes:
        shape, dtype, size: of the tensor, and its bytes, known without fetching it. The shape of a
            ragged one is its longest sizes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    size: int
    _tensor: Tensor | None
    _fetch: Callable[[], Tensor]

    def __init__(
        self,
        site: Site,
        fetch: Callable[[], Tensor],
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        size: int,
        leaf: tuple[str | int, ...] = (),
        part: str = "",
        aligned: bool = True,
        placement: str = "",
    ) -> None:
        """`fetch` gives the tensor; what it raises is raised to the reader."""
        gradient: Gradient | None = None
        for name, value in {
            "site": site,
            "leaf": leaf,
            "part": part,
            "aligned": aligned,
            "gradient": gradient,
            "placement": placement,
            "shape": shape,
            "dtype": dtype,
            "size": size,
            "_fetch": fetch,
            "_tensor": None,
        }.items():
            object.__setattr__(self, name, value)  # the dataclass above is frozen

    @property
    def tensor(self) -> Tensor:
        """The value."""
        held = self._tensor
        if held is None:
            held = self._fetch()
            object.__setattr__(self, "_tensor", held)
        return held


def shape_of(record: Record) -> tuple[int, ...]:
    """A record's shape, its tensor left where it is; of a ragged one, its longest sizes."""
    return record.shape if isinstance(record, LateRecord) else full_shape(record.tensor)


def dtype_of(record: Record) -> torch.dtype:
    """A record's dtype, its tensor left where it is."""
    return record.dtype if isinstance(record, LateRecord) else record.tensor.dtype


def size_of(record: Record) -> int:
    """The bytes of a record, its tensor left where it is."""
    return record.size if isinstance(record, LateRecord) else held_bytes(record.tensor)
