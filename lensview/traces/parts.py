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
from .plain import Plain
from .tokens import Tokens


@dataclass(frozen=True, eq=False)
class Record:
    """One value at one site.

    Attributes:
        site: canonical; its call is None where the module was called once.
        tensor: the value at the moment it passed, a protected copy.
        leaf: where in the whole value this tensor stood; () where it was the value itself.
    """

    site: Site
    tensor: Tensor
    leaf: tuple[str | int, ...] = ()


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
