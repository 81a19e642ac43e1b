"""Timeline: the runs of one explorer, in the order in which they were made.

Owns what is kept of each: its inputs, rows and next-token logits always, its values up to a limit
in bytes, the oldest let go first. It runs nothing and compares nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, NotRecordedError
from ..interventions import Intervention
from ..tensors.dense import held_bytes
from ..traces.trace import Trace
from .protocol import Check, RunRow
from .rows import Entry

HELD_BYTES = 1 << 30
"""Of values that the timeline holds, besides the latest run's."""
MAX_RUNS = 50
MAX_NAME = 80
MAX_SHOWN = 120
"""Characters of a prompt or an intervention in the list."""


@dataclass(eq=False)
class KeptRun:
    """One run. `baseline` and `trace` are None once its values were let go; they are one object
    where no intervention was on.

    Attributes:
        number: what people call it, from 1.
        entries: the table as it was.
        interventions: those that ran.
        started, seconds: when, in seconds of the epoch, and how long.
        seed: what torch was seeded with last; None over ranks.
        logits: (V,) of batch row 0's last real token, with the interventions; None without.
        checks: what can be said for and against it.
        verified: what a comparison with a plain call has found, if there was one.
    """

    number: int
    inputs: Any
    entries: tuple[Entry, ...]
    interventions: tuple[Intervention, ...]
    trace: Trace | None
    baseline: Trace | None
    started: float
    seconds: float
    seed: int | None
    name: str = ""
    logits: Tensor | None = None
    checks: tuple[Check, ...] = ()
    verified: Check | None = None
    sizes: dict[Any, int] = field(default_factory=dict)

    @property
    def all_checks(self) -> tuple[Check, ...]:
        """`checks`, and whether a plain call gives the same."""
        return (self.verified or NOT_VERIFIED, *self.checks)

    def row(self) -> RunRow:
        """The run as the page lists it."""
        prompt = self.inputs if isinstance(self.inputs, str) else "(inputs given in code)"
        started = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self.started))
        return RunRow(
            number=self.number,
            name=self.name,
            prompt=_short(prompt),
            interventions=[_short(str(i)) for i in self.interventions[:20]],
            time=started,
            seconds=round(self.seconds, 3),
            seed=self.seed,
            held=self.trace is not None,
            amber=sum(not c.ok for c in (*self.checks, *filter(None, [self.verified]))),
        )


NOT_VERIFIED = Check(
    "plain call", False, "Not compared with a plain call of the model yet: the button does it."
)


class Timeline:
    """The runs that were made, oldest first. Used under the lock of `Runs`."""

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self.limit = limit
        self.runs: list[KeptRun] = []
        self.held_bytes = 0
        """Of the values held, each counted once."""
        self._count = 0

    def __iter__(self) -> Iterator[KeptRun]:
        return iter(self.runs)

    def add(self, run: KeptRun) -> None:
        """Take a new run in, with the next number; others may lose their values for it."""
        self._count += 1
        run.number = self._count
        self.runs.append(run)
        del self.runs[:-MAX_RUNS]
        self._measured(run)

    def replace(self, run: KeptRun) -> None:
        """Take the same run again, with more sites: it keeps its number, name and time."""
        old = self.runs[-1]
        run.number, run.name, run.started = old.number, old.name, old.started
        run.verified = old.verified
        self.runs[-1] = run
        self._measured(run)

    def _measured(self, run: KeptRun) -> None:
        run.sizes = {**_sizes(run.trace), **_sizes(run.baseline)}
        self.trim()

    def trim(self) -> None:
        """Let go of the oldest values until the rest fits; the latest run keeps its own."""
        holders = Counter(key for run in self.runs for key in run.sizes)
        self.held_bytes = sum({k: v for run in self.runs for k, v in run.sizes.items()}.values())
        for run in self.runs[:-1]:
            if self.held_bytes <= self.limit:
                return
            for key, size in run.sizes.items():
                holders[key] -= 1
                self.held_bytes -= 0 if holders[key] else size
            run.trace = run.baseline = None
            run.sizes = {}

    def find(self, number: int) -> KeptRun:
        """The run of that number.

        Raises:
            InputError: there is none.
        """
        found = next((r for r in self.runs if r.number == number), None)
        if found is None:
            known = ", ".join(str(r.number) for r in self.runs[-10:]) or "none yet"
            raise InputError(f"There is no run {number} in the timeline; it has {known}.")
        return found

    def held(self, number: int, baseline: bool = False) -> Trace:
        """The trace of a run, or the one without its interventions.

        Raises:
            InputError: there is no such run.
            NotRecordedError: its values were let go.
        """
        run = self.find(number)
        trace = run.baseline if baseline else run.trace
        if trace is None:
            raise NotRecordedError(
                f"The values of run {number} were let go: the timeline holds "
                f"{self.limit >> 20} MiB. Restore it, which runs it again as a new run."
            )
        return trace

    def rename(self, number: int, name: str) -> None:
        """Give a run a name; "" takes it back."""
        self.find(number).name = " ".join(name.split())[:MAX_NAME]

    def forget(self) -> None:
        """Let go of every run."""
        self.runs.clear()
        self.held_bytes = 0


def seed_of(anchor: Any) -> int | None:
    """What torch was seeded with last in this process, where the model runs in it."""
    return torch.initial_seed() if isinstance(anchor, nn.Module) else None


def _sizes(trace: Trace | None) -> dict[Any, int]:
    """Bytes of a trace's values by what tells one from another: a value at several sites is one."""
    if trace is None:
        return {}
    found: dict[Any, int] = {}
    for text in trace.sites:
        record = trace.record(text)
        size = getattr(record, "size", None)  # a record over ranks, which is not fetched for this
        if size is not None:
            found[id(record)] = int(size)
        else:
            found[id(record.tensor)] = held_bytes(record.tensor)
    return found


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
