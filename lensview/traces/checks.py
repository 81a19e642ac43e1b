"""Checks: what is known of whether a run can be believed, as data.

Owns `Check`, and the one check that needs nothing but the records: whether values are finite. What
else is checked, and how, is `capture/checks.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..tensors.dense import components, real
from ..tensors.stats import Stats


@dataclass(frozen=True)
class Check:
    """One thing that a reader of a run's numbers wants to know.

    Attributes:
        name: a short name, the same in every run: "output", "modules", …
        ok: True where it was seen to be well (green), False where a reader must know of something
            (amber), None where it could not be told (amber too).
        reason: a sentence: what was seen, or why it could not be told.
    """

    name: str
    ok: bool | None
    reason: str

    @property
    def level(self) -> str:
        """ "green" or "amber"; what could not be told is not green."""
        return "green" if self.ok else "amber"

    def __str__(self) -> str:
        sign = {True: "ok", False: "! ", None: "? "}[self.ok]
        return f"{sign} {self.name}: {self.reason}"

    @classmethod
    def read(cls, body: Sequence[Any]) -> Check:
        """From ``[name, ok, reason]``, as files and messages hold it.

        Raises:
            TypeError: that is something else.
        """
        match body:
            case [str(name), (bool() | None) as ok, str(reason)]:
                return cls(name, ok, reason)
        raise TypeError(f"{body!r:.80} is no check")


FINITE = "finite"


def finite(records: Mapping[str, Tensor], statistics: Mapping[str, Stats]) -> Check:
    """Whether NaN or infinities are among the values of a run; reads every one of them."""
    seen = {site: _all_finite(tensor) for site, tensor in records.items()}
    seen |= {site: told.finite == told.count for site, told in statistics.items()}
    found = [site for site, fine in seen.items() if fine is False]
    unread = [site for site, fine in seen.items() if fine is None]
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return Check(FINITE, False, f"NaN or infinities, first at {found[0]}{more}.")
    if not seen:
        return Check(FINITE, None, "no value was kept, so none was looked at.")
    none = f"no NaN and no infinity at {len(seen) - len(unread)} sites"
    if unread:
        told = f"{none}, but {len(unread)} cannot be read, the first {unread[0]}."
        return Check(FINITE, None, told)
    return Check(FINITE, True, f"{none}.")


def _all_finite(tensor: Tensor) -> bool | None:
    """Whether all values are finite; None where they cannot be read."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None if tensor.is_quantized else True
    if tensor.layout == torch.sparse_coo:
        return _finite(tensor._values())
    if tensor.layout in _COMPRESSED:
        return _finite(tensor.values())
    try:
        return all(_finite(part) for part in components(tensor))
    except (TypeError, ValueError):
        return None


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _finite(part: Tensor) -> bool:
    """A sum is finite only where all its terms are; where it overflowed, they are looked at."""
    small = part.dtype.itemsize < 4 and not part.is_complex()
    total = (part.float() if part.dtype.itemsize == 1 else part).sum(
        dtype=torch.float32 if small else None
    )
    return bool(total.isfinite()) or bool(real(part).isfinite().all())


def worst(of_runs: Iterable[Sequence[Check]]) -> tuple[Check, ...]:
    """The checks of several runs as of one: of each name the worst, amber before not told."""
    order = {False: 0, None: 1, True: 2}
    named: dict[str, Check] = {}
    for check in (check for one in of_runs for check in one):
        held = named.setdefault(check.name, check)
        if order[check.ok] < order[held.ok]:
            named[check.name] = check
    return tuple(named.values())


def line(checks: Sequence[Check]) -> str:
    """One line: "2 amber: padding, mode; 1 not told: output; 4 green"."""
    groups = ((False, "amber"), (None, "not told"), (True, "green"))
    parts = []
    for ok, name in groups:
        some = [check.name for check in checks if check.ok is ok]
        if some:
            parts.append(f"{len(some)} {name}" + ("" if ok else f": {', '.join(some)}"))
    return "; ".join(parts)
