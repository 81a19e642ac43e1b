"""What lies between two tensors of one shape, element by element.

Owns the arithmetic that keeps it exact enough to be shown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dense import dense, full_shape, is_integral, is_wide, widest


def difference(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``, exact enough to be shown.

    Ints are subtracted in int64 (in float64 where that would overflow), bools and small floats
    in float32, float64 in float64, complex in complex. Two infinities of one sign differ by 0,
    so that the masked places of an attention mask do not show as NaN; NaN differs from everything
    by NaN. `b` is moved to the device of `a`. Two nested tensors give a nested one.

    Raises:
        ValueError: the shapes differ.
        TypeError: a kind of tensor that cannot be read.
    """
    if a.is_nested and b.is_nested:
        left, right = a.detach().unbind(), b.detach().unbind()
        if [p.shape for p in left] == [p.shape for p in right]:
            parts = [difference(p, q) for p, q in zip(left, right, strict=True)]
            return torch.nested.as_nested_tensor(parts, layout=a.layout)
    if a.is_nested or b.is_nested or a.shape != b.shape:
        raise ValueError(
            f"Tensors of shapes {full_shape(a)} and {full_shape(b)} have no difference: it is "
            "taken element by element. Runs on prompts of different length differ in shape."
        )
    x, y = dense(a)[0], dense(b)[0].to(a.device)
    if is_integral(x) and is_integral(y):
        return _int_difference(x, y)
    kind = _difference_dtype(x, y)
    x, y = x.to(kind), y.to(kind)
    result = x - y
    if not kind.is_complex:
        result.masked_fill_(x.isinf() & (x == y), 0)
    return result


def identical(one: Tensor, other: Tensor) -> bool:
    """Whether two plain tensors are the same bit for bit, a NaN and the sign of a 0 included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(a, b)


def _difference_dtype(x: Tensor, y: Tensor) -> torch.dtype:
    wide = (is_wide(x) or is_wide(y)) and widest(x.device) == torch.float64
    if x.is_complex() or y.is_complex():
        return torch.complex128 if wide else torch.complex64
    return torch.float64 if wide else torch.float32


def _int_difference(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.to(torch.int64), y.to(torch.int64)
    result = a - b
    wrapped = ((a ^ b) & (a ^ result)) < 0
    if wrapped.any() or torch.uint64 in (x.dtype, y.dtype):
        wide = widest(x.device)
        return x.to(wide) - y.to(wide)
    return result
