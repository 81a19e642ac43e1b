"""The 2-D part of a tensor of any number of dims that a screen shows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .dense import dense, full_shape, real, within


def plane(
    tensor: Tensor,
    index: Sequence[int] = (),
    rows_dim: int | None = None,
    columns_dim: int | None = None,
) -> Tensor:
    """The 2-D part of a tensor that is shown.

    A 0-d tensor is (1, 1), a vector (1, n), a matrix itself. Of more dims two are shown, the last
    two unless others are chosen, and `index` fixes the rest. Nested tensors give the component
    that ``index[0]`` names (ragged vectors: all of them, NaN after each one's end).

    Args:
        index: one int per dim that is not shown, in order; missing ones are 0, negatives count
            from the end.
        rows_dim: which dim of the tensor goes down; None is the last but one.
        columns_dim: which dim goes across; None is the last one. Either both are given or, of a
            vector, the one that it has: as rows it is (n, 1).

    Returns:
        (rows, columns) on the tensor's device, in its dtype; a view where that is possible.

    Raises:
        IndexError: `index` or a dim is out of range, or `index` longer than the other dims.
        ValueError: one dim for both, or one of two; other than the last two of a nested tensor.
        TypeError: a kind of tensor that cannot be read.
    """
    return described_plane(tensor, index, rows_dim, columns_dim)[0]


def described_plane(
    tensor: Tensor,
    index: Sequence[int],
    rows_dim: int | None = None,
    columns_dim: int | None = None,
) -> tuple[Tensor, str]:
    """`plane`, and a remark on what was done to get it, or ""."""
    if tensor.is_nested:
        if (rows_dim, columns_dim) != (None, None):
            raise ValueError("Of a nested tensor the last two dims are shown; no others can be.")
        return _nested_plane(tensor, index)
    shape = tuple(tensor.shape)
    down, across = plane_dims(shape, rows_dim, columns_dim)
    others = [dim for dim in range(len(shape)) if dim not in (down, across)]
    if len(index) > len(others):
        raise IndexError(
            f"The index {tuple(index)} fixes {len(index)} dims, but a tensor of shape "
            f"{shape} has {len(others)} beside those that are shown."
        )
    flat, remark = dense(tensor)
    chosen = {dim: within(i, dim, shape) for dim, i in zip(others, index, strict=False)}
    if any(shape[dim] == 0 for dim in others):
        empty = flat.new_empty((0, 1 if across is None else shape[across]))
        return empty, remark
    # From the last one on, so that the dims before keep their numbers.
    for dim in reversed(others):
        flat = flat.select(dim, chosen.get(dim, 0))
    if down is None or across is None:
        return flat.reshape(1, -1) if down is None else flat.reshape(-1, 1), remark
    return flat.T if down > across else flat, remark


def plane_dims(
    shape: Sequence[int], rows_dim: int | None = None, columns_dim: int | None = None
) -> tuple[int | None, int | None]:
    """The dims of a tensor of `shape` that a plane shows down and across, counted from the front;
    None where it has none for that side.

    Raises:
        IndexError, ValueError: as `plane`.
    """
    down, across = (_dim(d, shape) for d in (rows_dim, columns_dim))
    if down is None and across is None:
        last = len(shape) - 1
        return (last - 1 if last > 0 else None), (last if last >= 0 else None)
    if len(shape) > 1 and (down is None or across is None):
        raise ValueError("Choose both dims, rows and columns, or none.")
    if down == across:
        raise ValueError(f"Dim {down} cannot be both rows and columns.")
    return down, across


def _dim(dim: int | None, shape: Sequence[int]) -> int | None:
    if dim is None:
        return None
    if not -len(shape) <= dim < len(shape):
        raise IndexError(f"There is no dim {dim} in a tensor of shape {tuple(shape)}.")
    return dim % len(shape)


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
