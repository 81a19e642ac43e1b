"""Summary: what the kernel is told of a trace or an error of the ranks.

Owns both ways of it: all of a trace but its tensors, whose shapes are told instead; an error by its
class's name and text. What tensors are asked for later is `remote.py`'s.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from .. import errors
from ..capture.generation import Ending, Generation, Steps
from ..errors import IdleInterventionError, InterventionError, LensError
from ..interventions import Intervention
from ..plan import Plan
from ..tensors.dense import full_shape, held_bytes
from ..tensors.stats import stats_of
from ..traces.checks import Check
from ..traces.parts import InterventionReport, Parts, Record
from ..traces.plain import from_json, to_json
from ..traces.tokens import Tokens, speller
from ..traces.trace import Trace
from ..wrappers.refusal import DistributedCaptureUnsupportedError

Fetch = Callable[[str], Tensor]


def trace_body(trace: Trace) -> dict[str, Any]:
    """All of a trace but its records' tensors."""
    parts = trace._parts
    tokens = parts.tokens
    return {
        "records": [_record_body(text, r) for text, r in parts.records.items()],
        "missed": dict(parts.missed),
        "plain": {site: to_json(value) for site, value in parts.plain.items()},
        "aliases": dict(parts.aliases),
        "calls": dict(parts.calls),
        "asked": dict(parts.asked),
        "reports": reports_body(parts.reports),
        "tokens": None
        if tokens is None
        else (tokens.ids, tokens.mask, tokens.labels, tokens.scope),
        "logits": parts.logits,
        "statistics": {site: asdict(found) for site, found in trace.statistics.items()},
        "checks": [[c.name, c.ok, c.reason] for c in trace.checks],
        "meta": dict(parts.meta) | dict(trace.meta),
    }


def _record_body(text: str, record: Record) -> tuple[Any, ...]:
    shape = full_shape(record.tensor)
    told = (list(shape), record.tensor.dtype, held_bytes(record.tensor))
    return (text, *told, list(record.leaf), record.part, record.aligned, record.placement)


def reports_body(reports: Sequence[InterventionReport]) -> list[list[int]]:
    """What interventions did, in numbers."""
    return [[r.calls, r.changed, r.overflowed] for r in reports]


def reports_of(plan: Plan, body: Sequence[Sequence[int]]) -> tuple[InterventionReport, ...]:
    """The inverse of `reports_body`, of the interventions that were asked for."""
    if not body:
        return ()
    return tuple(
        InterventionReport(edit, *counts)
        for edit, counts in zip(plan.interventions, body, strict=True)
    )


def parts_of(
    body: Mapping[str, Any], plan: Plan, records: Mapping[str, Record], tokenizer: Any
) -> Parts:
    """The inverse of `trace_body`, with records that were made for it."""
    return Parts(
        plan=plan,
        records=records,
        missed=body["missed"],
        plain={site: from_json(v) for site, v in body["plain"].items()},
        aliases=body["aliases"],
        calls=body["calls"],
        asked=body["asked"],
        reports=reports_of(plan, body["reports"]),
        tokens=None if body["tokens"] is None else Tokens(*body["tokens"]),
        logits=body["logits"],
        meta=body["meta"],
        spell=speller(tokenizer),
        checks=tuple(map(Check.read, body["checks"])),
        statistics={site: stats_of(told) for site, told in body["statistics"].items()},
    )


def generation_body(generation: Generation, numbers: Sequence[int]) -> dict[str, Any]:
    """A generation, its steps' traces kept under `numbers`."""
    return {
        "steps": [{"number": n, **trace_body(t)} for n, t in zip(numbers, generation, strict=True)],
        "ids": generation.ids,
        "prompt": generation._parts.prompt,
        "ended": [tuple(e) for e in generation.ended],
        "reports": reports_body(generation.reports),
        "rows": generation.rows,
    }


def generation_of(
    body: Mapping[str, Any], plan: Plan, traces: Sequence[Trace], tokenizer: Any
) -> Generation:
    """The inverse of `generation_body`."""
    return Generation(
        Steps(
            traces=tuple(traces),
            ids=body["ids"],
            prompt=body["prompt"],
            ended=tuple(Ending(*e) for e in body["ended"]),
            reports=reports_of(plan, body["reports"]),
            rows=body["rows"],
            tokenizer=tokenizer,
            output=None,
        )
    )


# --- plans ------------------------------------------------------------------------------------


def plan_body(plan: Plan) -> tuple[Any, dict[str, Tensor]]:
    """A plan that can travel.

    Raises:
        InterventionError: a function in it has neither an import path nor a source.
    """
    for edit in plan.interventions:
        require_portable(edit)
    return plan.to_json()


def require_portable(edit: Intervention) -> None:
    """Raise `InterventionError` for an intervention that other processes cannot have."""
    if not edit.portable:
        error = InterventionError(
            f"{edit}: its function cannot be sent to the ranks, which are other processes. Give it "
            "as source text, lv.call(site, source='def edit(x): …'), or put it into a module that "
            "they can import, lv.call(site, 'module:function')."
        )
        error.intervention = edit
        raise error


def trusted(plan: Plan) -> Plan:
    """A plan from the kernel, whose functions may run here: it has shown the key."""
    return replace(plan, interventions=tuple(edit.trusted() for edit in plan.interventions))


# --- errors -----------------------------------------------------------------------------------


def error_body(error: BaseException, plan: Plan | None) -> dict[str, Any]:
    """An error as data; `plan` tells which intervention it is about."""
    edits: Sequence[Any] = () if plan is None else plan.interventions
    about = getattr(error, "intervention", None)
    positions = [i for i, edit in enumerate(edits) if edit is about]
    return {
        "class": type(error).__name__,
        "text": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "intervention": positions[0] if positions else None,
    }


def error_of(body: Mapping[str, Any], plan: Plan | None, trace: Trace | None) -> Exception:
    """The error that ranks raised alike, of its own class where that is known here."""
    name, text = str(body["class"]), str(body["text"])
    kind = (
        DistributedCaptureUnsupportedError
        if name == "DistributedCaptureUnsupportedError"
        else (getattr(errors, name, None) or getattr(builtins, name, None))
    )
    error: Exception
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not Exception:
        try:
            error = kind(text)
        except TypeError:  # UnicodeDecodeError and its like take more
            error = LensError(f"{name}: {text}")
    else:
        error = LensError(f"{name}: {text}")
    if isinstance(error, InterventionError) and plan is not None:
        position = body["intervention"]
        error.intervention = None if position is None else plan.interventions[position]
    if isinstance(error, IdleInterventionError):
        error.trace = trace
    if not isinstance(error, LensError) or type(error) is LensError:
        error.add_note(f"On rank 0:\n{body['traceback']}")
    return error
