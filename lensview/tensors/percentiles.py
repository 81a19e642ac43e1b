"""Percentiles of the magnitudes in a plane: where a colour scale may end without its outliers.

Exact up to a million cells; of more, those of an even sample of the plane, which it says.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .dense import real

MAX_EXACT = 1 << 20
"""Cells that are all looked at: about 10 ms. A larger plane is sampled to no more than these."""


def magnitude(plane: Tensor, percentile: float) -> tuple[float | None, bool]:
    """The magnitude that `percentile` of the finite values of `plane` (R, C) do not exceed.

    It is one of the values: the smallest with at least so many at or below it (numpy's method
    "inverted_cdf").

    Returns:
        the magnitude, None where nothing is finite, and whether it is that of a sample.

    Raises:
        ValueError: `percentile` is not above 0 and at most 100.
    """
    if not 0 < percentile <= 100:
        raise ValueError(f"A percentile is above 0 and at most 100, not {percentile}.")
    part = sample(plane)
    values = real(part).abs().flatten()
    values = values[values.isfinite()]
    if not values.numel():
        return None, part.numel() < plane.numel()
    rank = max(1, math.ceil(values.numel() * percentile / 100))
    found = float(torch.kthvalue(values, rank).values.item())
    return found, part.numel() < plane.numel()


def sample(plane: Tensor) -> Tensor:
    """The plane or, of a large one, every so many rows of it and every so many columns."""
    rows, columns = plane.shape
    if rows * columns <= MAX_EXACT:
        return plane
    step = math.sqrt(rows * columns / MAX_EXACT)
    row_step = min(max(1, round(step)), rows)
    column_step = math.ceil(math.ceil(rows / row_step) * columns / MAX_EXACT)
    # An odd step meets every column of what repeats in powers of two.
    return plane[:: row_step | 1, :: column_step | 1]
