"""Norms: how long the rows of a tensor are.

Owns the L2 norm and the root mean square of each row. Which rows are tokens is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .dense import dense, real, within
from .planes import plane


@dataclass(frozen=True)
class RowNorms:
    """Per row, over all of its elements, in float64 where the device has it.

    Attributes:
        norm: the L2 norm; NaN or infinite where an element is.
        rms: the root mean square, which does not grow with the width.
        width: elements of one row.
    """

    norm: tuple[float, ...]
    rms: tuple[float, ...]
    width: int


def token_norms(tensor: Tensor, row: int = 0) -> RowNorms:
    """The norms of a batch row's tokens: of (B, T, …), each token over all further dims.

    Raises:
        IndexError: `row` is out of range.
        TypeError: a kind of tensor that cannot be read.
    """
    values, _ = dense(tensor)
    return _norms(values[within(row, 0, tuple(values.shape))].flatten(1))


def row_norms(tensor: Tensor, index: Sequence[int] = ()) -> RowNorms:
    """The norms of the rows of ``plane(tensor, index)``; errors as there."""
    return _norms(plane(tensor, index))


def _norms(rows: Tensor) -> RowNorms:
    values = real(rows)
    wide = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
    norms = torch.linalg.vector_norm(wide, dim=-1)
    width = int(rows.shape[-1])
    rms = norms / max(width, 1) ** 0.5
    return RowNorms(tuple(norms.tolist()), tuple(rms.tolist()), width)
