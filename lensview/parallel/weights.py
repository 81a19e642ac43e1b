"""Weights: a parameter of a model that is split over ranks, as one plain tensor.

Owns the gathering of parameters. Some rows of one are gathered without the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, SiteError, near
from .group import Ranks
from .mesh import dtensor_type
from .placements import Shard, local_size, local_start

Rows = slice | Sequence[int]


def weight(model: nn.Module, name: str, rows: Rows | None = None) -> Tensor:
    """A parameter or buffer as a whole plain tensor, in memory of its own, without a gradient.

    On a model that is split over ranks every rank calls this alike, and each gets the tensor.

    Args:
        name: as in `model.named_parameters()`: "model.layers.0.self_attn.q_proj.weight".
        rows: of dim 0, only these, in this order; what is split by rows is then not gathered
            whole.

    Raises:
        SiteError: there is none of this name.
        InputError: a row that is not there, or a parameter whose values are not in memory.
    """
    held = _find(model, name)
    if held.device.type == "meta":
        raise InputError(
            f"{name!r} is offloaded: this process holds its shape and dtype alone ({held.dtype}, "
            f"{tuple(held.shape)}). Load the model with it in memory to see its values."
        )
    wanted = None if rows is None else _row_numbers(name, held, rows)
    split = dtensor_type()
    if split is not None and isinstance(held, split):
        return _gathered(held, wanted)
    plain = held.detach()
    return plain.clone() if wanted is None else plain[wanted]


def _find(model: nn.Module, name: str) -> Tensor:
    path, _, last = name.rpartition(".")
    try:
        found = getattr(model.get_submodule(path), last)
    except AttributeError:
        found = None
    if isinstance(found, Tensor):
        return found
    names = [n for named in (model.named_parameters(), model.named_buffers()) for n, _ in named]
    raise SiteError(f"The model has no parameter or buffer {name!r}.{near(name, names)}")


def _row_numbers(name: str, held: Tensor, rows: Rows) -> list[int]:
    if not held.ndim:
        raise InputError(f"{name!r} is one number: it has no rows.")
    count = held.shape[0]
    if isinstance(rows, slice):
        return list(range(count)[rows])
    outside = [row for row in rows if not -count <= row < count]
    if outside:
        raise InputError(f"{name!r} has {count} rows; there is no row {outside[0]}.")
    return [row % count for row in rows]


def _gathered(held: Any, rows: list[int] | None) -> Tensor:
    """The whole of a DTensor, or some rows of it."""
    with torch.no_grad():
        if rows is None:
            everything: Tensor = held.full_tensor()
            return everything.detach().clone()
        mesh, placement = held.device_mesh, held.placements[0]
        local: Tensor = held.to_local().detach()
        plain_shard = type(placement).__name__ == "Shard"
        if mesh.ndim > 1 or not (plain_shard or placement.is_replicate()):
            whole: Tensor = held.full_tensor()
            return whole.detach()[rows]
        if placement.is_replicate():
            return local[rows]
        ranks = Ranks(mesh.get_group(), local.device)
        dim, size = placement.dim % held.ndim, held.shape[placement.dim]
        if dim:
            return ranks.to_all([(local[rows], Shard(dim, size))])[0]
        return _rows_of_all(ranks, local, size, rows)


def _rows_of_all(ranks: Ranks, local: Tensor, size: int, rows: list[int]) -> Tensor:
    """Some rows of what is split by rows: each rank gives those that it holds."""
    held = []
    for rank in range(ranks.size):
        start = local_start(size, ranks.size, rank)
        inside = range(start, start + local_size(size, ranks.size, rank))
        held.append([i for i, row in enumerate(rows) if row in inside])
    start = local_start(size, ranks.size, ranks.rank)
    mine = local[[rows[i] - start for i in held[ranks.rank]]]
    given = ranks.to_all_uneven(mine, [len(places) for places in held])
    whole = local.new_empty(len(rows), *local.shape[1:])
    for places, values in zip(held, given, strict=True):
        whole[places] = values
    return whole
