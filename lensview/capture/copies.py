"""Copies: values that nobody else can write to, each distinct one copied once.

Most copies are made late, or never: PyTorch can clone a tensor by *copy on write*, where both share
the memory until one of them is written to. A value that the model lets go of is then never copied,
and no fresh memory is asked for. Whatever writes through PyTorch, ``.data`` included, is seen. What
is not seen is a write through a bare pointer (an array of numpy over the same memory), so nothing
stays shared after the forward: `Copies.settle`.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..keeping import Cut

_CAN_SHARE = hasattr(torch, "_lazy_clone") and hasattr(torch._C, "_data_address")
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


class Copies:
    """One protected copy per distinct value.

    A value is known again by its memory and its version counter, and only while the tensor that it
    was copied from lives: freed memory comes back with the same address and version 0. Where there
    is no counter to trust (inference mode, tensor subclasses, other layouts) every sight is copied.
    A collective writes to what it adds up and leaves the counter: `lies` keeps such values apart.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], Tensor]] = {}
        self._shared: list[Tensor] = []
        # A collective writes through a bare pointer.
        self._may_share = _CAN_SHARE and not (dist.is_available() and dist.is_initialized())

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
        copy = self._copy(kept)
        self._known[key] = (weakref.ref(tensor), copy)
        return copy, True

    def _copy(self, kept: Tensor) -> Tensor:
        if self._may_share and _shareable(kept):
            try:
                copy = torch._lazy_clone(kept.detach())
            except RuntimeError:  # memory that is not PyTorch's own: an array, a file, a process
                return _copied(kept)
            self._shared.append(copy)
            return copy
        return _copied(kept)

    def settle(self) -> None:
        """Give every copy memory of its own. Free where nothing else holds the value any more."""
        shared, self._shared = self._shared, []
        for copy in shared:
            copy.data_ptr()


def _traceable(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not tensor.is_nested and not tensor.is_inference() and tensor.numel() > 0


def _shareable(kept: Tensor) -> bool:
    """Whether a copy on write is the same as a copy, and holds no more memory than one."""
    return (
        kept.device.type == "cpu"
        and type(kept) is Tensor
        and not (torch.is_grad_enabled() or torch.is_inference_mode_enabled())
        and kept.is_contiguous()
        and not (kept.is_conj() or kept.is_neg() or kept.is_quantized or _is_wrapped(kept))
        and kept.numel() * kept.element_size() == kept.untyped_storage().nbytes()
    )


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return (
        _address(tensor),
        tensor.storage_offset(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor._version,
        # Lazy conjugates and negatives are other numbers in the same memory.
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _address(tensor: Tensor) -> int:
    # `data_ptr` may be written through, so asking for it ends the sharing.
    return int(torch._C._data_address(tensor)) if _CAN_SHARE else tensor.data_ptr()  # type: ignore[attr-defined]


def _copied(tensor: Tensor) -> Tensor:
    if not torch.is_inference_mode_enabled():
        return tensor.detach().clone()
    # Outside inference mode the clone is a normal tensor, which can be edited and patched anywhere.
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()
