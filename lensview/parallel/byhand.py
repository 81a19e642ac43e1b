"""By hand: gather and shard, for code that every rank of a model runs.

Owns the two public functions. Both give the value back unchanged on a model that is not split, so
that one code serves both.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import PlacementError
from .group import Ranks
from .placements import Shard, check_pieces


def gather(model: nn.Module, value: Tensor, dim: int = -1) -> Tensor:
    """The whole of a value that the ranks of `model` hold slices of, on every rank.

    Every rank calls this. The gradient is that of a loss which every rank computes alike: in code
    that does the same with the whole on every rank, and takes its slice with `shard`, gradients
    are those of one process.

    Args:
        value: this rank's slice. What is whole already must not be given: it is not known by sight.
        dim: the one that is split; sizes may be uneven as `torch.chunk` cuts.

    Raises:
        PlacementError: on every rank: the ranks' slices are not chunks of one whole.
    """
    ranks = Ranks.of(model)
    if ranks is None:
        return value
    shapes = ranks.shapes(value)
    ndim = max(map(len, shapes))
    at = dim % ndim if ndim and -ndim <= dim < ndim else None
    sizes = [shape[at] if at is not None and len(shape) == ndim else -1 for shape in shapes]
    if at is None or -1 in sizes:
        raise PlacementError(f"Values of shapes {shapes}, by rank, are not split along dim {dim}.")
    placement = Shard(at, sum(sizes))
    check_pieces(shapes, placement)
    return ranks.whole(value, placement, grads="same")


def shard(model: nn.Module, value: Tensor, dim: int = -1) -> Tensor:
    """This rank's slice of a value that every rank has whole: the inverse of `gather`, and like it
    to be called on every rank, as its gradient is gathered.

    Args:
        dim: the one to cut, as `torch.chunk` does.

    Raises:
        PlacementError: the value has no such dim.
    """
    ranks = Ranks.of(model)
    if ranks is None:
        return value
    if not -value.ndim <= dim < value.ndim:
        raise PlacementError(f"A value of shape {tuple(value.shape)} has no dim {dim}.")
    return ranks.own(value, Shard(dim % value.ndim, value.shape[dim]), grads="same")
