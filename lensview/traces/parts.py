"""Parts: what a run hands over, and what a file of a trace holds.

Owns the plain data of a trace, without its behaviour (`trace.py`) or its file (`storage.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..interventions import Intervention
from ..plan import Plan
from ..sites import Site
from ..tensors.stats import Stats
from .checks import Check
from .gradients import Gradient
from .plain import Plain
from .tokens import Tokens


@dataclass(frozen=True, eq=False)
class Record:
    """One value at one site.

    Attributes:
        site: canonical; its call is None where the module was called once.
        tensor: the value at the moment it passed, a protected copy.
        leaf: where in the whole value this tensor stood; () where it was the value itself.
        part: the index of what was kept of the value (``keep=``), as text; "" is all of it.
        aligned: whether dims 0 and 1 can be the run's batch and tokens: not where ``keep=`` cut
            them, and not for values of other tokens than the run's.
        gradient: filled by the caller's backward in a run with ``grad=True``; else None.
        placement: how the value lay over the ranks of a sharded model, in words: "shard of dim 2
            (48) over 2 ranks, colwise"; the tensor is the whole, unless this says "rank-local" and
            why. "" where the model was in one process.
    """

    site: Site
    tensor: Tensor
    leaf: tuple[str | int, ...] = ()
    part: str = ""
    aligned: bool = True
    gradient: Gradient | None = None
    placement: str = ""


@dataclass(frozen=True, eq=False)
class InterventionReport:
    """What became of one intervention.

    Attributes:
        intervention: as it was given.
        calls: how many values it was applied to; 0 means that it did nothing.
        changed: how many elements came out different from what went in; for a skip, all that were
            given, as nobody knows what the module would have made.
        overflowed: how many were finite before and are not after.
    """

    intervention: Intervention
    calls: int
    changed: int
    overflowed: int = 0


@dataclass(frozen=True, eq=False)
class Parts:
    """All that a trace is made of; `Trace` says what each is."""

    plan: Plan
    records: Mapping[str, Record]
    missed: Mapping[str, str] = field(default_factory=dict)
    plain: Mapping[str, Plain] = field(default_factory=dict)
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reports: tuple[InterventionReport, ...] = ()
    tokens: Tokens | None = None
    logits: Tensor | None = None
    output: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    spell: Callable[[int], str] | None = None
    checks: tuple[Check, ...] = ()
    statistics: Mapping[str, Stats] = field(default_factory=dict)
