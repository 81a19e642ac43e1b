"""Mesh: which ranks hold the parts of a model.

Owns the look at a model for its device mesh, and the way into a DTensor and back. Without tensor
parallelism it imports nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_OTHER = frozenset("fsdp dp dp_shard dp_replicate pp cp".split())
"""Names of mesh dims that are no tensor parallelism."""


def dtensor_type() -> type[Any] | None:
    """DTensor, if anything in this process has imported it."""
    room = sys.modules.get("torch.distributed.tensor")
    return getattr(room, "DTensor", None)


def held(tensor: Tensor) -> Tensor:
    """What this rank holds of a DTensor, as a plain tensor; any other tensor itself.

    Copying a DTensor whose sum is due would take the mask away that the sum needs.
    """
    split = dtensor_type()
    if split is None or not isinstance(tensor, split):
        return tensor
    local: Tensor = tensor.to_local()
    return local


def as_before(local: Tensor, tensor: Tensor) -> Tensor:
    """`local` as a DTensor that lies as `tensor` does; itself where that is a plain tensor."""
    split: Any = dtensor_type()
    if split is None or not isinstance(tensor, split):
        return local
    stated: Any = tensor
    wrapped: Tensor = split.from_local(
        local.contiguous(),
        stated.device_mesh,
        stated.placements,
        run_check=False,
        shape=tensor.shape,
        stride=torch.empty(tensor.shape, device="meta").stride(),
    )
    return wrapped


def mesh_of(model: nn.Module) -> DeviceMesh | None:
    """The one-dimensional mesh that transformers' tensor parallelism split `model` over, or that
    its DTensor parameters are split over; None where there is none."""
    split = dtensor_type()
    if split is None:
        return None
    for module in model.modules():
        mesh = vars(module).get("_device_mesh")
        if mesh is not None and (found := _tensor_dim(mesh)) is not None:
            return found
    fully_sharded = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if fully_sharded is not None and any(isinstance(m, fully_sharded) for m in model.modules()):
        # Its parameters are split between forwards, its values are not.
        return None
    for parameter in model.parameters():
        if isinstance(parameter, split):
            found = _tensor_dim(getattr(parameter, "device_mesh", None))
            if found is not None:
                return found
    return None


def _tensor_dim(mesh: Any) -> DeviceMesh | None:
    """The dim of a mesh that tensors are split over: its "tp", or the only one if it has no name
    that tells otherwise."""
    names = getattr(mesh, "mesh_dim_names", None) or ()
    if "tp" in names:
        return mesh if mesh.ndim == 1 else mesh["tp"]  # type: ignore[no-any-return]
    alone = getattr(mesh, "ndim", 0) == 1 and not _OTHER & {*names}
    return mesh if alone else None
