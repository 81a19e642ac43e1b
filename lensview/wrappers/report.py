"""Report: everything about a model that bears on a capture, as `Findings`.

Owns `lv.findings`: what would be refused, and the notes on what is captured all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from ..modules import index
from .detect import scan, split_inputs
from .findings import Finding, Findings
from .kinds import refused
from .notes import EAGERLY, notes, notes_on_inputs
from .unwrap import no_module, unwrapped


def findings(model: Any, inputs: Any = None) -> Findings:
    """What a capture of `model` would refuse, what it would warn of, and what it looks through.

    Nothing is run and nothing is raised: what cannot be looked at is a finding too.

    Args:
        model: anything; wrappers are looked through as in `lensview.trace`.
        inputs: as for `lensview.trace`, or None to look at the model alone.

    Returns:
        `Findings`, which prints as a table; ``findings(model).refused`` is empty where a capture
        would run.
    """
    try:
        return Findings(_all(model, inputs))
    except Exception as error:
        what = f"it could not be looked through ({error!r:.200}), and unknown is not whole."
        return Findings([refused("unfinished scan", "", what)])


def _all(model: Any, inputs: Any) -> Iterator[Finding]:
    while isinstance(model, nn.Module) and (inner := unwrapped(model)) is not model:
        yield _wrapper(model)
        model = inner
    if not isinstance(model, nn.Module):
        error = no_module(model)
        yield from getattr(error, "findings", ()) or [Finding("not a module", "", str(error))]
        return
    modules = index(model)
    yield from scan(modules)
    yield from _careful(model, modules)
    if inputs is not None:
        split = split_inputs(inputs)
        yield from split
        if not split:
            yield from notes_on_inputs(model, inputs)


def _careful(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """The notes; one that cannot be made is said so, and refuses nothing."""
    try:
        yield from notes(model, modules)
    except Exception as error:
        what = f"what is not refused could not all be looked at: {error!r:.200}."
        yield Finding("unfinished notes", "", what, level="warning")


def _wrapper(model: nn.Module) -> Finding:
    if type(model).__name__ == "OptimizedModule":
        return Finding("compiled", "", EAGERLY, level="fine")
    if isinstance(model, nn.DataParallel):
        what = "looked through: one device and one thread take the whole batch."
        return Finding("DataParallel", "", what, level="fine")
    return Finding(
        "DistributedDataParallel",
        "",
        "looked through: the values are those of this rank's part of the batch;",
        "lv.merge_ranks joins the ranks' traces.",
        level="fine",
    )
