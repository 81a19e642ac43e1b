"""Editor: the interventions of one run, applied as values pass.

Owns which intervention meets which module, what it was told about the run, and the counts that
become the run's reports. What an operation does is `interventions.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..errors import InterventionError, SiteError
from ..interventions import Intervention
from ..operations import apply
from ..regions import Frame
from ..resolve import Target, resolve
from ..sites import Site, split_path
from ..taps.hooks import UNCHANGED, Visitor
from ..taps.ops import OpsMet, OpWish
from ..traces.parts import InterventionReport
from ..traces.tokens import Tokens
from ..values import get, main_in, replace
from .opsites import Asked, why_no_op


@dataclass
class _Edit:
    """One intervention, the modules it meets, and what it did so far."""

    intervention: Intervention
    targets: list[Target]
    ops: list[Asked] = field(default_factory=list)
    calls: int = 0
    changed: list[Tensor] = field(default_factory=list)


class Editor:
    """Applies a run's interventions; one per run."""

    def __init__(
        self,
        model: nn.Module,
        modules: Mapping[str, nn.Module],
        interventions: tuple[Intervention, ...],
        tokens: Tokens | None,
    ) -> None:
        self._config = getattr(model, "config", None)
        self._tokens = tokens
        self._edits = [_Edit(i, resolve([i.site], modules)) for i in interventions]

    def visitors(self) -> Iterator[tuple[Target, Visitor]]:
        """Every target at a module's side with its visitor; at one module they come in the order
        given."""
        for edit in self._edits:
            for target in edit.targets:
                if target.site.op is None:
                    yield target, self._visitor(edit, target.site)

    def wishes(self) -> Iterator[tuple[Target, Callable[[OpsMet], OpWish]]]:
        """Every target between ops with what its module's ops are told, in the order given."""
        for edit in self._edits:
            for target in edit.targets:
                if target.site.op is not None:
                    yield target, partial(self._wish, edit, target)

    def _wish(self, edit: _Edit, target: Target, ops: OpsMet) -> OpWish:
        edit.ops.append((target, ops))
        site = target.site
        return OpWish(site.takes_op, lambda name, k: self._visitor(edit, site.at_op(name, k)))

    def _visitor(self, edit: _Edit, site: Site) -> Visitor:
        covered = self._tokens is not None and self._tokens.cover(site.path)
        mask = self._tokens.mask if self._tokens is not None and covered else None
        frame = Frame(mask, heads_at(self._config, site))

        def visit(call: int, value: Any) -> Any:
            if site.call not in (None, call):
                return UNCHANGED
            where = site.at_call(call)
            try:
                path, tensor = _tensor(where, value, edit.intervention)
                new, changed = apply(edit.intervention, tensor, where, frame)
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

    def why_idle(self, position: int) -> str:
        """Why an intervention between ops met nothing; "" where nobody knows."""
        called = [(target, ops) for target, ops in self._edits[position].ops if ops.calls]
        return f"({why_no_op(called)})" if called else ""


def heads_at(config: Any, site: Site) -> int | None:
    """How many heads the last dim holds at a site, by transformers' names for projections."""
    names = split_path(site.path) if site.op is None else []
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
