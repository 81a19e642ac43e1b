"""Compare: what is different between two traces.

Owns the figures of a difference per site and of the predictions. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import NotRecordedError, near
from ..tensors.dense import components, full_shape, widest
from .parts import Parts


@dataclass(frozen=True)
class SiteDiff:
    """How far two records of one site are apart, over elements finite in both.

    Attributes:
        changed: how many elements differ (a NaN in both does not; finite against NaN does).
        elements: how many there are.
        largest: the largest absolute difference, in the value's units; inf where only one is
            finite.
        rms: root mean square of the differences.
        relative: `rms` over the root mean square of the first trace's values; 0 where both are 0.
        note: why there are no figures (other shapes), or "".
    """

    changed: int
    elements: int
    largest: float
    rms: float
    relative: float
    note: str = ""


class Diff(Mapping[str, SiteDiff]):
    """The differences between two traces: a mapping from site to `SiteDiff`.

    Attributes:
        only_first, only_second: sites that just one of them holds.
        kl: Kullback-Leibler divergence, in nats, from the first trace's next-token distribution to
            the second's, one per batch row; None where one has no logits or they do not match.
    """

    def __init__(
        self,
        sites: Mapping[str, SiteDiff],
        only_first: tuple[str, ...],
        only_second: tuple[str, ...],
        kl: tuple[float, ...] | None,
    ) -> None:
        self._sites = dict(sites)
        self.only_first = only_first
        self.only_second = only_second
        self.kl = kl

    @classmethod
    def of(cls, first: Parts, second: Parts) -> Diff:
        """Compare what two traces hold, in float64 on the first one's device."""
        mine, other = first.records, second.records
        sites = {s: _site(mine[s].tensor, other[s].tensor) for s in mine if s in other}
        return cls(
            sites,
            tuple(s for s in mine if s not in other),
            tuple(s for s in other if s not in mine),
            kl(first.logits, second.logits),
        )

    @property
    def first(self) -> str | None:
        """The first site, in the order in which values passed, that differs."""
        return next((s for s, d in self._sites.items() if d.changed or d.note), None)

    def __getitem__(self, site: str) -> SiteDiff:
        if site not in self._sites:
            raise NotRecordedError(f"{site} is not in both traces.{near(site, self._sites)}")
        return self._sites[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def __repr__(self) -> str:
        different = {s: d for s, d in self._sites.items() if d.changed or d.note}
        rows = [f"{len(different)} of {len(self)} common sites differ"]
        if not len(self):
            rows = ["no site is in both traces"]
        if self.kl is not None:
            rows[0] += f"; KL of the next token {', '.join(f'{k:.4g}' for k in self.kl)} nats"
        width = max((len(s) for s in different), default=0)
        for site, d in list(different.items())[:20]:
            figures = d.note or (
                f"max {d.largest:.3g}  rms {d.rms:.3g}  relative {d.relative:.2%}  "
                f"{d.changed}/{d.elements} elements"
            )
            rows.append(f"  {site:<{width}}  {figures}")
        if len(different) > 20:
            rows.append(f"  … and {len(different) - 20} more")
        for name, sites in (("first", self.only_first), ("second", self.only_second)):
            if sites:
                rows.append(f"  only in the {name}: {len(sites)} sites")
        return "\n".join(rows)


def _site(a: Tensor, b: Tensor) -> SiteDiff:
    shapes = full_shape(a), full_shape(b)
    if shapes[0] != shapes[1]:
        return _incomparable(f"shapes {shapes[0]} and {shapes[1]}")
    try:
        x, y = _flat(a, a.device), _flat(b, a.device)
    except (TypeError, ValueError) as error:  # a kind of tensor that cannot be read, by name
        return _incomparable(str(error))
    if x.shape != y.shape:
        return _incomparable("nested tensors with parts of other shapes")
    return _figures(x, y)


def _incomparable(why: str) -> SiteDiff:
    return SiteDiff(0, 0, float("nan"), float("nan"), float("nan"), why)


def _flat(tensor: Tensor, device: torch.device) -> Tensor:
    """All elements in one dim, wide enough to subtract without rounding that matters."""
    parts = [part.flatten() for part in components(tensor)] or [torch.zeros(0)]
    flat = torch.cat(parts).to(device)
    return flat.to(torch.complex128 if flat.is_complex() else widest(device))


def _figures(x: Tensor, y: Tensor) -> SiteDiff:
    same = (x == y) | (x.isnan() & y.isnan())
    changed = int((~same).sum())
    if not changed:
        return SiteDiff(0, x.numel(), 0.0, 0.0, 0.0)
    both = x.isfinite() & y.isfinite()
    gap = (y - x).abs()[both]
    one_sided = bool((~same & ~both).any())
    rms = float(gap.square().mean().sqrt()) if gap.numel() else float("inf")
    size = float(x.abs()[both].square().mean().sqrt()) if gap.numel() else 0.0
    largest = float("inf") if one_sided else float(gap.max())
    return SiteDiff(changed, x.numel(), largest, rms, rms / size if size else float("inf"))


def kl(a: Tensor | None, b: Tensor | None) -> tuple[float, ...] | None:
    """Kullback-Leibler divergence, in nats, of the distributions that two logits (…, V) stand for:
    KL(a || b), over the whole vocabulary, in float64, one for each row; None where one is missing
    or their shapes differ."""
    if a is None or b is None or a.shape != b.shape:
        return None
    p, q = (torch.log_softmax(t.detach().double().cpu(), -1) for t in (a, b))
    # 0 * -inf is 0 here: a token that the first gives no probability adds nothing.
    terms = torch.where(p.isneginf(), torch.zeros_like(p), p.exp() * (p - q))
    return tuple(terms.sum(-1).tolist())
