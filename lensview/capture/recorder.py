"""Recorder: the values of one run, kept as they were when they passed.

Owns what is kept of each value, the count of calls, and the byte limit. It does not install hooks
(`taps/`), does not know inputs or outputs of the run, and leaves the copying to `copies.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import InterventionError, SiteError
from ..keeping import WHOLE, Cut, cut_at
from ..modules import CONTAINERS
from ..plan import Plan
from ..regions import Frame
from ..resolve import Target
from ..taps.hooks import UNCHANGED
from ..tensors.dense import held_bytes
from ..traces.gradients import Gradient, watched
from ..traces.parts import Record
from ..values import get, main_in
from .copies import Copies


@dataclass(eq=False)
class _Seen:
    """One target's values so far; `text` is its site's, without a call."""

    target: Target
    text: str
    cut: Cut
    calls: int = 0
    kept: int = 0
    without: str = ""
    left_out: dict[int, str] = field(default_factory=dict)

    def text_of(self, call: int) -> str:
        """The canonical text of one call's value, once all calls are known."""
        return self.text if self.calls <= 1 else f"{self.text}@{call}"


class Stopped(BaseException):
    """Ends a forward whose asked sites were all seen. No `Exception`: no model catches it."""


@dataclass(frozen=True, eq=False)
class _Value:
    """One value that was kept."""

    seen: _Seen
    call: int
    tensor: Tensor
    leaf: tuple[str | int, ...]
    aligned: bool
    gradient: Gradient | None


class Recorder:
    """Keeps what the targets' values were; one per run, or per step of a generation.

    Args:
        targets: what to record.
        plan: how much to keep, whether gradients are wanted, and whether to stop early.
        frame: what an index of ``keep=`` may need to know of the run.
        max_bytes: the plan's limit, or what is left of it.
    """

    def __init__(
        self, targets: list[Target], plan: Plan, frame: Frame, max_bytes: int | None
    ) -> None:
        self._seen = [
            _Seen(t, str(t.site.at_call(None)), cut_at(plan.keep, t.site)) for t in targets
        ]
        self._plan = plan
        self.frame = frame
        self.aligned = True
        self._max_bytes = max_bytes
        self._copies = Copies()
        self.held = 0
        self._awaited = set(range(len(targets)))
        self._values: list[_Value] = []

    def visitor(self, position: int) -> Any:
        """The visitor that records for the target at `position`."""
        seen = self._seen[position]

        def visit(call: int, value: Any) -> Any:
            seen.calls = max(seen.calls, call + 1)
            self._record(seen, call, value)
            if self._plan.stop and seen.target.site.call in (None, call):
                self._awaited.discard(position)
                if not self._awaited:
                    raise Stopped
            return UNCHANGED

        return visit

    def _record(self, seen: _Seen, call: int, value: Any) -> None:
        site = seen.target.site
        if site.call not in (None, call):
            return
        try:
            path, tensor = main_in(value, site.leaf)
        except SiteError as error:
            raise SiteError(f"{site}: {error}") from error
        if tensor is None:
            kind = type(get(value, path)).__name__
            seen.without = f"its {site.side} holds no tensor there, but a {kind}."
            return
        try:
            kept = self._kept(tensor, seen.cut, str(site))
        except InterventionError as error:
            if not seen.target.expanded:
                raise
            seen.left_out[call] = f"left out: keep= does not fit it. {error}"
            return
        size = held_bytes(kept)
        limited = self._max_bytes is not None and seen.target.expanded
        if limited and self.held + size > (self._max_bytes or 0):
            seen.left_out[call] = (
                f"left out: {size / 2**20:.1f} MiB more would pass the run's limit of "
                f"{(self._max_bytes or 0) / 2**20:.0f} MiB. Name the site, or raise max_bytes."
            )
            return
        copy, new = self._copies.take(tensor, kept, seen.cut)
        self.held += size if new else 0
        seen.kept += 1
        gradient = None
        if self._plan.grad:
            gradient = watched(tensor, partial(seen.cut.of, frame=self.frame, where=str(site)))
        aligned = self.aligned and seen.cut.keeps_tokens
        self._values.append(_Value(seen, call, copy, path, aligned, gradient))

    def _kept(self, tensor: Tensor, cut: Cut, where: str) -> Tensor:
        if cut is WHOLE:
            return tensor
        with torch.no_grad():
            return cut.of(tensor.detach(), self.frame, f"keep= at {where}")

    # --- after the run -----------------------------------------------------------------------

    def records(self) -> dict[str, Record]:
        """The records by canonical text, in the order in which the values passed."""
        result: dict[str, Record] = {}
        for value in self._values:
            seen, text = value.seen, value.seen.text_of(value.call)
            if text not in result:
                site = seen.target.site.at_call(value.call if seen.calls > 1 else None)
                result[text] = Record(
                    site, value.tensor, value.leaf, seen.cut.part, value.aligned, value.gradient
                )
        return result

    def calls(self) -> dict[str, int]:
        """How often each target's module was called, by the site's text without its call."""
        return {s.text: s.calls for s in self._seen}

    def asked(self) -> dict[str, tuple[str, ...]]:
        """What each text that was asked for turned out to mean."""
        result: dict[str, dict[str, None]] = {}
        for value in self._values:
            seen = value.seen
            result.setdefault(seen.target.asked, {})[seen.text_of(value.call)] = None
        return {text: tuple(sites) for text, sites in result.items()}

    def missed(self) -> dict[str, str]:
        """Values with no record, each with the likely reason; globs select only tensors."""
        result = {}
        for seen in self._seen:
            for call, reason in seen.left_out.items():
                result[seen.text_of(call)] = reason
            nothing = not seen.kept and not seen.left_out
            if nothing and not (seen.target.expanded and seen.calls):
                result[str(seen.target.site)] = _reason(seen)
        held = {value.seen.text_of(value.call) for value in self._values}
        return {site: reason for site, reason in result.items() if site not in held}


def _reason(seen: _Seen) -> str:
    site, module = seen.target.site, seen.target.module
    if seen.without:
        return seen.without
    if isinstance(module, CONTAINERS):
        return f"a {type(module).__name__} only holds modules; nothing passes through it."
    if seen.calls:
        return f"the module was called {seen.calls} times in this run, counted from 0."
    return (
        f"the {type(module).__name__} at {site.path or 'the root'} was never called in this run: "
        "its parent used its weights directly, called its forward, or took another path."
    )
