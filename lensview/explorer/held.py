"""Held: a trace alone, seen as the pages of an explorer see a session's.

Owns the few methods of `Session` that draw, and the `State` of a trace that nobody runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from torch import Tensor

from ..interventions import Intervention
from ..tensors.notation import render
from ..tensors.stats import Stats, stats
from ..tensors.tiles import Tile, difference, tile
from ..traces.parts import InterventionReport
from ..traces.trace import Trace
from .comparing import TOP
from .protocol import InterventionRow, NextToken, State
from .rows import entry_of
from .runs import Latest


class Held:
    """A finished trace in the place of a session."""

    tokenizer = None
    root = None

    def __init__(self, trace: Trace) -> None:
        self.latest = Latest(run=1, trace=trace, baseline=trace)
        self._trace = trace
        meta = trace.meta
        self.title = str(meta.get("model") or "A model")
        versions = meta.get("versions")
        told = versions.items() if isinstance(versions, dict) else ()
        # Of a folder its name only: where it lies is not for whoever the page is sent to.
        name = PurePath(str(meta.get("name") or "")).name
        parts = [name, meta.get("dtype"), *(f"{name} {v}" for name, v in told)]
        parts.append("train mode" if meta.get("training") else "")
        self.summary = " · ".join(str(part) for part in parts if part)

    def tile(self, trace: Trace, site: str, **options: Any) -> Tile:
        """What a screen can show of a record."""
        return tile(trace[site], **options)

    def difference_tile(self, trace: Trace, baseline: Trace, site: str, **options: Any) -> Tile:
        """The same of a difference."""
        gap: Tensor = difference(trace[site], baseline[site])
        return tile(gap, **options)

    def stats(self, trace: Trace, site: str) -> Stats:
        """Statistics of a record."""
        return stats(trace[site])

    def state(self) -> State:
        """All that is shown of the trace besides its records."""
        trace = self._trace
        predicted = trace.top(TOP) if trace.predicts else []
        missed = f"Asked for and not recorded: {', '.join([*trace.missed][:5])}"
        missed += f" and {len(trace.missed) - 5} more" if len(trace.missed) > 5 else ""
        return State(
            run=1,
            overlays=0,
            prompt="",
            selected="",
            busy="",
            tokens=[] if trace.tokens is None else trace.tokens.labels[0],
            baseline=[
                NextToken(t.id, render(t.text) or f"#{t.id}", t.probability) for t in predicted
            ],
            edited=[],
            interventions=_rows(trace.interventions, trace.reports),
            notes=[missed] if trace.missed else [],
        )


def _rows(
    edits: Sequence[Intervention], reports: Sequence[InterventionReport]
) -> list[InterventionRow]:
    rows = [entry_of(edit).row for edit in edits]
    return [replace(r, changed=told.changed) for r, told in zip(rows, reports, strict=True)]
