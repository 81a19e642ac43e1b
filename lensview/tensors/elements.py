"""One element of a tensor, exactly, as text.

Owns the shortest text that reads back as the same value of its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .dense import dense, full_shape, is_float, within

_ROUND_TRIP_DIGITS = 17
"""Decimal digits that tell any two float64 apart."""


def element(tensor: Tensor, index: Sequence[int]) -> str:
    """One element exactly: the shortest text that reads back as the same value of its dtype.

    Args:
        index: one int per dim; negatives count from the end.

    Returns:
        ``"0.1"`` (a float32 too), ``"-0.0"``, ``"nan"``, ``"inf"``, ``"12"``, ``"True"``,
        ``"(1.5-2j)"``.

    Raises:
        IndexError: out of range, or not one int per dim.
        TypeError: a kind of tensor that cannot be read.
    """
    shape = full_shape(tensor)
    if len(index) != len(shape):
        raise IndexError(
            f"An element of a tensor of shape {shape} has {len(shape)} indices, not "
            f"{len(index)}: {tuple(index)}."
        )
    if tensor.is_nested:
        checked = within(index[0], 0, shape)
        return element(tensor.detach().unbind()[checked], index[1:])
    plain, _ = dense(tensor)
    cell = plain[tuple(within(i, dim, shape) for dim, i in enumerate(index))]
    if cell.is_complex():
        wide = cell.to(torch.complex128).item()
        part = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(cell.dtype)
        parts = [_shortest(x, part or torch.float64) for x in (wide.real, wide.imag)]
        return f"({parts[0]}{'' if parts[1].startswith('-') else '+'}{parts[1]}j)"
    if is_float(cell):
        return _shortest(float(cell.item()), cell.dtype)
    return str(cell.item())


def _shortest(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return str(value)
    for digits in range(1, _ROUND_TRIP_DIGITS):
        text = f"{value:.{digits}g}"
        back = torch.tensor(float(text), dtype=torch.float64).to(dtype)
        if back.to(torch.float64).item() == value:
            return repr(float(text))
    return repr(value)
