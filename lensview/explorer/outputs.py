"""Outputs: what the tree shows of the latest run, per module.

Owns the tables of output shapes, calls and sizes, in pages of the explorer's messages. Sizes are
read from the records where they live, so a page of them ends when its time is over.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import LensError
from ..modules import ModuleRow
from ..session import Session
from ..sites import Site
from ..tensors.sizes import Size
from ..traces.tokens import UNUSUAL_ROWS
from ..traces.trace import Trace
from . import params
from .jobs import Answer
from .overlays import Overlays
from .protocol import OutputsPage, Request, SizesPage
from .replies import PAGE_BYTES
from .runs import Latest, Runs

PAGE_SECONDS = 0.08
"""Of the records that one page of sizes reads: what else is looked at waits no longer."""
BATCH = 64
"""Records that a session is asked for at a time."""


@dataclass
class Output:
    """One module's output: the text of the site of its first call, and of its shape."""

    site: str
    shape: str
    calls: int = 1


_tables: dict[int, tuple[Callable[[], Trace | None], dict[str, Output]]] = {}
MAX_TABLES = 8


def outputs_of(trace: Trace | None) -> dict[str, Output]:
    """Module path to its recorded output. The tables of a few traces are kept, not the traces."""
    if trace is None:
        return {}
    held = _tables.get(id(trace))
    if held is not None and held[0]() is trace:
        return held[1]
    table = _table(trace)
    for old in list(_tables)[: -MAX_TABLES + 1]:
        _tables.pop(old, None)
    _tables[id(trace)] = weakref.ref(trace), table
    return table


def _table(trace: Trace) -> dict[str, Output]:
    found: dict[str, Output] = {}
    for text in trace.sites:
        site = Site.parse(text)
        if site.side != "output" or site.leaf or site.op is not None:
            continue
        if site.path in found:
            found[site.path].calls += 1
            continue
        shape = " x ".join(map(str, trace.shape(text))) or "scalar"
        rows = trace.rows(text)
        found[site.path] = Output(text, f"{shape}, {rows}" if rows in UNUSUAL_ROWS else shape)
    return found


def outputs_page(rows: Sequence[ModuleRow], latest: Latest, offset: int, limit: int) -> OutputsPage:
    """The shape of each row's output in the latest run, and how often it was called."""
    shapes: dict[str, int] = {}
    page = OutputsPage(run=latest.run, offset=offset, shapes=[], rows=[], calls=[])
    recorded = outputs_of(latest.trace)
    size = 0
    for row in rows[offset : offset + limit]:
        output = recorded.get(row.path)
        text = None if output is None else _shape_text(output)
        if text is not None and text not in shapes:
            size += len(text) + 4
            shapes[text] = len(shapes)
            page.shapes.append(text)
        size += 16
        if size > PAGE_BYTES and page.rows:
            break
        page.rows.append(-1 if text is None else shapes[text])
        page.calls.append(_calls(latest.trace, row.path, output))
    return page


def _shape_text(output: Output) -> str:
    return f"{output.shape}, {output.calls} calls" if output.calls > 1 else output.shape


def _calls(trace: Trace | None, path: str, output: Output | None) -> int:
    if trace is None:
        return -1
    counted = trace.calls(path or ":output")
    return counted if counted is not None else -1 if output is None else output.calls


def sizes_page(
    session: Session,
    rows: Sequence[ModuleRow],
    latest: Latest,
    overlays: Overlays,
    offset: int,
    limit: int,
    seconds: float = PAGE_SECONDS,
) -> SizesPage:
    """How large each row's output is, at most `limit` rows and as many as `seconds` are enough
    for; at least `BATCH` of them."""
    recorded = outputs_of(latest.trace)
    name, numbers = overlays.of_modules()
    page = SizesPage(latest.run, offset, [], [], [], name, [])
    end = time.perf_counter() + seconds
    last = min(offset + limit, len(rows))
    for at in range(offset, last, BATCH):
        part = rows[at : min(at + BATCH, last)]
        sizes = _sizes(session, latest.trace, None, part, recorded)
        page.rms.extend(None if s is None else s.rms for s in sizes)
        page.odd.extend(0 if s is None else s.odd for s in sizes)
        if latest.interventions:
            apart = _sizes(session, latest.trace, latest.baseline, part, recorded)
            page.changes.extend(None if s is None else s.rms for s in apart)
        if name:
            page.overlay.extend(numbers.get(row.path) for row in part)
        if time.perf_counter() > end:
            break
    return page


def _sizes(
    session: Session,
    trace: Trace | None,
    baseline: Trace | None,
    part: Sequence[ModuleRow],
    recorded: dict[str, Output],
) -> list[Size | None]:
    wanted = {row.path: recorded[row.path].site for row in part if row.path in recorded}
    if trace is None or not wanted:
        return [None] * len(part)
    found = dict(zip(wanted, session.sizes(trace, list(wanted.values()), baseline), strict=True))
    return [found.get(row.path) for row in part]


class Outlook:
    """The methods of a page that are about outputs and overlays."""

    def __init__(
        self,
        runs: Runs,
        overlays: Overlays,
        rows: Callable[[], Sequence[ModuleRow]],
        read: Callable[[Request, Callable[[Any], Answer]], None],
    ) -> None:
        self._runs, self._overlays, self._rows, self._read = runs, overlays, rows, read
        self.methods: dict[str, Callable[[Request], None]] = {
            "sizes": self._sizes,
            "strips": self._strips,
        }

    def _sizes(self, request: Request) -> None:
        offset, limit = params.page(request.params)

        def work(job: Any) -> Answer:
            page = sizes_page(
                self._runs.session, self._rows(), self._runs.shown(), self._overlays, offset, limit
            )
            job.watch.check()
            return Answer(asdict(page))

        self._read(request, work)

    def _strips(self, request: Request) -> None:
        site = params.text(request.params, "site")

        def work(job: Any) -> Answer:
            try:
                canonical = str(Site.parse(site))
            except LensError:
                canonical = site
            return Answer(asdict(self._overlays.at(canonical, self._runs.shown().trace)))

        self._read(request, work)
