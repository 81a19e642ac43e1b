"""Verdict: what a finished run must tell about its interventions before its result is used.

Owns the warning of overflows and the error of interventions that did nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ..errors import IdleInterventionError, LensWarning
from ..interventions import Intervention
from ..traces.parts import InterventionReport
from ..traces.trace import Trace


def pronounce(trace: Trace, idle: Sequence[tuple[Intervention, str]], stacklevel: int) -> None:
    """Warn of overflows; raise where an intervention met no value.

    Args:
        idle: those that met none, each with the reason.

    Raises:
        IdleInterventionError: there are some; it carries `trace`.
    """
    warn_of_overflow(trace.reports, stacklevel + 1)
    if idle:
        lines = "\n  ".join(f"{intervention}: {reason}." for intervention, reason in idle)
        error = IdleInterventionError(
            f"{len(idle)} intervention(s) did nothing, because no value passed at their site in "
            f"this run:\n  {lines}\nThe error's .trace has the run as it went without them.",
            trace,
        )
        error.intervention = idle[0][0]
        raise error


def warn_of_overflow(reports: Sequence[InterventionReport], stacklevel: int) -> None:
    """Warn where an intervention made finite values infinite or NaN."""
    over = [r for r in reports if r.overflowed]
    if over:
        lines = "\n  ".join(f"{r.intervention}: {r.overflowed} elements" for r in over)
        warnings.warn(
            "Values that were finite became infinite or NaN by an intervention, so what follows "
            f"them in this run may mean nothing:\n  {lines}",
            LensWarning,
            stacklevel=stacklevel + 1,
        )
