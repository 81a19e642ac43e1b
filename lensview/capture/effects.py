"""Effects: how far each intervention reaches, found by running it alone.

Owns the comparison of a run with one intervention and a run without any, under the same random
state. It costs one forward for each and one for the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import IdleInterventionError
from ..interventions import Intervention
from ..plan import Plan
from ..traces.parts import InterventionReport
from ..traces.trace import Trace
from ..watch import Watch
from .run import run


@dataclass(frozen=True, eq=False)
class Effect:
    """What one intervention changed in a run, alone, against the run without it.

    Attributes:
        intervention: which.
        report: calls, elements changed and overflowed at its own site; 0 calls where no value
            passed there.
        first: the first site, in the order in which values passed, whose record differs, the
            intervention's own included; None where none does.
        differing: how many of the common sites differ.
        sites: how many sites both runs recorded.
        moved: whether a logit of any row's last real token differs; None without logits.
        largest: the largest absolute difference of those logits; inf where only one is finite.
        kl: Kullback-Leibler divergence of the next-token distributions in nats, from the baseline,
            one per batch row; None without logits.
    """

    intervention: Intervention
    report: InterventionReport
    first: str | None
    differing: int
    sites: int
    moved: bool | None
    largest: float | None
    kl: tuple[float, ...] | None

    def __str__(self) -> str:
        if not self.report.calls:
            return f"{self.intervention}: did nothing, no value passed there"
        reach = f"{self.differing} of {self.sites} sites differ"
        reach += f", first {self.first}" if self.first is not None else ""
        if self.moved is None or self.kl is None:
            return f"{self.intervention}: {reach}"
        logits = f"logits moved by up to {self.largest:.3g}" if self.moved else "logits the same"
        return f"{self.intervention}: {reach}; {logits}, KL {max(self.kl):.3g} nats"


def effects(
    model: nn.Module,
    inputs: Any,
    interventions: Intervention | Iterable[Intervention],
    *,
    tokenizer: Any = None,
    sites: str | Iterable[str] = "**",
    max_bytes: int | None = None,
    watch: Watch | None = None,
) -> list[Effect]:
    """What each intervention, by itself, changes in a run of `model`.

    The model runs once without any and once with each; every run starts from the same random
    state, and afterwards it is what one plain call leaves.

    Args:
        model, inputs, tokenizer: as in `lensview.trace`. Inputs that a forward changes, such as a
            cache, cannot be run several times.
        interventions: one or several; each is run alone.
        sites: where to look for differences.
        max_bytes: of records that a run holds; sites beyond it are not compared.
        watch: follows and stops the runs.

    Returns:
        One `Effect` for each intervention, in the order given.

    Raises:
        Whatever `lensview.trace` does, but for interventions that meet no value.
    """
    asked = (sites,) if isinstance(sites, str) else tuple(sites)
    edits = Plan.make(asked, interventions).interventions
    with _same_random_state(model) as again:
        plan = Plan.make(asked, max_bytes=max_bytes)
        baseline = run(model, inputs, plan, tokenizer=tokenizer, watch=watch)
        found = []
        for edit in edits:
            again()
            plan = Plan.make(asked, edit, max_bytes=max_bytes)
            found.append(_effect(edit, baseline, _edited(model, inputs, plan, tokenizer, watch)))
    return found


def _edited(
    model: nn.Module, inputs: Any, plan: Plan, tokenizer: Any, watch: Watch | None
) -> Trace:
    try:
        return run(model, inputs, plan, tokenizer=tokenizer, watch=watch)
    except IdleInterventionError as error:
        assert isinstance(error.trace, Trace)
        return error.trace


def _effect(edit: Intervention, baseline: Trace, edited: Trace) -> Effect:
    diff = baseline.diff(edited)
    moved, largest = _logits(baseline.logits, edited.logits)
    return Effect(
        intervention=edit,
        report=edited.reports[0],
        first=diff.first,
        differing=sum(1 for d in diff.values() if d.changed or d.note),
        sites=len(diff),
        moved=moved,
        largest=largest,
        kl=diff.kl,
    )


def _logits(before: Tensor | None, after: Tensor | None) -> tuple[bool | None, float | None]:
    if before is None or after is None or before.shape != after.shape:
        return None, None
    a, b = before.double().cpu(), after.double().cpu()
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return False, 0.0
    gap = (a - b).abs()[~same]
    return True, float(gap.nan_to_num(nan=float("inf")).max())


@contextmanager
def _same_random_state(model: nn.Module) -> Iterator[Any]:
    """Yields what puts the random state back to where it was; on the way out it is what the first
    run left: that between the entry and the first time."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    start, after = _state(devices), None

    def again() -> None:
        nonlocal after
        after = after or _state(devices)
        _restore(start, devices)

    try:
        yield again
    finally:
        if after is not None:
            _restore(after, devices)


def _state(devices: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]


def _restore(states: list[Tensor], devices: list[int]) -> None:
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
