"""Sizes: how large a tensor's values are, in one number, quickly.

Owns the root mean square that a tree shows per module. All other statistics are `stats.py`'s.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .dense import components, piece_elements, real, widest
from .differences import difference
from .stats import stats


class Size(NamedTuple):
    """The root mean square over the finite elements, None where there are none, and how many
    elements are NaN or infinite."""

    rms: float | None
    odd: int


def size(tensor: Tensor) -> Size:
    """The size of a tensor of any dtype and layout; of complex numbers, of their magnitudes.

    Summed in float64 (float32 where the device has none), on the tensor's device.

    Raises:
        TypeError: a kind of tensor that cannot be read.
    """
    total, count = 0.0, 0
    for part in components(tensor):
        count += part.numel()
        flat = part.reshape(-1)
        for chunk in torch.split(flat, piece_elements(part)) if part.numel() else ():
            norm = torch.linalg.vector_norm(real(chunk), dtype=widest(chunk.device)).item()
            total += norm * norm
    if count and math.isfinite(total) and (total > 0 or _all_zero(tensor)):
        return Size(math.sqrt(total / count), 0)
    # NaN, infinities, squares beyond float64 or below it: the long way knows them all.
    found = stats(tensor)
    return Size(found.rms, found.nan + found.posinf + found.neginf)


def difference_size(a: Tensor, b: Tensor) -> Size | None:
    """The size of ``a - b`` (see `difference`); None where their shapes differ."""
    try:
        return size(difference(a, b))
    except ValueError:
        return None


def _all_zero(tensor: Tensor) -> bool:
    return not any(part.count_nonzero() for part in components(tensor))
