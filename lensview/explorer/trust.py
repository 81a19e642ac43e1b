"""Trust: what speaks for and against believing a run.

Owns the checks that the explorer adds to a trace's own, and asking for the comparison of the shown
run with a plain call. Every check is green or amber and has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from ..errors import InputError
from ..session import Session
from ..tensors.differences import difference, identical
from ..traces.trace import Trace
from ..watch import Watch
from .protocol import Check

MAX_LISTED = 3


def checks_of(trace: Trace) -> tuple[Check, ...]:
    """What is known of a run: what its trace says, besides the comparison with a plain call, which
    is made here when a person asks for it; whether all was reached; what overflowed."""
    told = [Check(c.name, c.ok, _sentence(c.reason)) for c in trace.checks if c.name != "output"]
    return (*told, _reach(trace), *_overflow(trace))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _reach(trace: Trace) -> Check:
    never = [s for s, why in trace.missed.items() if "never called" in why]
    bypassed = [s for s in never if "bypassed" in trace.missed[s]]
    if bypassed:
        return Check("reach", False, f"{_some(bypassed)}: {trace.missed[bypassed[0]]}")
    if never:
        return Check(
            "reach",
            False,
            f"{len(never)} modules were never called: {_some(never)}. An edit there does nothing.",
        )
    return Check("reach", True, "Every module that was asked for was called.")


def _overflow(trace: Trace) -> Iterator[Check]:
    for report in trace.reports:
        if report.overflowed:
            yield Check(
                "overflow",
                False,
                f"{report.intervention} made {report.overflowed} finite values infinite or NaN.",
            )


def _some(texts: list[str]) -> str:
    more = len(texts) - MAX_LISTED
    return ", ".join(texts[:MAX_LISTED]) + (f" and {more} more" if more > 0 else "")


def plain_call(session: Session, baseline: Trace, inputs: object, watch: Watch) -> Check:
    """Whether a plain call of the model gives what `baseline` recorded, bit for bit.

    The model runs again and is called without hooks of ours (`lensview.trace`, ``check=True``);
    then that run's logits are compared with those recorded. The random state is put back.

    Raises:
        InputError, Exception: what a run raises.
    """
    name = "plain call"
    with _same_draws(session.root):
        again = session.trace(inputs, (), check=True, watch=watch)
    told = next(check for check in again.checks if check.name == "output")
    if not told.ok:
        return Check(name, told.ok, _sentence(told.reason))
    now, then = again.logits, baseline.logits
    if now is None or then is None or now.shape != then.shape:
        return Check(name, None, "There are no logits of the shown run to compare.")
    if identical(now, then):
        return Check(
            name, True, f"All {now.numel():,} logits equal those of a plain call, bit for bit."
        )
    gap = difference(now, then).abs()
    why = " It is in train mode." if again.meta.get("training") else ""
    return Check(
        name,
        False,
        f"{int((gap != 0).sum()):,} of {now.numel():,} logits differ from a plain call, by up to "
        f"{float(gap.nan_to_num(nan=float('inf')).max()):.3g}.{why}",
    )


@contextmanager
def _same_draws(root: object) -> Iterator[None]:
    parameters = root.parameters() if isinstance(root, nn.Module) else ()
    cuda = sorted({p.device.index for p in parameters if p.device.type == "cuda"})
    with torch.random.fork_rng(cuda):
        yield


def require_run(trace: Trace | None) -> Trace:
    """The trace of a run that a request is about.

    Raises:
        InputError: nothing has run, or its values were let go.
    """
    if trace is None:
        raise InputError("Nothing has run yet: give a prompt and run it.")
    return trace
