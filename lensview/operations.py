"""Operations: what an intervention does to a tensor.

Owns each operation on a region, the rule for broadcasting, the checks of dtypes, and the count of
what changed. The dtype and device of a result are the activation's; the tensor that came in is
never written to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .errors import InterventionError
from .indices import At, index_text
from .interventions import Intervention, PatchSource, short
from .regions import Frame, Region, positions, regions
from .sites import Site


def apply(
    intervention: Intervention, tensor: Tensor, site: Site, frame: Frame
) -> tuple[Tensor, Tensor]:
    """The changed tensor, and how many elements differ from before (a 0-d int64 tensor).

    Args:
        intervention: what to do.
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
    if tensor.is_floating_point() and tensor.element_size() == 1:
        # PyTorch does no arithmetic in eight bits; what fits there comes back from 32 unchanged.
        wide, _ = apply(intervention, tensor.float(), site, frame)
        result = wide.to(tensor.dtype)
        return result, _differs(tensor.float(), result.float())
    parts = regions(intervention.index, tensor.shape, frame, where)
    change = _CHANGES[intervention.op]
    result, changed = tensor.clone(), torch.zeros((), dtype=torch.int64, device=tensor.device)
    for position, part in enumerate(parts):
        old = tensor[part.grid] if part.grid else tensor
        new = change(
            _Piece(intervention, old, tensor, site, part, position, len(parts), where, frame)
        )
        result[part.grid if part.grid else ...] = new
        changed = changed + _differs(old, new)
    return result, changed


def elsewhere(intervention: Intervention, tensor: Tensor, site: Site, frame: Frame) -> bool:
    """Whether all tokens that the intervention means are in other steps than this one."""
    index = intervention.index
    if frame.positions is None or not isinstance(index, At) or index.token is None:
        return False
    return not regions(index, tensor.shape, frame, f"{intervention.op} at {site}")


@dataclass(frozen=True)
class _Piece:
    """One region on its way through an operation."""

    intervention: Intervention
    old: Tensor
    tensor: Tensor
    site: Site
    region: Region
    position: int
    parts: int
    where: str
    frame: Frame

    def operand(self, name: str) -> Tensor | float | int:
        """The argument `name`, checked against this region by the rule for broadcasting."""
        value = self.intervention.args[name]
        if not isinstance(value, Tensor):
            return value if isinstance(value, (int, float)) else float(value)
        if self.region.whole is not None:
            _check_shape(value, (*self.region.whole, *self.old.shape[2:]), self.where)
            return _settled(_held_part(value, self.region), self.old)
        rows = self.parts if self.region.row is not None else None
        whole = (rows, *self.old.shape[1:]) if rows is not None else tuple(self.old.shape)
        _check_shape(value, whole, self.where)
        if rows is not None and value.dim() > 1 and value.shape[0] > 1:
            value = value[self.region.row : self.region.row + 1]  # type: ignore[operator]
        return _settled(value, self.old)


def _settled(value: Tensor, like: Tensor) -> Tensor:
    """`value` in the activation's dtype and device; its graph is followed only in a grad mode."""
    kept = value if torch.is_grad_enabled() else value.detach()
    return kept.to(device=like.device, dtype=like.dtype)


def _held_part(value: Tensor, region: Region) -> Tensor:
    """What of `value`, which fits the whole selection, is for the tokens that are here."""
    if value.dim() > 1 and value.shape[0] > 1:
        value = value[region.row : region.row + 1]  # type: ignore[operator]
    if value.dim() > 1 and value.shape[1] > 1:
        value = value[:, list(region.picks)]
    return value


def _patched(piece: _Piece) -> Tensor:
    source: PatchSource = piece.intervention.args["source"]
    there = source.at(piece.site)
    mask = source.mask if source.mask is not None else piece.frame.mask
    places = None
    if piece.region.whole is not None and mask is not None:
        places = positions(mask)
    parts = regions(
        piece.intervention.index,
        there.shape,
        Frame(mask, piece.frame.heads, places),
        f"{piece.where}, in the source",
    )
    if piece.region.whole is not None:
        return _settled(_patch_part(piece, there, parts), piece.old).detach()
    part = parts[piece.position % len(parts)] if len(parts) == piece.parts else None
    new = None if part is None else there[part.grid] if part.grid else there
    if new is None or new.shape != piece.old.shape:
        got = "other token columns" if new is None else f"a region of shape {tuple(new.shape)}"
        raise InterventionError(
            f"{piece.where}: the source, of shape {tuple(there.shape)}, has {got}; the run, of "
            f"shape {tuple(piece.tensor.shape)}, has one of {tuple(piece.old.shape)}. A patch "
            "needs equal regions: choose an index that both have, or a source with as many tokens."
        )
    return new.detach().to(device=piece.old.device, dtype=piece.old.dtype)


def _patch_part(piece: _Piece, there: Tensor, parts: list[Region]) -> Tensor:
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


def _clamped(piece: _Piece) -> Tensor:
    args = piece.intervention.args
    return torch.clamp(piece.old, args["low"], args["high"])


def _put(piece: _Piece) -> Tensor:
    value = piece.operand("value")
    if isinstance(value, Tensor):
        return value.expand_as(piece.old)
    return torch.full_like(piece.old, value)


_CHANGES: dict[str, Callable[[_Piece], Tensor]] = {
    "zero": lambda p: torch.zeros_like(p.old),
    "scale": lambda p: (p.old * p.operand("by")).to(p.old.dtype),
    "add": lambda p: (p.old + p.operand("vector")).to(p.old.dtype),
    "put": _put,
    "clamp": _clamped,
    "patch": _patched,
}


def _differs(old: Tensor, new: Tensor) -> Tensor:
    """How many elements changed; a NaN that stays NaN did not."""
    same = (old == new) | ((old != old) & (new != new))
    return (~same).sum()


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


def _check_dtype(intervention: Intervention, tensor: Tensor, where: str) -> None:
    args = intervention.args.values()
    fractional = any(
        (v.is_floating_point() or v.is_complex()) if isinstance(v, Tensor) else isinstance(v, float)
        for v in args
        if v is not None and not isinstance(v, PatchSource)
    )
    whole_numbers = not (tensor.is_floating_point() or tensor.is_complex())
    if whole_numbers and (
        fractional
        or intervention.op == "scale"
        or (tensor.dtype == torch.bool and intervention.op in ("add", "clamp"))
    ):
        raise InterventionError(
            f"{where}: the value is {tensor.dtype}, which {intervention.op} with "
            f"{', '.join(short(v) for v in args)} would round. Use put or zero with whole numbers."
        )
    if not tensor.is_complex() and any(isinstance(v, Tensor) and v.is_complex() for v in args):
        raise InterventionError(f"{where}: the value is {tensor.dtype}, the argument is complex.")
