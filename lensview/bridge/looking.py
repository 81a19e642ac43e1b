"""Looking: what rank 0 answers from what it holds, also while a run is under way.

Owns the session's questions that need no forward: the tree, pictures and numbers of records, the
check of interventions, and the records themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..capture.viewing import Viewing
from ..errors import LensError
from ..interventions import Intervention
from ..modules import ModuleRow
from ..plan import Plan
from ..session import Window
from ..tensors.sizes import Size
from ..tensors.stats import Stats
from ..tensors.tiles import Tile
from ..traces.trace import Trace
from .pieces import piece_of
from .remote import RemoteTrace
from .summary import error_of, require_portable
from .team import Team


class Looking(Viewing):
    """The part of a session over ranks that asks rank 0 alone."""

    _team: Team

    def tree(self) -> list[ModuleRow]:
        """The rows of the module tree."""
        return [ModuleRow(**row) for row in self._read("tree", {})]

    def tile(
        self,
        trace: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        rank: int | None = None,
        **view: Any,
    ) -> Tile:
        """What a screen can show of a record, made on rank 0.

        Args:
            rank: show what this rank holds of it alone.
            view: which dims are shown and more, as in `lensview.tensors.tiles.tile`.

        Raises:
            PlacementError: with `rank`, for a record that does not lie in pieces.
        """
        of = _of(trace, site, window, max_rows, max_columns, index) | view
        return Tile(**self._read("tile", {"trace": _number(trace), "of": of, "rank": rank}))

    def difference_tile(
        self,
        trace: Trace,
        baseline: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        rank: int | None = None,
        **view: Any,
    ) -> Tile:
        """The same of `trace` minus `baseline`."""
        of = _of(trace, site, window, max_rows, max_columns, index) | view
        body = {"trace": _number(trace), "baseline": _number(baseline), "of": of, "rank": rank}
        return Tile(**self._read("difference_tile", body))

    def stats(self, trace: Trace, site: str, rank: int | None = None) -> Stats:
        """Statistics of a record, or of what one rank holds of it, made on rank 0."""
        trace.record(site)
        body = {"trace": _number(trace), "site": site, "rank": rank}
        return Stats(**self._read("stats", body))

    def sizes(
        self, trace: Trace, sites: Sequence[str], baseline: Trace | None = None
    ) -> list[Size | None]:
        """How large each record is, or its difference from the one in `baseline`."""
        before = None if baseline is None else _number(baseline)
        body = {"trace": _number(trace), "sites": list(sites), "baseline": before}
        return [None if s is None else Size(*s) for s in self._read("sizes", body)]

    def value(self, trace: Trace, site: str, index: Sequence[int], rank: int | None = None) -> str:
        """One element of a record, or of what one rank holds of it, exactly."""
        trace.record(site)
        body = {"trace": _number(trace), "site": site, "index": list(index), "rank": rank}
        return str(self._read("value", body))

    def piece(self, trace: Trace, site: str, rank: int) -> Tensor:
        """What rank `rank` of the first group holds of a record.

        Raises:
            PlacementError: it does not lie in pieces, or is only a part of one.
        """
        return piece_of(trace, site, rank, len(self._team.job.groups[0]))

    def check(self, interventions: Sequence[Intervention]) -> list[str]:
        """Per intervention, what is wrong with its site, or that it cannot travel, or ""."""
        wrong = []
        for edit in interventions:
            try:
                require_portable(edit)
                wrong.append("")
            except LensError as error:
                wrong.append(str(error))
        # The sites alone: tensors of edits need not travel to be checked.
        sites = [Intervention("zero", edit.site) for edit in interventions]
        told = self._read("check", {"plan": Plan((), tuple(sites)).to_json()})
        return [site or other for site, other in zip(told, wrong, strict=True)]

    def _read(self, kind: str, body: dict[str, Any]) -> Any:
        pending = self._team.read(kind, body)
        answer = pending.answers[0]
        if answer.kind == "failed":
            raise error_of(answer.body, None, None)
        return answer.body["result"]


def _number(trace: Trace) -> int:
    if not isinstance(trace, RemoteTrace):
        raise TypeError("This trace was not made by a session over ranks.")
    return trace.number


def _of(
    trace: Trace,
    site: str,
    window: Window | None,
    max_rows: int,
    max_columns: int,
    index: Sequence[int],
) -> dict[str, Any]:
    trace.record(site)  # raises what a local trace would
    return {
        "site": site,
        "window": window,
        "max_rows": max_rows,
        "max_columns": max_columns,
        "index": tuple(index),
    }
