"""Witness: a second look at values that are classed whole: do the ranks really have the same?

Owns the fingerprints of a run's values, and their comparison in one collective, counted apart from
the values' own. Ranks may compute the same value in another order of sums, so the comparison gives
the largest relative difference instead of a yes or no. A value is looked at the first time that its
site passes in a process.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .group import Ranks

NUMBERS = 8
"""How many sums stand for a value."""
TOLERANCE = 1e-3
"""The relative difference above which ranks do not have the same value."""


class Witness:
    """What one process has looked at so far, and the fingerprints of the run in progress."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._prints: dict[Hashable, Tensor] = {}

    def look(self, key: Hashable, tensor: Tensor) -> None:
        """Take the fingerprint of a value under `key`, unless it was taken in an earlier run."""
        if key not in self._seen and key not in self._prints and tensor.numel():
            self._prints[key] = fingerprint(tensor)

    def forget(self) -> None:
        """Begin anew: the fingerprints of a run that did not end are of no use."""
        self._prints = {}

    def compare(self, ranks: Ranks) -> dict[Hashable, float]:
        """The keys whose values differ between ranks, with the largest relative difference.

        Every rank calls it after the same looks.
        """
        prints, self._prints = self._prints, {}
        self._seen.update(prints)
        if not prints:
            return {}
        counts = ranks.counts
        before = counts.collectives, counts.bytes
        mine = torch.stack([p.to(ranks.device) for p in prints.values()])
        rows = torch.stack(ranks.gather_all(mine))
        counts.collectives, counts.bytes = before
        gap = (rows - rows[:1]).abs().amax((0, 2))
        size = rows.abs().amax((0, 2)).clamp(min=1e-30)
        off = torch.nan_to_num(gap / size, nan=0.0, posinf=1.0).tolist()
        return {key: d for key, d in zip(prints, off, strict=True) if d > TOLERANCE}


def fingerprint(tensor: Tensor) -> Tensor:
    """A few float64 sums over interleaved parts of a value; non-finite elements count by number."""
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        flat = flat.double()
        finite = torch.isfinite(flat)
        flat = torch.where(finite, flat, flat.new_full((), 1e3))
        rest = -len(flat) % (NUMBERS - 1)
        padded = torch.nn.functional.pad(flat, (0, rest)).reshape(-1, NUMBERS - 1)
        return torch.cat([padded.sum(0), flat.abs().sum()[None]])
