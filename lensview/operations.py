"""Operations: an intervention applied to a tensor, region by region.

Owns the way through the regions of a value, the checks of dtypes, and the counts of what changed.
What is made of one region is `changes.py`'s. The dtype and device of a result are the
activation's; the tensor that came in is never written to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .changes import CHANGES, Piece
from .errors import InterventionError
from .functions import Function
from .indices import At
from .interventions import Intervention, short
from .regions import Frame, regions
from .sites import Site
from .sources import PatchSource

_ROUNDING = ("scale", "noise", "project_out", "mean")
"""Operations that make fractions even of whole numbers."""


def apply(
    intervention: Intervention, tensor: Tensor, site: Site, frame: Frame
) -> tuple[Tensor, Tensor]:
    """The changed tensor, and how many elements differ from before (a 0-d int64 tensor).

    Args:
        intervention: what to do; not `skip`.
        tensor: the activation, any shape; it is not written to.
        site: where it passed, with its call.
        frame: what the index may need to know of the run.

    Raises:
        InterventionError: the index or the value does not fit; names site, shapes and rule.
    """
    # Most modules are called once; whether this one is, nobody knows yet.
    where = f"{intervention.op} at {site.at_call(site.call or None)}"
    if tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise InterventionError(
            f"{where}: the value is a {kind} tensor, which no operation here can change."
        )
    _check_dtype(intervention, tensor, where)
    if _narrow(tensor) and intervention.op != "call":
        # PyTorch does no arithmetic in eight bits; what fits there comes back from 32 unchanged.
        wide, _ = apply(intervention, tensor.float(), site, frame)
        result = wide.to(tensor.dtype)
        return result, _differs(tensor, result)
    parts = regions(intervention.index, tensor.shape, frame, where)
    change = CHANGES[intervention.op]
    result, changed = tensor.clone(), torch.zeros((), dtype=torch.int64, device=tensor.device)
    shared: dict[str, Tensor] = {}
    for position, part in enumerate(parts):
        old = tensor[part.grid] if part.grid else tensor
        new = change(
            Piece(intervention, old, tensor, site, part, position, len(parts), where, frame, shared)
        )
        result[part.grid if part.grid else ...] = new
        changed = changed + _differs(old, new)
    return result, changed


def overflowed(before: Tensor, after: Tensor) -> Tensor:
    """How many elements were finite before and are not after (a 0-d int64 tensor)."""
    if not (before.is_floating_point() or before.is_complex()):
        return torch.zeros((), dtype=torch.int64, device=before.device)
    # Times 0, what is finite is 0 and the rest is NaN: half the price of `isfinite`.
    return ((_wide(before) * 0 == 0) & (_wide(after) * 0 != 0)).sum()


def elsewhere(intervention: Intervention, tensor: Tensor, site: Site, frame: Frame) -> bool:
    """Whether all tokens that the intervention means are in other steps than this one."""
    index = intervention.index
    if frame.positions is None or not isinstance(index, At) or index.token is None:
        return False
    return not regions(index, tensor.shape, frame, f"{intervention.op} at {site}")


def _narrow(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() == 1


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if _narrow(tensor) else tensor


def _differs(old: Tensor, new: Tensor) -> Tensor:
    """How many elements changed; a NaN that stays NaN did not."""
    old, new = _wide(old), _wide(new)
    same = (old == new) | ((old != old) & (new != new))
    return (~same).sum()


def _check_dtype(intervention: Intervention, tensor: Tensor, where: str) -> None:
    args = intervention.args.values()
    fractional = any(
        (v.is_floating_point() or v.is_complex()) if isinstance(v, Tensor) else isinstance(v, float)
        for v in args
        if v is not None and not isinstance(v, (PatchSource, Function))
    )
    whole_numbers = not (tensor.is_floating_point() or tensor.is_complex())
    if whole_numbers and (
        fractional
        or intervention.op in _ROUNDING
        or (tensor.dtype == torch.bool and intervention.op in ("add", "clamp"))
    ):
        raise InterventionError(
            f"{where}: the value is {tensor.dtype}, which {intervention.op} with "
            f"{', '.join(short(v) for v in args)} would round. Use put or zero with whole numbers."
        )
    if tensor.is_complex() and intervention.op == "noise":
        raise InterventionError(f"{where}: the value is {tensor.dtype}, and noise is real.")
    if not tensor.is_complex() and any(isinstance(v, Tensor) and v.is_complex() for v in args):
        raise InterventionError(f"{where}: the value is {tensor.dtype}, the argument is complex.")
