"""Editor: the interventions of one run, applied as values pass.

Owns which intervention meets which module, what it was told about the run, and the counts that
become the run's reports. What an operation does is `interventions.py`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from typing import Any

from torch import Tensor, nn

from ..errors import InterventionError, SiteError
from ..interventions import Intervention
from ..operations import apply, elsewhere
from ..regions import Frame
from ..resolve import Target, resolve
from ..sites import Site, split_path
from ..taps.hooks import UNCHANGED, Visitor
from ..traces.parts import InterventionReport
from ..values import get, main_in, replace


@dataclass
class _Edit:
    """One intervention, the modules it meets, and what it did so far."""

    intervention: Intervention
    targets: list[Target]
    calls: int = 0
    changed: list[Tensor] = field(default_factory=list)


class Editor:
    """Applies a run's interventions; one per run."""

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        interventions: tuple[Intervention, ...],
        mask: Tensor | None,
        grad: bool = False,
    ) -> None:
        self._config = getattr(model, "config", None)
        self._frame = Frame(mask)
        self._grad = grad
        self._edits = [_Edit(i, resolve([i.site], modules)) for i in interventions]

    def see(self, frame: Frame) -> None:
        """What the values that pass from here on hold of the run's tokens."""
        self._frame = frame

    def restart(self) -> None:
        """Count from 0 again, for the next step of a generation."""
        for edit in self._edits:
            edit.calls, edit.changed = 0, []

    def visitors(self) -> Iterator[tuple[Target, Visitor]]:
        """Every target with its visitor; at one module they come in the order given."""
        for edit in self._edits:
            for target in edit.targets:
                yield target, self._visitor(edit, target)

    def _visitor(self, edit: _Edit, target: Target) -> Visitor:
        heads = heads_at(self._config, target.site)

        def visit(call: int, value: Any) -> Any:
            if target.site.call not in (None, call):
                return UNCHANGED
            site = target.site.at_call(call)
            frame = replaced(self._frame, heads=heads)
            try:
                path, tensor = _tensor(site, value, edit.intervention)
                if self._grad:
                    not_recomputed(edit.intervention, site)
                if elsewhere(edit.intervention, tensor, site, frame):
                    return UNCHANGED
                new, changed = apply(edit.intervention, tensor, site, frame)
            except InterventionError as error:
                error.intervention = edit.intervention
                raise
            edit.calls += 1
            edit.changed.append(changed)
            return replace(value, path, new)

        return visit

    def reports(self) -> tuple[InterventionReport, ...]:
        """What became of each intervention, in the order given."""
        return tuple(
            InterventionReport(e.intervention, e.calls, sum(int(c) for c in e.changed))
            for e in self._edits
        )


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


def heads_at(config: Any, site: Site) -> int | None:
    """How many heads the last dim holds at a site, by transformers' names for projections."""
    names = split_path(site.path)
    text = getattr(config, "get_text_config", lambda: config)() if config is not None else None
    if not names or text is None:
        return None
    queries = getattr(text, "num_attention_heads", None)
    last = names[-1]
    if (last == "q_proj" and site.side == "output") or (last == "o_proj" and site.side == "input"):
        return queries
    if last in ("k_proj", "v_proj") and site.side == "output":
        return getattr(text, "num_key_value_heads", None) or queries
    return None


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
