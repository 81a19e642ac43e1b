"""Copies: values that nobody else can write to, each distinct one copied once."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ..keeping import Cut


class Copies:
    """One protected copy per distinct value.

    A value is known again by its memory and its version counter, and only while the tensor that it
    was copied from lives: freed memory comes back with the same address and version 0. Where there
    is no counter to trust (inference mode, tensor subclasses, other layouts) every sight is copied.
    A collective writes to what it adds up and leaves the counter: `lies` keeps such values apart.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], Tensor]] = {}

    def take(
        self, tensor: Tensor, kept: Tensor, cut: Cut, lies: Hashable = None
    ) -> tuple[Tensor, bool]:
        """A copy that nobody else can write to, and whether it is new.

        Args:
            kept: what `cut` leaves of `tensor`.
            lies: how the value lies over ranks; what lies otherwise is another value.
        """
        if not _traceable(tensor):
            return _copied(kept), True
        key = (*_key(tensor), cut.part, cut.dtype, lies)
        if (known := self._known.get(key)) is not None:
            source = known[0]()
            # The source must still be what was copied: it can have been given other memory.
            if source is not None and _key(source) == key[:-3]:
                return known[1], False
        copy = _copied(kept)
        self._known[key] = (weakref.ref(tensor), copy)
        return copy, True


def _traceable(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not tensor.is_nested and not tensor.is_inference() and tensor.numel() > 0


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor._version,
        # Lazy conjugates and negatives are other numbers in the same memory.
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _copied(tensor: Tensor) -> Tensor:
    if not torch.is_inference_mode_enabled():
        return tensor.detach().clone()
    # Outside inference mode the clone is a normal tensor, which can be edited and patched anywhere.
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()
