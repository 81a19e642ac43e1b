"""Commands: what a rank does when the kernel asks.

Owns the model of this rank, the traces that it keeps for the kernel, and one function per command.
How commands come and how answers go is `rank.py`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..capture.generate import generate
from ..capture.run import run
from ..datasets.extraction import extract_dataset
from ..errors import IdleInterventionError, LensError
from ..plan import Plan
from ..session import LocalSession
from ..tensors.stats import stats
from ..tensors.tiles import difference, element, tile
from ..traces.trace import Trace
from ..watch import Watch
from .loading import Say, keep_tokenizer, load, named
from .pieces import piece_of
from .summary import generation_body, reports_body, trace_body, trusted

Body = Mapping[str, Any]


class Commands:
    """One rank's model and what was recorded on it.

    Attributes:
        rank: among those that hold one model together, once it is loaded; before, among all.
        planned: the plan of the command in hand.
        agreed: what the command in hand came to, as far as it must be the same on every rank.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.agreed: Any = None
        self.planned: Plan | None = None
        self._ranks = 1
        self._folder = folder
        self._session: LocalSession | None = None
        self._traces: dict[int, Trace] = {}
        self._numbers = itertools.count(1)

    @property
    def session(self) -> LocalSession:
        """The session over this rank's part of the model."""
        if self._session is None:
            raise LensError("No model was loaded.")
        return self._session

    # --- what every rank does ------------------------------------------------------------------

    def load(self, spec: Body, say: Say) -> Any:
        """Load the model; what the kernel is to know of it."""
        model, tokenizer = load(spec, say)
        self._session = LocalSession(model, tokenizer)
        self.agreed = self._session.title
        self._ranks = int(spec["tp"])
        number, self.rank = self.rank, self.rank % self._ranks
        if number:
            return None
        kept = tokenizer is not None and keep_tokenizer(tokenizer, self._folder / "tokenizer")
        return {
            "title": self._session.title,
            "summary": self._session.summary,
            "tokenizer": "kept" if kept else "" if tokenizer is None else type(tokenizer).__name__,
        }

    def ping(self, body: Body, watch: Watch) -> Any:
        """Nothing."""

    def trace(self, body: Body, watch: Watch) -> Any:
        """One run, kept here; everything but its tensors goes back."""
        try:
            trace = run(
                self.session.root,
                body["inputs"],
                self.plan(body),
                tokenizer=self.session.tokenizer,
                chat=body["chat"],
                check=body["check"],
                watch=watch,
            )
        except IdleInterventionError as error:
            if isinstance(error.trace, Trace):
                error.trace = self._kept(error.trace)
            raise
        self.agreed = reports_body(trace.reports)
        return self._kept(trace)

    def _kept(self, trace: Trace) -> dict[str, Any] | None:
        if self.rank:
            return None
        number = next(self._numbers)
        self._traces[number] = trace
        return {"number": number, **trace_body(trace)}

    def generate(self, body: Body, watch: Watch) -> Any:
        """A generation, its steps kept here."""
        plan = self.plan(body)
        if body["seed"] is not None:
            torch.manual_seed(body["seed"])
        generation = generate(
            self.session.root,
            body["inputs"],
            plan.sites,
            plan.interventions,
            max_new_tokens=body["max_new_tokens"],
            tokenizer=self.session.tokenizer,
            chat=body["chat"],
            keep=plan.keep or None,
            max_bytes=plan.max_bytes,
            watch=watch,
            **body["options"],
        )
        self.agreed = [generation.ids.tolist(), reports_body(generation.reports)]
        if self.rank:
            return None
        numbers = [next(self._numbers) for _ in generation]
        self._traces.update(zip(numbers, generation, strict=True))
        return generation_body(generation, numbers)

    def extract_dataset(self, body: Body, watch: Watch) -> None:
        """This group's share of a dataset, written by the group's first rank."""
        plan, items = self.plan(body), body["items"]
        extract_dataset(
            self.session.root,
            named(items)() if isinstance(items, str) else items,
            plan.sites,
            body["path"],
            plan.interventions,
            tokenizer=self.session.tokenizer,
            rank=body["worker"],
            world_size=body["workers"],
            watch=watch,
            **body["options"],
        )

    def plan(self, body: Body) -> Plan:
        """The plan in a command, ready to run."""
        self.planned = trusted(Plan.from_json(*body["plan"]))
        return self.planned

    # --- what rank 0 does, beside a run too ------------------------------------------------------

    def tree(self, body: Body) -> Any:
        """The rows of the tree."""
        return [asdict(row) for row in self.session.tree()]

    def check(self, body: Body) -> list[str]:
        """What is wrong with interventions, one text each."""
        return self.session.check(Plan.from_json(*body["plan"]).interventions)

    def tile(self, body: Body) -> Any:
        """A picture of a record, or of one rank's piece of it."""
        trace, of, rank = self._trace(body["trace"]), dict(body["of"]), body["rank"]
        if rank is None:
            return asdict(self.session.tile(trace, **of))
        return asdict(tile(self._piece(trace, of.pop("site"), rank), **of))

    def difference_tile(self, body: Body) -> Any:
        """A picture of a record less another."""
        traces = self._trace(body["trace"]), self._trace(body["baseline"])
        of, rank = dict(body["of"]), body["rank"]
        if rank is None:
            return asdict(self.session.difference_tile(*traces, **of))
        site = of.pop("site")
        return asdict(tile(difference(*(self._piece(t, site, rank) for t in traces)), **of))

    def stats(self, body: Body) -> Any:
        """Statistics of a record."""
        trace, site, rank = self._trace(body["trace"]), body["site"], body["rank"]
        if rank is None:
            return asdict(self.session.stats(trace, site))
        return asdict(stats(self._piece(trace, site, rank)))

    def sizes(self, body: Body) -> Any:
        """How large records are, or their differences."""
        before = None if body["baseline"] is None else self._trace(body["baseline"])
        sizes = self.session.sizes(self._trace(body["trace"]), body["sites"], before)
        return [None if s is None else tuple(s) for s in sizes]

    def value(self, body: Body) -> str:
        """One element of a record."""
        trace, site, rank = self._trace(body["trace"]), body["site"], body["rank"]
        if rank is None:
            return self.session.value(trace, site, body["index"])
        return element(self._piece(trace, site, rank), body["index"])

    def _piece(self, trace: Trace, site: str, rank: int) -> Tensor:
        return piece_of(trace, site, rank, self._ranks)

    def fetch(self, body: Body) -> Any:
        """Records, whole."""
        trace = self._trace(body["trace"])
        return {site: trace[site] for site in body["sites"]}

    def drop(self, body: Body) -> Any:
        """Let go of a trace that the kernel has let go of; of all (None), where it has left."""
        if body["trace"] is None:
            self._traces.clear()
        self._traces.pop(body["trace"], None)

    def tokenizer(self, body: Body) -> Any:
        """The files of the tokenizer, for a kernel that does not see this machine's."""
        folder = self._folder / "tokenizer"
        return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    def _trace(self, number: int) -> Trace:
        found = self._traces.get(number)
        if found is None:
            raise LensError("The ranks do not hold this trace any more: run it again.")
        return found


RUNS: dict[str, Callable[[Commands, Any, Any], Any]] = {
    name: getattr(Commands, name) for name in ("ping", "trace", "generate", "extract_dataset")
}
"""What every rank does in step, on its main thread."""
READS: dict[str, Callable[[Commands, Any], Any]] = {
    name: getattr(Commands, name)
    for name in "tree check tile difference_tile stats sizes value fetch drop tokenizer".split()
}
"""What one rank answers from what it holds, on a thread of its own."""
