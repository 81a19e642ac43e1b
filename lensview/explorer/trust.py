"""Trust: what speaks for and against believing a run.

Owns the checks that the explorer can make of a trace, and the comparison with a plain call of the
model. Every check is green or amber and has a reason.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..capture.inputs import prepare
from ..errors import InputError
from ..session import Session
from ..traces.trace import Trace
from ..wrappers.unwrap import eagerly
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


def plain_call(session: Session, baseline: Trace, inputs: object) -> Check:
    """Whether a plain call of the model gives the logits that `baseline` recorded, bit for bit.

    The model is called once, without hooks of ours, in no_grad; the random state is put back.

    Raises:
        InputError, Exception: what the call raises.
    """
    name, model = "plain call", session.root
    if not isinstance(model, nn.Module):
        return Check(name, False, "The model lies over ranks, where no plain call was compared.")
    if baseline.logits is None or baseline.tokens is None:
        return Check(name, False, "The model's output has no logits over tokens to compare.")
    call = prepare(model, inputs, session.tokenizer)
    cuda = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(cuda), torch.no_grad(), eagerly(model):
        output = model(*call.args, **call.kwargs)
    found = _last(output, baseline)
    if found is None:
        return Check(name, False, "The plain call's output has no logits of the same shape.")
    recorded = baseline.logits.to(found.device)
    same = (found == recorded) | (found.isnan() & recorded.isnan())
    if bool(same.all()):
        return Check(
            name, True, f"All {found.numel():,} logits equal those of a plain call, bit for bit."
        )
    gap = (found.double() - recorded.double()).abs().nan_to_num(nan=float("inf")).max()
    why = " It is in train mode." if model.training else ""
    return Check(
        name,
        False,
        f"{int((~same).sum()):,} of {found.numel():,} logits differ from a plain call, by up to "
        f"{float(gap):.3g}.{why}",
    )


def _last(output: object, baseline: Trace) -> Tensor | None:
    """The logits at each row's last real token, picked by hand."""
    logits = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or baseline.tokens is None or baseline.logits is None:
        return None
    rows = [logits[i, baseline.tokens.positions(i)[-1]] for i in range(len(logits))]
    found = torch.stack(rows)
    return found if found.shape == baseline.logits.shape else None


def require_run(trace: Trace | None) -> Trace:
    """The trace of a run that a request is about.

    Raises:
        InputError: nothing has run, or its values were let go.
    """
    if trace is None:
        raise InputError("Nothing has run yet: give a prompt and run it.")
    return trace
