"""Intervention: a change to the value at a site, as data.

Owns the operations: their constructors, what they do to a tensor, their checks against its shape
and dtype, and their JSON. It does not find the site (`taps/` does) and keeps no state of a run.

The dtype and device of a result are the activation's; the tensor that came in is never written to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from .errors import InterventionError, NotRecordedError, near
from .indices import Frame, Index, Region, index_text, normal, regions
from .sites import Site, glob_pattern

Value = float | int | Tensor


@dataclass(frozen=True)
class PatchSource:
    """What a patch takes its values from: records by canonical site text, and their real tokens.

    `whole` stands in for all of them where the source is one tensor.
    """

    records: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    whole: Tensor | None = None

    def at(self, site: Site) -> Tensor:
        """The tensor recorded at `site`, or without its call where the source has one call only."""
        if self.whole is not None:
            return self.whole
        for text in (str(site), str(site.at_call(None))):
            if text in self.records:
                return self.records[text]
        raise InterventionError(
            f"patch at {site}: the source holds no {site}; it holds {', '.join(self.records)}."
        )


@dataclass(frozen=True, eq=False)
class Intervention:
    """One change at one site (or at every site of a glob). Make them with `zero`, `scale`, ….

    Attributes:
        op: a name in `OPERATIONS`.
        site: the site's text; without ``@call`` it applies to every call.
        index: which part of the value; None is everything.
        args: what the operation takes: numbers, tensors, or a `PatchSource`.
    """

    op: str
    site: str
    index: Index = None
    args: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f"[{index_text(self.index)}]" if self.index is not None else ""
        shown = ", ".join(_short(v) for v in self.args.values())
        return f"{self.op} {self.site}{where}" + (f" {shown}" if shown else "")

    def __repr__(self) -> str:
        return f"<Intervention {self}>"

    def apply(self, tensor: Tensor, site: Site, frame: Frame) -> tuple[Tensor, Tensor]:
        """The changed tensor, and how many elements differ from before (a 0-d int64 tensor).

        Args:
            tensor: the activation, any shape; it is not written to.
            site: where it passed, with its call.
            frame: what the index may need to know of the run.

        Raises:
            InterventionError: the index or the value does not fit; names site, shapes and rule.
        """
        # Most modules are called once; whether this one is, nobody knows yet.
        where = f"{self.op} at {site.at_call(site.call or None)}"
        _check_dtype(self, tensor, where)
        parts = regions(self.index, tensor.shape, frame, where)
        change = _CHANGES[self.op]
        result, changed = tensor.clone(), torch.zeros((), dtype=torch.int64, device=tensor.device)
        for position, part in enumerate(parts):
            old = tensor[part.grid] if part.grid else tensor
            new = change(_Piece(self, old, tensor, site, part, position, len(parts), where, frame))
            result[part.grid if part.grid else ...] = new
            changed = changed + _differs(old, new)
        return result, changed


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
        rows = self.parts if self.region.row is not None else None
        whole = (rows, *self.old.shape[1:]) if rows is not None else tuple(self.old.shape)
        _check_shape(value, whole, self.where)
        if rows is not None and value.dim() > 1 and value.shape[0] > 1:
            value = value[self.region.row : self.region.row + 1]  # type: ignore[operator]
        return value.detach().to(device=self.old.device, dtype=self.old.dtype)


def zero(site: str, index: Any = None) -> Intervention:
    """Set the value at `site` (or its `index`) to 0."""
    return _make("zero", site, index)


def scale(site: str, by: Value, index: Any = None) -> Intervention:
    """Multiply the value at `site` by `by`: a number, or a tensor that fits (see `add`)."""
    return _make("scale", site, index, by=by)


def add(site: str, vector: Value, index: Any = None) -> Intervention:
    """Add `vector` to the value at `site`.

    Args:
        vector: a number or a 0-d tensor; a tensor of 1 dim, which is a feature vector and must be
            as long as the last dim; or a tensor of exactly the region's dims, each equal or 1.
            Nothing else broadcasts. It takes the activation's dtype and device.
        index: a torch-style index or `at`; an int keeps its dim, nothing is clipped.
    """
    return _make("add", site, index, vector=vector)


def put(site: str, value: Value, index: Any = None) -> Intervention:
    """Replace the value at `site` (or its `index`) by `value`, which fits as in `add`."""
    return _make("put", site, index, value=value)


def clamp(
    site: str, low: float | None = None, high: float | None = None, index: Any = None
) -> Intervention:
    """Limit the value at `site` to [`low`, `high`]; None leaves that end open. NaN stays NaN."""
    if low is None and high is None:
        raise InterventionError(f"clamp at {site}: give low, high or both.")
    if low is not None and high is not None and low > high:
        raise InterventionError(f"clamp at {site}: low {low} is above high {high}.")
    return _make("clamp", site, index, low=low, high=high)


def patch(site: str, source: Any, index: Any = None) -> Intervention:
    """Replace the value at `site` by the one that `source` holds there, at the same index.

    Args:
        source: a Trace (of this model or of another with the same site), a mapping of site text
            to tensor, or one tensor of the value's whole shape.
        index: read in the source as in the run; with `at`, tokens count in each by its own mask.

    Raises:
        NotRecordedError: the source does not hold `site`.
    """
    return _make("patch", site, index, source=_patch_source(site, source))


OPERATIONS = ("zero", "scale", "add", "put", "clamp", "patch")


def _make(op: str, site: str, index: Any, **args: Any) -> Intervention:
    where = Site.parse(site)
    for name, value in args.items():
        if isinstance(value, (Tensor, PatchSource)) or (value is None and op == "clamp"):
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InterventionError(
                f"{op} at {where}: {name} is a {type(value).__name__}; it takes a number or a "
                "tensor."
            )
    if op == "clamp" and any(isinstance(v, Tensor) for v in args.values()):
        raise InterventionError(f"clamp at {where}: low and high are numbers.")
    kept = {n: v.detach() if isinstance(v, Tensor) else v for n, v in args.items()}
    return Intervention(op, str(where), normal(index), kept)


def _patch_source(text: str, source: Any) -> PatchSource:
    if isinstance(source, (PatchSource, Tensor)):
        return source if isinstance(source, PatchSource) else PatchSource(whole=source.detach())
    if not isinstance(source, Mapping):
        raise InterventionError(
            f"patch at {text}: the source is a {type(source).__name__}; it takes a Trace, a "
            "mapping of sites to tensors, or a tensor."
        )
    wanted = Site.parse(text)
    pattern = glob_pattern(wanted.path)
    found = {}
    for key in source:
        site = Site.parse(key)
        fits = pattern.fullmatch(site.path) and wanted.call in (None, site.call)
        if fits and (site.op, site.side, site.leaf) == (wanted.op, wanted.side, wanted.leaf):
            found[str(site)] = source[key]
    if not found:
        raise NotRecordedError(
            f"patch: the source holds no {wanted} among its {len(source)} sites."
            f"{near(str(wanted), source)} Record it there first."
        )
    tokens = getattr(source, "tokens", None)
    return PatchSource(found, getattr(tokens, "mask", None))


# --- what each operation does to a region ----------------------------------------------------


def _patched(piece: _Piece) -> Tensor:
    source: PatchSource = piece.intervention.args["source"]
    there = source.at(piece.site)
    mask = source.mask if source.mask is not None else piece.frame.mask
    parts = regions(
        piece.intervention.index,
        there.shape,
        Frame(mask, piece.frame.heads),
        f"{piece.where}, in the source",
    )
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
            f"{', '.join(_short(v) for v in args)} would round. Use put or zero with whole numbers."
        )
    if not tensor.is_complex() and any(isinstance(v, Tensor) and v.is_complex() for v in args):
        raise InterventionError(f"{where}: the value is {tensor.dtype}, the argument is complex.")


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, PatchSource):
        return "from a tensor" if value.whole is not None else "from another run"
    return f"{value:g}" if isinstance(value, float) else str(value)
