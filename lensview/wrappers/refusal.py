"""Refusal: the end of a run that would show fragments, before any forward.

Owns the error and its text: every kind that was found with its places, what could still be
captured, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..errors import CaptureUnsupportedError, LensError
from ..modules import index
from ..resolve import resolve
from ..sites import split_path
from .detect import scan, split_inputs
from .findings import Finding, by_kind, said
from .kinds import LOCAL, SAID


class DistributedCaptureUnsupportedError(CaptureUnsupportedError):
    """The model is split over ranks in a way that nobody here can put together again.

    Attributes:
        findings: every reason, one `Finding` each.
    """


def refuse(
    modules: Mapping[str, nn.Module], sites: Sequence[str] = (), *, to_run: bool = True
) -> None:
    """Raise where `scan` finds anything.

    Args:
        modules: as `modules.index` gives them.
        sites: what was asked for; the text names those that a module of their own could give.
        to_run: False where only the tree is to be seen, for which weights need no values.

    Raises:
        CaptureUnsupportedError: for states of this process alone (ScriptModule, …).
        DistributedCaptureUnsupportedError: for anything split over ranks, and for a scan that
            could not be completed.
    """
    found = tuple(f for f in scan(modules) if to_run or f.kind != "meta parameters")
    if found:
        raise _error(found, modules, sites)


def refuse_inputs(inputs: Any, modules: Mapping[str, nn.Module], sites: Sequence[str] = ()) -> None:
    """Raise where an input is split over ranks; before anything reads it, since that would wait
    for the other ranks.

    Raises:
        DistributedCaptureUnsupportedError: with the findings of the model too.
    """
    found = split_inputs(inputs)
    if found:
        raise _error((*scan(modules), *found), modules, ())


def _error(
    found: tuple[Finding, ...], modules: Mapping[str, nn.Module], sites: Sequence[str]
) -> CaptureUnsupportedError:
    order = list(SAID)
    found = tuple(sorted(found, key=lambda f: order.index(f.kind)))
    lines = ["This model cannot be captured; nothing was run."]
    lines += [f"  {said(group)}" for group in by_kind(found)]
    if able := capturable(found, modules, sites):
        more = f" and {len(able) - 6} more" if len(able) > 6 else ""
        lines.append(
            "  Asked for and not affected: what passes in "
            f"{', '.join(repr(p) for p in able[:6])}{more} can be captured by passing that module "
            "as the model, with inputs of its own."
        )
    if len(found) > 1:
        lines.append(f"  All {len(found)} findings are in the error's .findings.")
    local = all(f.kind in LOCAL for f in found)
    error = (CaptureUnsupportedError if local else DistributedCaptureUnsupportedError)(
        "\n".join(lines)
    )
    error.findings = found
    return error


def capturable(
    found: Iterable[Finding], modules: Mapping[str, nn.Module], sites: Sequence[str]
) -> list[str]:
    """The modules among `sites` that nothing found touches: neither they and what is in them, nor
    what they are in. Such a module, passed as the model itself, can be captured. Of what a glob
    means, the outermost ones stand for those in them."""
    touched = [_names(f.where, modules) for f in found]
    if not all(touched):
        return []  # something about the root: nothing is out of its reach
    try:
        targets = resolve(sites, modules)
    except LensError:  # a misspelt site is told after the refusal
        return []
    able: dict[str, list[str]] = {}
    for target in targets:
        names = split_path(target.site.path)
        covered = target.expanded and any(names[: len(one)] == one for one in able.values())
        if names and not covered and not any(_meet(names, one) for one in touched):
            able[target.site.path] = names
    return [path for path in able if not scan(index(modules[path]))]


def _names(where: str, modules: Mapping[str, nn.Module]) -> list[str]:
    """The names of the module that a finding is about, of a parameter or attribute its owner's."""
    parts = where
    while parts and parts not in modules:
        parts = parts.rpartition(".")[0]
    return split_path(parts) if parts else []


def _meet(one: list[str], other: list[str]) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]
