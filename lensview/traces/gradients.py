"""Gradients: what a backward leaves at the sites of a run with ``grad=True``.

Owns one slot per record, which a hook on the live tensor fills. A slot holds no part of the graph,
and the graph holds a slot only weakly: a dropped trace is freed at once, whatever else lives on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Gradient:
    """The gradient at one record: None until a backward came by.

    As ``.grad`` does, it adds up over backwards. `why_not` says why there can never be one.
    """

    def __init__(self, why_not: str = "") -> None:
        self.value: Tensor | None = None
        self.why_not = why_not

    def arrived(self, gradient: Tensor) -> None:
        """Take in one backward's gradient."""
        self.value = gradient if self.value is None else self.value + gradient


def watched(tensor: Tensor, cut: Callable[[Tensor], Tensor], *, on_all: bool = False) -> Gradient:
    """The slot of `tensor`, filled at each backward by what `cut` keeps of its gradient.

    With `on_all`, `cut` is a matter of several ranks: it is called for every gradient, also where
    this rank's slot is gone.

    A hook stays on the tensor where it lives on in a graph; on a leaf it is taken off again with
    the slot. Parameters get none: nothing of a run may hang on a model.
    """
    if isinstance(tensor, nn.Parameter):
        return Gradient("it is a parameter of the model; its gradient is in its own .grad.")
    if not tensor.requires_grad:
        return Gradient(
            "the value needed no gradient when it passed: it does not depend on anything that "
            "requires one (integers and frozen inputs do not), or was computed under no_grad, as "
            "reentrant gradient checkpointing does."
        )
    slot = Gradient()
    held = weakref.ref(slot)

    def store(gradient: Tensor) -> None:
        found = held()
        if found is None and not on_all:
            return
        with torch.no_grad():
            kept = cut(gradient.detach()).clone()
        if found is not None:
            found.arrived(kept)

    register: Any = tensor.register_hook
    handle = register(store)
    if tensor.is_leaf and not on_all:
        weakref.finalize(slot, handle.remove).atexit = False
    return slot
