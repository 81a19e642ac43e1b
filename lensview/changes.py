"""Changes: what each operation makes of one region of a value.

Owns the arithmetic of every operation and the rule for broadcasting. Which regions there are, and
what is counted, is `operations.py`'s. The dtype and device of a result are the activation's, and
the tensor that came in is never written to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .errors import InterventionError, RunCancelled
from .functions import Function
from .indices import index_text
from .interventions import Intervention
from .regions import Frame, Region, positions, regions
from .sites import Site
from .sources import PatchSource
from .streams import normal


@dataclass(frozen=True)
class Piece:
    """One region on its way through an operation.

    Attributes:
        old: the region's part of `tensor`, the whole value.
        position, parts: which of how many regions it is.
        where: operation and site, for messages.
        shared: what the regions of one value have in common.
    """

    intervention: Intervention
    old: Tensor
    tensor: Tensor
    site: Site
    region: Region
    position: int
    parts: int
    where: str
    frame: Frame
    shared: dict[str, Tensor] = field(default_factory=dict)

    def operand(self, name: str) -> Tensor | float | int:
        """The argument `name`, checked against this region by the rule for broadcasting."""
        value = self.intervention.args[name]
        if not isinstance(value, Tensor):
            return value if isinstance(value, (int, float)) else float(value)
        if self.region.whole is not None:
            _check_shape(value, (*self.region.whole, *self.old.shape[2:]), self.where)
            return self.like_old(_held_part(value, self.region))
        rows = self.parts if self.region.row is not None else None
        whole = (rows, *self.old.shape[1:]) if rows is not None else tuple(self.old.shape)
        _check_shape(value, whole, self.where)
        if rows is not None and value.dim() > 1 and value.shape[0] > 1:
            value = value[self.region.row : self.region.row + 1]  # type: ignore[operator]
        return self.like_old(value)

    def cut(self, whole: Tensor) -> Tensor:
        """This region of a tensor of the value's whole shape."""
        return whole[self.region.grid] if self.region.grid else whole

    def like_old(self, new: Tensor) -> Tensor:
        """`new` in the activation's dtype, on its device; its graph is followed in a grad mode."""
        kept = new if torch.is_grad_enabled() else new.detach()
        if torch.is_grad_enabled() and kept.is_inference():
            kept = kept.clone()  # autograd saves no tensor of inference mode
        return kept.to(device=self.old.device, dtype=self.old.dtype)


def _held_part(value: Tensor, region: Region) -> Tensor:
    """What of `value`, which fits the whole selection, is for the tokens that are here."""
    if value.dim() > 1 and value.shape[0] > 1:
        value = value[region.row : region.row + 1]  # type: ignore[operator]
    if value.dim() > 1 and value.shape[1] > 1:
        value = value[:, list(region.picks)]
    return value


def _patched(piece: Piece) -> Tensor:
    source: PatchSource = piece.intervention.args["source"]
    there = source.at(piece.site)
    mask = source.mask if source.mask is not None else piece.frame.mask
    places = None
    if piece.region.whole is not None and mask is not None:
        places = positions(mask)
    parts = regions(
        piece.intervention.index,
        there.shape,
        replace(piece.frame, mask=mask, positions=places),
        f"{piece.where}, in the source",
    )
    if piece.region.whole is not None:
        return piece.like_old(_patch_part(piece, there, parts).detach())
    part = parts[piece.position % len(parts)] if len(parts) == piece.parts else None
    new = None if part is None else there[part.grid] if part.grid else there
    if new is None or new.shape != piece.old.shape:
        got = "other token columns" if new is None else f"a region of shape {tuple(new.shape)}"
        raise InterventionError(
            f"{piece.where}: the source, of shape {tuple(there.shape)}, has {got}; the run, of "
            f"shape {tuple(piece.tensor.shape)}, has one of {tuple(piece.old.shape)}. A patch "
            "needs equal regions: choose an index that both have, or a source with as many tokens."
        )
    fractions = new.is_floating_point() or new.is_complex()
    if fractions and not (piece.old.is_floating_point() or piece.old.is_complex()):
        raise InterventionError(
            f"{piece.where}: the source is {new.dtype}, which a value of {piece.old.dtype} rounds."
        )
    return piece.like_old(new.detach())


def _patch_part(piece: Piece, there: Tensor, parts: list[Region]) -> Tensor:
    """The tokens of a patch's source that this step of a run holds."""
    for part in parts:
        if part.row == piece.region.row and set(piece.region.picks) <= set(part.picks):
            new = there[part.grid][:, [part.picks.index(i) for i in piece.region.picks]]
            if new.shape == piece.old.shape:
                return new
    raise InterventionError(
        f"{piece.where}: the source, of shape {tuple(there.shape)}, does not hold the tokens that "
        f"[{index_text(piece.intervention.index)}] means in this step, or is of another shape."
    )


