"""Kinds: what an object's class alone says about a capture.

Owns the names of the classes that stand for a state which cannot be shown whole, and the sentences
for each kind. Classes of packages that may be absent are known by module and name, so that looking
imports nothing.
"""

from __future__ import annotations

import torch
from torch import nn

from .findings import Finding

_UNSHARDED = "Capture an unsharded copy."
_SHARDED = (
    "its parameters are sharded across ranks.",
    "Capture a copy of the model from before it was wrapped.",
)
SAID = {
    "FSDP": _SHARDED,
    "FSDP2": _SHARDED,
    "tensor parallel": (
        "transformers laid it out over ranks, but no weight here is split by its tensor "
        "parallelism, whose values lensview makes whole: activations may be fragments.",
        "Load the model with a tensor-parallel plan (tp_size), or without distributed_config.",
    ),
    "parallelize_module": (
        "its inputs or outputs are laid out over ranks, so activations may be fragments.",
        _UNSHARDED,
    ),
    "DTensor": ("it is split over ranks, so activations may be fragments.", _UNSHARDED),
    "ShardedTensor": ("it is split over ranks, so activations may be fragments.", _UNSHARDED),
    "DeviceMesh": (
        "a mesh of ranks is held here, so the forward may work on fragments.",
        "Capture a model that no mesh was given to.",
    ),
    "pipeline stage": (
        "parts of this model run on other ranks.",
        "Capture one stage's own module (stage.submod), which is labelled a fragment, or the model "
        "before it was split.",
    ),
    "DataParallel inside": (
        "it copies its module to several devices for each call, and the copies' values come in "
        "pieces from several threads.",
        "Wrap the whole model, which is looked through, or put its .module in its place.",
    ),
    "ScriptModule": (
        "its calls run no Python, so its values cannot be taken.",
        "Use the nn.Module that it was made from.",
    ),
    "exported program": (
        "it is a flat list of operations: the modules of the model are not called.",
        "Use the nn.Module that was exported.",
    ),
    "meta parameters": (
        "it has no values, and no offloading hook that brings them.",
        "Load the weights first.",
    ),
    "unfinished scan": (
        "it could not be looked through to the end, and unknown is not whole.",
        "Keep large or deeply nested objects out of the module's attributes.",
    ),
}
LOCAL = frozenset({"ScriptModule", "exported program", "meta parameters", "DataParallel inside"})
"""The kinds that are no matter of several ranks."""

_CLASSES = {
    # A program that was unflattened does call its modules; this is the flat one.
    ("torch.export", "_StatefulGraphModule"): "exported program",
    ("torch.distributed", "FullyShardedDataParallel"): "FSDP",
    ("torch.distributed", "FlatParameter"): "FSDP",
    ("torch.distributed", "FSDPModule"): "FSDP2",
    ("torch.distributed", "DTensor"): "DTensor",
    ("torch.distributed", "ShardedTensorBase"): "ShardedTensor",
    ("torch.distributed", "DeviceMesh"): "DeviceMesh",
    ("torch.distributed", "_PipelineStageBase"): "pipeline stage",
    ("torch.distributed", "_PipelineSchedule"): "pipeline stage",
    ("transformers.distributed", "PipelineStage"): "pipeline stage",
    ("transformers.distributed", "TransformersDeviceMesh"): "tensor parallel",
}


class Kinds:
    """The kind that each class stands for; every class is looked at once per scan."""

    def __init__(self) -> None:
        self._known: dict[type, str] = {}

    def of(self, cls: type) -> str:
        """The kind of finding that being of class `cls` makes, or ""."""
        known = self._known.get(cls)
        if known is None:
            known = self._known[cls] = _kind(cls)
        return known


def _kind(cls: type) -> str:
    if issubclass(cls, torch.jit.ScriptModule):
        return "ScriptModule"
    if issubclass(cls, nn.DataParallel):
        return "DataParallel inside"  # where it has several devices
    for base in cls.__mro__:
        room = base.__module__
        if not isinstance(room, str):
            continue
        package = ".".join(room.split(".", 2)[:2])
        if kind := _CLASSES.get((package, base.__name__)):
            return kind
    return ""


def refused(kind: str, where: str, what: str = "") -> Finding:
    """A finding of a kind that refuses, with the kind's own sentence unless `what` says more."""
    sentence, remedy = SAID[kind]
    return Finding(kind, where, what or sentence, remedy)
