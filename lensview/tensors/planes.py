"""The 2-D part of a tensor of any number of dims that a screen shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .dense import dense, full_shape, real, within


def plane(tensor: Tensor, index: Sequence[int] = ()) -> Tensor:
    """The 2-D part of a tensor that is shown.

    A 0-d tensor is (1, 1), a vector (1, n), a matrix itself. Of more dims the last two are shown,
    and `index` fixes the leading ones. Nested tensors give the component that ``index[0]`` names
    (ragged vectors: all of them, NaN after each one's end).

    Args:
        index: one int per leading dim; missing ones are 0, negatives count from the end.

    Returns:
        (rows, columns) on the tensor's device, in its dtype; a view where that is possible.

    Raises:
        IndexError: `index` is out of range, or longer than the leading dims.
        TypeError: a kind of tensor that cannot be read.
    """
    return described_plane(tensor, index)[0]


def described_plane(tensor: Tensor, index: Sequence[int]) -> tuple[Tensor, str]:
    """`plane`, and a remark on what was done to get it, or ""."""
    if tensor.is_nested:
        return _nested_plane(tensor, index)
    shape = tuple(tensor.shape)
    leading = shape[:-2]
    if len(index) > len(leading):
        raise IndexError(
            f"The index {tuple(index)} fixes {len(index)} leading dims, but a tensor of shape "
            f"{shape} has {len(leading)} before the two that are shown."
        )
    flat, remark = dense(tensor)
    chosen = tuple(within(i, dim, shape) for dim, i in enumerate(index))
    if 0 in leading:
        return flat.new_empty((0, shape[-1])), remark
    chosen += (0,) * (len(leading) - len(chosen))
    flat = flat[chosen]
    return flat.reshape(1, -1) if flat.dim() < 2 else flat, remark


def _nested_plane(tensor: Tensor, index: Sequence[int]) -> tuple[Tensor, str]:
    parts = tensor.detach().unbind()
    shape = full_shape(tensor)
    ragged = ", ".join(str(p.shape[0]) for p in parts)
    if not parts:
        return torch.empty((0, 0), device=tensor.device), "nested tensor of no components"
    if parts[0].dim() > 1:
        first = within(index[0], 0, shape) if index else 0
        inner, remark = described_plane(parts[first], index[1:])
        said = f"component {first} of a nested tensor of lengths {ragged}"
        return inner, "; ".join(r for r in (said, remark) if r)
    if index:
        raise IndexError(f"The index {tuple(index)} fixes dims that shape {shape} does not have.")
    padded = torch.nested.to_padded_tensor(
        torch.nested.nested_tensor([real(dense(p)[0]) for p in parts]), math.nan
    )
    return padded, f"nested vectors of lengths {ragged}, NaN after each one's end"


def ragged_pads(tensor: Tensor) -> int:
    """The NaN that `plane` adds after the ends of ragged vectors."""
    if not tensor.is_nested or tensor.dim() != 2:
        return 0
    lengths = [p.shape[0] for p in tensor.unbind()]
    return max(lengths) * len(lengths) - sum(lengths)
