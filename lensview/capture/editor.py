"""Editor: the interventions of one run, applied as values pass.

Owns which intervention meets which module, what it was told about the run, and the counts that
become the run's reports. What an operation does is `operations.py`'s; what a skipped module gives
is `givers.py`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InterventionError, SiteError
from ..interventions import Intervention
from ..operations import apply, elsewhere, overflowed
from ..regions import Frame
from ..resolve import Target, resolve
from ..sites import Site
from ..taps.hooks import UNCHANGED, Visitor
from ..taps.ops import OpsMet, OpWish
from ..taps.skips import Giver
from ..traces.parts import InterventionReport
from ..traces.tokens import Tokens, holds_tokens
from ..values import Path, get, main_in, replace
from .given import parts
from .givers import check_skip, elements, given_value
from .heads import heads_at, maps_at
from .opsites import Asked, why_no_op
from .pieces import applied
from .spread import Spread


@dataclass
class _Edit:
    """One intervention, the modules it meets, and what it did so far.

    `met` counts the calls of its modules, whichever call it is for.
    """

    intervention: Intervention
    targets: list[Target]
    ops: list[Asked] = field(default_factory=list)
    calls: int = 0
    met: int = 0
    changed: list[Tensor] = field(default_factory=list)
    overflowed: list[Tensor] = field(default_factory=list)

    @property
    def skips(self) -> bool:
        return self.intervention.op == "skip"


class Editor:
    """Applies a run's interventions; one per run."""

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        interventions: tuple[Intervention, ...],
        tokens: Tokens | None,
        grad: bool = False,
        spread: Spread | None = None,
    ) -> None:
        self._spread = spread
        self._config = getattr(model, "config", None)
        self._scope = tokens
        self._frame = Frame(None if tokens is None else tokens.mask)
        self._grad = grad
        self._edits = [_Edit(i, resolve([i.site], modules)) for i in interventions]
        for edit in self._edits:
            for target in edit.targets if edit.skips else ():
                with _naming(edit.intervention):
                    check_skip(edit.intervention, target.site, target.module)

    def see(self, frame: Frame) -> None:
        """What the values that pass from here on hold of the run's tokens."""
        self._frame = frame

    def restart(self) -> None:
        """Count from 0 again, for the next step of a generation."""
        for edit in self._edits:
            edit.calls, edit.met = 0, 0
            edit.changed, edit.overflowed = [], []

    def visitors(self) -> Iterator[tuple[Target, Visitor]]:
        """Every target at a module's side with its visitor; at one module they come in the order
        given."""
        for edit in self._edits:
            for target in edit.targets if not edit.skips else ():
                if target.site.op is None:
                    yield target, self._visitor(edit, target.site, target.module)

    def wishes(self) -> Iterator[tuple[Target, Callable[[OpsMet], OpWish]]]:
        """Every target between ops with what its module's ops are told, in the order given."""
        for edit in self._edits:
            for target in edit.targets:
                if target.site.op is not None:
                    yield target, partial(self._wish, edit, target)

    def _wish(self, edit: _Edit, target: Target, ops: OpsMet) -> OpWish:
        edit.ops.append((target, ops))
        site, module = target.site, target.module

        def visitor(name: str, k: int) -> Visitor:
            return self._visitor(edit, site.at_op(name, k), module)

        return OpWish(site.takes_op, visitor)

    def givers(self) -> list[tuple[nn.Module, Giver]]:
        """The modules that do not run, each with what gives its value."""
        return [
            (target.module, _giver(edit, target, self._grad, self._spread))
            for edit in self._edits
            for target in (edit.targets if edit.skips else ())
        ]

    def skipped(self) -> list[Target]:
        """The targets that do not run."""
        return [target for edit in self._edits if edit.skips for target in edit.targets]

    def _visitor(self, edit: _Edit, site: Site, module: nn.Module) -> Visitor:
        heads, maps = heads_at(self._config, site), maps_at(self._config, site)
        covered = holds_tokens(self._scope, site)

        def visit(call: int, value: Any) -> Any:
            edit.met = max(edit.met, call + 1)
            if site.call not in (None, call):
                return UNCHANGED
            where = site.at_call(call)
            frame = replaced(self._frame.covering(covered), heads=heads, maps=maps)
            with _naming(edit.intervention):
                path, tensor = _tensor(where, value, edit.intervention)
                if self._grad:
                    not_recomputed(edit.intervention, where)
                if elsewhere(edit.intervention, tensor, where, frame):
                    return UNCHANGED
                new, changed, over = self._applied(edit, module, tensor, path, where, frame)
            edit.calls += 1
            edit.changed.append(changed)
            edit.overflowed.append(over)
            return replace(value, path, new)

        return visit

    def _applied(
        self,
        edit: _Edit,
        module: nn.Module,
        tensor: Tensor,
        path: Path,
        where: Site,
        frame: Frame,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The new value, and how many elements changed and overflowed."""
        spread = self._spread
        if spread is None:
            new, changed = apply(edit.intervention, tensor, where, frame)
            return new, changed, overflowed(tensor, new)
        placement = spread.placement(where, module, where.call or 0, path, tensor)
        return applied(spread, placement, edit.intervention, tensor, where, frame)

    def settle(self) -> None:
        """Let the first rank's view of what was changed be all ranks': each counted its part.

        Raises:
            InterventionError: what went wrong in a function that one rank ran for all.
        """
        if self._spread is None:
            return
        counts = [(_total(e.changed), _total(e.overflowed)) for e in self._edits]
        for edit, (changed, over) in zip(self._edits, self._spread.settle(counts), strict=True):
            edit.changed, edit.overflowed = [torch.tensor(changed)], [torch.tensor(over)]

    def reports(self) -> tuple[InterventionReport, ...]:
        """What became of each intervention, in the order given."""
        return tuple(
            InterventionReport(e.intervention, e.calls, _total(e.changed), _total(e.overflowed))
            for e in self._edits
        )

    def idle(self) -> list[tuple[Intervention, str]]:
        """The interventions that met no value, each with the likely reason."""
        return [(e.intervention, self._why_idle(e)) for e in self._edits if not e.calls]

    def explained(self, missed: Mapping[str, str], calls: Mapping[str, int]) -> dict[str, str]:
        """`missed` with a better reason for what lies inside a skipped module.

        Args:
            missed: reasons by site.
            calls: how often each site's module was called, by its text without a call.
        """
        return {
            text: reason if calls.get(str(site.at_call(None))) else self._skipped(site) or reason
            for text, reason in missed.items()
            for site in (Site.parse(text),)
        }

    def _skipped(self, site: Site) -> str:
        for edit in self._edits:
            for target in edit.targets if edit.skips and edit.calls else ():
                above = f"{target.site.path}." if target.site.path else ""
                if site.path != target.site.path and site.path.startswith(above):
                    return f"skipped: {target.site} did not run, its value was given."
        return ""

    def _why_idle(self, edit: _Edit) -> str:
        site = edit.targets[0].site
        called = [(target, ops) for target, ops in edit.ops if ops.calls]
        if called:
            return why_no_op(called)
        if edit.met:
            return f"its module was called {edit.met} times, counted from 0"
        if len(edit.targets) > 1:
            return f"none of its {len(edit.targets)} modules was called"
        return self._skipped(site).rstrip(".") or (
            f"the {type(edit.targets[0].module).__name__} there was never called: its parent used "
            "its weights directly, called its forward, or took another path"
        )


def _giver(edit: _Edit, target: Target, grad: bool, spread: Spread | None) -> Giver:
    def give(call: int, arguments: dict[str, Any]) -> Any:
        edit.met = max(edit.met, call + 1)
        if target.site.call not in (None, call):
            return UNCHANGED
        with _naming(edit.intervention):
            if grad:
                not_recomputed(edit.intervention, target.site)
            own: set[int] = set()
            value = given_value(edit.intervention, target.site.at_call(call), arguments, own)
            count = elements(value)
            if spread is not None:
                value, piece = parts(spread, target, call, value, arguments, own)
                count = elements(value) if piece or spread.first else 0
        edit.calls += 1
        edit.changed.append(torch.tensor(count))
        return value

    return give


@contextmanager
def _naming(intervention: Intervention) -> Iterator[None]:
    """Errors of an intervention in the block say which one it was."""
    try:
        yield
    except InterventionError as error:
        error.intervention = intervention
        raise


def _total(counts: Sequence[Tensor]) -> int:
    """Their sum; each device is waited for once."""
    devices: dict[torch.device, list[Tensor]] = {}
    for count in counts:
        devices.setdefault(count.device, []).append(count)
    return sum(int(torch.stack(same).sum()) for same in devices.values())


def not_recomputed(intervention: Intervention, site: Site) -> None:
    """Refuse an edit that the caller's backward would compute again without it.

    Raises:
        InterventionError: the module runs inside a checkpointed part.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals.get("__name__") != "torch.utils.checkpoint":
            continue
        raise InterventionError(
            f"{intervention.op} at {site}: it is inside a part under gradient checkpointing, which "
            "backward computes again, without the change: gradients would be of another model. "
            "Switch checkpointing off (model.gradient_checkpointing_disable()) for this run."
        )


def _tensor(
    site: Site, value: Any, intervention: Intervention
) -> tuple[tuple[str | int, ...], Tensor]:
    try:
        path, tensor = main_in(value, site.leaf)
    except SiteError as error:
        raise InterventionError(f"{intervention.op} at {site}: {error}") from error
    if tensor is None:
        kind = type(get(value, path)).__name__
        raise InterventionError(
            f"{intervention.op} at {site}: there is no tensor here, but a {kind}."
        )
    return path, tensor