def _averaged(piece: Piece) -> Tensor:
    source: PatchSource = piece.intervention.args["reference"]
    mean, shape = source.at(piece.site), piece.tensor.shape
    if mean.dim() > len(shape) or shape[len(shape) - mean.dim() :] != mean.shape:
        raise InterventionError(
            f"{piece.where}: the reference's mean has shape {tuple(mean.shape)}, which must be "
            f"the last dims of the value, of shape {tuple(shape)}."
        )
    return piece.cut(piece.like_old(mean).expand(shape))


def _clamped(piece: Piece) -> Tensor:
    args = piece.intervention.args
    return torch.clamp(piece.old, args["low"], args["high"])


def _put(piece: Piece) -> Tensor:
    value = piece.operand("value")
    if isinstance(value, Tensor):
        return value.expand_as(piece.old)
    return torch.full_like(piece.old, value)


def _noisy(piece: Piece) -> Tensor:
    args, old = piece.intervention.args, piece.old
    if "noise" not in piece.shared:
        drawn = normal(args["seed"], piece.site, piece.frame.step, piece.tensor.shape)
        piece.shared["noise"] = (drawn * args["std"]).to(old.device)
    wide = _wide(old)
    return (wide + piece.cut(piece.shared["noise"]).to(wide.dtype)).to(old.dtype)


def _projected(piece: Piece) -> Tensor:
    direction: Tensor = piece.intervention.args["direction"]
    shape = piece.tensor.shape
    if not shape or len(direction) != shape[-1]:
        raise InterventionError(
            f"{piece.where}: a direction of {len(direction)} elements, but the value's last dim "
            f"has {shape[-1] if shape else 'none'}: shape {tuple(shape)}."
        )
    if piece.region.grid[-1] != slice(0, shape[-1], 1):
        raise InterventionError(
            f"{piece.where}: the index cuts the last dim of shape {tuple(shape)}; a direction is "
            "removed from whole feature vectors."
        )
    wide = _wide(piece.old)
    exact = direction.to(torch.complex128 if direction.is_complex() else torch.float64)
    unit = (exact / exact.norm()).to(device=wide.device, dtype=wide.dtype)
    along = (wide * unit.conj()).sum(-1, keepdim=True)
    left: Tensor = wide - along * unit
    return left.to(piece.old.dtype)


def _wide(tensor: Tensor) -> Tensor:
    """Half-precision values in float32, others as they are."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _called(piece: Piece) -> Tensor:
    fn: Function = piece.intervention.args["fn"]
    if fn.callee is None:
        if not fn.portable:
            fn.trusted()  # says why there is nothing to call
        raise InterventionError(
            f"{piece.where}: the function {fn} came from a file or a message, and is not run by "
            "itself. Look at intervention.args['fn']; intervention.trusted() makes it ready."
        )
    try:
        new: Any = fn.callee(piece.old.clone())
    except RunCancelled:
        raise
    except Exception as error:
        raise InterventionError(
            f"{piece.where}: {fn} raised {type(error).__name__} on a tensor of shape "
            f"{tuple(piece.old.shape)}: {error}"
        ) from error
    expected = _kind(piece.old)
    if isinstance(new, Tensor) and _kind(new) == expected:
        return new
    got = _kind(new) if isinstance(new, Tensor) else f"a {type(new).__name__}"
    raise InterventionError(f"{piece.where}: {fn} returned {got}; it must return {expected}.")


def _kind(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    return f"{dtype} {tuple(tensor.shape)} on {tensor.device}{layout}"


CHANGES: dict[str, Callable[[Piece], Tensor]] = {
    "zero": lambda p: torch.zeros_like(p.old),
    "scale": lambda p: (p.old * p.operand("by")).to(p.old.dtype),
    "add": lambda p: (p.old + p.operand("vector")).to(p.old.dtype),
    "put": _put,
    "clamp": _clamped,
    "patch": _patched,
    "noise": _noisy,
    "project_out": _projected,
    "mean": _averaged,
    "call": _called,
}
"""By operation; `skip` is none of them, as it has no value to change."""


def _check_shape(value: Tensor, region: tuple[int, ...], where: str) -> None:
    if value.dim() == 0:
        return
    if value.dim() == 1 and (not region or value.shape[0] != region[-1]):
        rule = f"a feature vector here has {region[-1] if region else 'no'} elements"
    elif value.dim() > 1 and value.dim() != len(region):
        rule = f"it must have 0 dims, 1 dim (a feature vector) or exactly {len(region)} dims"
    elif value.dim() > 1 and any(v not in (1, r) for v, r in zip(value.shape, region, strict=True)):
        rule = "each of its dims must equal the region's or be 1"
    else:
        return
    raise InterventionError(
        f"{where}: a value of shape {tuple(value.shape)} does not fit the region of shape "
        f"{region}: {rule}. Nothing else broadcasts."
    )
