"""Notes: what a reader of a run must know beside its numbers.

Owns the sentences. Whether a run can be believed is `trust.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..traces.trace import Trace


def training(anchor: Any) -> bool:
    """Whether any part of a model in this process is in train mode."""
    return isinstance(anchor, nn.Module) and any(m.training for m in anchor.modules())


def notes_of(
    trace: Trace, inputs: Any, anchor: Any, edited: bool, limit: int | None
) -> Iterator[str]:
    """Of the inputs, the mode and what was left out; `limit` is in bytes."""
    if not isinstance(inputs, str):
        yield "The inputs were given in code."
    rows = 1 if trace.tokens is None else trace.tokens.ids.shape[0]
    if rows > 1:
        yield f"A batch of {rows}: tokens and next tokens are those of row 0."
    if edited and training(anchor):
        yield (
            "The model is in train mode: dropout alone makes the two runs differ. "
            "Call model.eval() for a comparison."
        )
    left_out = sum(1 for reason in trace.missed.values() if reason.startswith("left out"))
    if left_out and limit is not None:
        yield (
            f"{left_out} values were left out of the trace (limit {limit >> 20} MiB); selecting "
            "one runs the model again for it."
        )


def outcomes(trace: Trace) -> Iterator[str]:
    """Of interventions that did nothing or overflowed."""
    for report in trace.reports:
        if report.calls == 0:
            yield f"{report.intervention} did nothing: the run did not pass there."
        if report.overflowed:
            yield (
                f"{report.intervention} made {report.overflowed} finite values infinite or NaN: "
                "what follows them may mean nothing."
            )
