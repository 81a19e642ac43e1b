"""Runs: what an explorer is asked to run, and what its latest run saw.

Owns the wanted inputs and interventions, the traces of the latest run with and without them, and
the one procedure that goes from the first to the second. It knows no widget, no thread and no
message; whoever calls `Runs.execute` chooses the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..errors import IdleInterventionError, InputError, InterventionError, LensError, RunCancelled
from ..interventions import Intervention
from ..session import Session
from ..traces.trace import Trace
from ..watch import Watch
from .cells import cells
from .comparing import TOP, Pair, Top, divergence, row_logits
from .history import History
from .jobs import model_lock
from .limits import keep_of
from .notes import notes_of, outcomes, training
from .origins import Origins
from .parts import parts_of
from .protocol import Divergence, NextToken
from .rows import Entry
from .timeline import KeptRun, Timeline, seed_of
from .trust import checks_of

MAX_BYTES = 512 << 20
"""Of records that one run of an explorer keeps by default."""
MAX_PROMPT = 50_000
"""Characters of a prompt in an explorer."""
MAX_EXTRA = 32


@dataclass(frozen=True)
class Latest:
    """What the latest run saw. `run` counts runs; 0 before the first.

    `baseline` is the run without interventions and `trace` the one with them: the same object
    where none was on.
    """

    run: int = 0
    trace: Trace | None = None
    baseline: Trace | None = None
    inputs: Any = None
    interventions: tuple[Intervention, ...] = ()
    top_baseline: tuple[NextToken, ...] = ()
    top_edited: tuple[NextToken, ...] = ()
    notes: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    model_state: tuple[int, ...] = ()
    keep: str = ""
    divergence: Divergence | None = None
    difference: str = "edited minus baseline"


@dataclass
class Wanted:
    """What the next run is to do. `extra` are sites that were looked at besides `sites`, `keep` how
    much of each value is kept (`limits.py`)."""

    sites: tuple[str, ...]
    inputs: Any = None
    entries: list[Entry] = field(default_factory=list)
    extra: dict[str, None] = field(default_factory=dict)
    keep: str = ""

    @property
    def prompt(self) -> str:
        """The inputs as a person may edit them; "" where they are not one text."""
        return self.inputs if isinstance(self.inputs, str) else ""


class Runs:
    """The runs of one explorer. Its attributes are read and set under `lock`.

    Args:
        session: runs the plans.
        sites: what every run records, globs included.
        max_bytes: of records that one trace keeps; sites beyond it are run again when looked at.
        changed: called without arguments on the running thread when a run begins and ends.
    """

    def __init__(
        self,
        session: Session,
        sites: Sequence[str],
        max_bytes: int | None,
        changed: Callable[[], None],
    ) -> None:
        self.session = session
        self.anchor: Any = session.root
        self.max_bytes = max_bytes
        self._changed = changed
        self.lock = threading.RLock()
        self.wanted = Wanted(tuple(sites))
        self.latest = Latest()
        self.busy = ""
        self.failure = ""
        self.timeline = Timeline()
        self.origins = Origins(self.timeline)
        self.history = History()
        self.pair: Pair | None = None

    def want(self, inputs: Any) -> None:
        """Run on these inputs from now on. An empty text means those given in code, if any.

        Raises:
            InputError: a text that is blank, longer than an explorer takes, or without a tokenizer.
        """
        with self.lock:
            given = self.wanted.inputs
            if inputs == "" and given is not None and not isinstance(given, str):
                return
            if isinstance(inputs, str):
                self._check_text(inputs)
            self.wanted.inputs = inputs

    def _check_text(self, text: str) -> None:
        if self.session.tokenizer is None:
            raise InputError(
                f"{self.session.title} has no tokenizer here, so it cannot run a text. Give one "
                "(tokenizer=…, or --tokenizer with %lens), or run tensors from code: "
                "explorer.run(inputs)."
            )
        if not text.strip():
            raise InputError("The prompt is empty: type a text for the model to run on.")
        if len(text) > MAX_PROMPT:
            raise InputError(
                f"The prompt has {len(text):,} characters; an explorer takes {MAX_PROMPT:,}. Use "
                "lensview.trace for longer ones."
            )

    def record_too(self, site: str) -> bool:
        """Record `site` as well from the next run on. False where the latest run was asked for
        it already: another one would not show it either."""
        with self.lock:
            if site in self.latest.sites:
                return False
            while len(self.wanted.extra) >= MAX_EXTRA and site not in self.wanted.extra:
                del self.wanted.extra[next(iter(self.wanted.extra))]
            self.wanted.extra[site] = None
            return True

    def interventions(self) -> tuple[Intervention, ...]:
        """Those that are on and can run, in order."""
        with self.lock:
            entries = self.wanted.entries
            return tuple(e.intervention for e in entries if e.runs and e.intervention is not None)

    def enabled(self) -> tuple[Intervention, ...]:
        """Those that are on, whether or not they can run."""
        with self.lock:
            entries = [e for e in self.wanted.entries if e.row.enabled]
            return tuple(e.intervention for e in entries if e.intervention is not None)

    def errors(self) -> dict[str, str]:
        """Why rows that are on did not run, by what they say."""
        with self.lock:
            entries = [e for e in self.wanted.entries if e.row.enabled and e.row.error]
            return {str(e.intervention or e.row.site): e.row.error for e in entries}

    def check(self) -> None:
        """Mark every row with what is wrong with it, without running anything."""
        with self.lock:
            before = list(self.wanted.entries)
            settled = [self.origins.settle(e) for e in before]
        readable = [e for e in settled if e.intervention is not None]
        found = self.session.check([e.intervention for e in readable if e.intervention is not None])
        errors = {e.row.id: text for e, text in zip(readable, found, strict=True)}
        self._replace(before, [e.failed(errors.get(e.row.id, e.row.error)) for e in settled])

    def set_rows(self, entries: list[Entry]) -> None:
        """Change the table, so that it can be undone."""
        with self.lock:
            self.history.change(self.wanted.entries, entries)
            self.wanted.entries = entries

    def step_back(self, *, forward: bool = False) -> bool:
        """Undo the table's last change, or redo it; False where there is none."""
        with self.lock:
            step = self.history.redo if forward else self.history.undo
            entries = step(self.wanted.entries)
            if entries is not None:
                self.wanted.entries = entries
            return entries is not None

    def restore(self, number: int) -> None:
        """Want the inputs and the rows of a run of the timeline.

        Raises:
            InputError: there is no such run.
        """
        with self.lock:
            kept = self.timeline.find(number)
            self.wanted.inputs = kept.inputs
            self.set_rows(list(kept.entries))

    def compare(self, first: int | None, second: int | None = None) -> None:
        """Put two runs of the timeline beside each other, or end that with None.

        Raises:
            InputError: there is no such run.
        """
        with self.lock:
            pair = None
            if first is not None and second is not None:
                pair = Pair.of(self.timeline.find(first), self.timeline.find(second))
            if pair is not None or self.pair is not None:
                self.pair = pair
                self.latest = replace(self.latest, run=self.latest.run + 1)
        self._changed()

    def shown(self) -> Latest:
        """What pictures and tables are of: the latest run, or the two that are compared, the first
        in the place of the run without interventions."""
        with self.lock:
            pair, latest = self.pair, self.latest
            if pair is None:
                return latest
            return replace(
                latest,
                trace=pair.second.trace,
                baseline=pair.first.trace,
                inputs=pair.second.inputs,
                top_baseline=pair.top_first,
                top_edited=pair.top_second,
                divergence=pair.divergence,
                difference=f"run {pair.second.number} minus run {pair.first.number}",
            )

    def up_to_date(self) -> bool:
        """Whether the latest run is what a run would do now, as far as can be told."""
        with self.lock:
            latest, wanted = self.latest, self.wanted
            return (
                latest.trace is not None
                and latest.inputs is wanted.inputs
                and latest.interventions == self.interventions()
            )

    def execute(self, watch: Watch, *, fresh: bool = True, again: bool = False) -> None:
        """Run what is wanted, and keep what it saw as `latest`.

        Where rows are on, the model runs without them and with them. A row that turns out not to
        fit its value is marked and left out. With `fresh` false, the run without them is taken
        from before where inputs, sites and the model are as they were. `again` runs on the inputs
        of the latest run, whatever is wanted meanwhile.

        Raises:
            RunCancelled: nothing was kept.
            LensError, Exception: nothing was kept.
        """
        self._set_busy("running")
        try:
            with model_lock(self.anchor, watch):
                self._execute(watch, fresh, again)
            self.failure = ""
        finally:
            self._set_busy("")

    def tell(self) -> None:
        """Say that rows have changed without a run."""
        self._changed()

    def _set_busy(self, what: str) -> None:
        with self.lock:
            self.busy = what
        self._changed()

    def _execute(self, watch: Watch, fresh: bool, again: bool) -> None:
        self.check()
        with self.lock:
            before, asked = self.latest, list(self.wanted.entries)
            inputs = before.inputs if again else self.wanted.inputs
            sites = (*self.wanted.sites, *self.wanted.extra)
            keep = before.keep if again else self.wanted.keep
        started = time.time()
        if inputs is None:
            raise InputError("There is nothing to run yet: give a prompt.")
        state = _fingerprint(self.anchor)
        reuse = (
            not fresh
            and before.baseline is not None
            and inputs is before.inputs
            and (before.sites, before.model_state, before.keep) == (sites, state, keep)
            and not training(self.anchor)
        )
        on = [e for e in asked if e.runs]
        parts = parts_of(watch, ["baseline"] * (not reuse) + ["edited"] * bool(on))
        if before.baseline is not None and reuse:
            baseline = before.baseline
        else:
            baseline = self._trace(inputs, sites, (), next(parts), keep)
        trace, ran = baseline, on
        if on:
            watch.check()
            trace, ran = self._edited(inputs, sites, on, next(parts), keep)
        watch.check()
        latest = Latest(
            run=before.run + 1,
            trace=trace,
            baseline=baseline,
            inputs=inputs,
            sites=sites,
            model_state=state,
            keep=keep,
        )
        self._keep(latest, ran, asked)
        self._remember(again, started)

    def _trace(
        self,
        inputs: Any,
        sites: Sequence[str],
        edits: Sequence[Intervention],
        watch: Watch,
        keep: str,
    ) -> Trace:
        options = {"keep": keep_of(keep)} if keep else {}
        return self.session.trace(
            inputs, sites, tuple(edits), watch=watch, max_bytes=self.max_bytes, **options
        )

    def _edited(
        self, inputs: Any, sites: Sequence[str], on: list[Entry], watch: Watch, keep: str
    ) -> tuple[Trace, list[Entry]]:
        """The trace with the rows that fit, and all rows with what they did or why they did not."""
        faulty: list[Entry] = []
        while True:
            edits = [e.intervention for e in on if e.intervention is not None]
            try:
                trace = self._trace(inputs, sites, edits, watch, keep)
            except IdleInterventionError as error:
                assert isinstance(error.trace, Trace)  # the notes say which one did nothing
                return error.trace, [*_told(on, error.trace), *faulty]
            except InterventionError as error:
                wrong = next((e for e in on if e.intervention is error.intervention), None)
                if wrong is None:
                    raise
                on = [e for e in on if e is not wrong]
                faulty.append(wrong.failed(str(error)))
            else:
                return trace, [*_told(on, trace), *faulty]

    def _keep(self, latest: Latest, ran: list[Entry], asked: list[Entry]) -> None:
        on = tuple(e.intervention for e in ran if e.runs and e.intervention is not None)
        assert latest.trace is not None
        notes = (
            *notes_of(latest.trace, latest.inputs, self.anchor, bool(on), self.max_bytes),
            *outcomes(latest.trace),
        )
        assert latest.baseline is not None
        before, now = _tops(latest.baseline, latest.trace if on else None)
        apart = None
        if now:
            apart = divergence(row_logits(latest.baseline), row_logits(latest.trace))
        latest = replace(
            latest,
            interventions=on,
            notes=notes,
            top_baseline=before,
            top_edited=now,
            divergence=apart,
        )
        after = {e.row.id: e for e in ran}
        with self.lock:
            self.latest = latest
            self._replace(asked, [after.get(e.row.id, e) for e in asked])

    def _remember(self, again: bool, started: float) -> None:
        """Put the latest run into the timeline: a new one, or the last one with more sites."""
        with self.lock:
            latest = self.latest
            assert latest.trace is not None
            kept = KeptRun(
                number=0,
                inputs=latest.inputs,
                entries=tuple(self.wanted.entries),
                interventions=latest.interventions,
                trace=latest.trace,
                baseline=latest.baseline,
                started=started,
                seconds=time.time() - started,
                seed=seed_of(self.anchor),
                logits=row_logits(latest.trace),
                checks=checks_of(latest.trace),
            )
            if again and self.timeline.runs:
                self.timeline.replace(kept)
            else:
                self.timeline.add(kept)
                self.pair = None

    def _replace(self, before: Iterable[Entry], after: Iterable[Entry]) -> None:
        """Put `after` in the place of `before`, except rows that were edited meanwhile."""
        new = {id(b): a for b, a in zip(before, after, strict=True)}
        with self.lock:
            self.wanted.entries = [new.get(id(e), e) for e in self.wanted.entries]

    def forget(self) -> None:
        """Let go of the traces, the inputs and the interventions."""
        with self.lock:
            self.latest = Latest(run=self.latest.run)
            self.wanted = Wanted(())
            self.pair = None
            self.timeline.forget()
            self.history.forget()


@contextmanager
def noting_failure(runs: Runs) -> Iterator[None]:
    """Keep a failure's text as a note, for a run whose asker does not wait for it."""
    try:
        yield
    except RunCancelled:
        raise
    except LensError as error:
        runs.failure = f"The run failed: {error}"
        raise
    except Exception as error:
        runs.failure = f"The run failed: {type(error).__name__}: {error}"
        raise


def _told(on: Sequence[Entry], trace: Trace) -> Iterator[Entry]:
    reports = zip(on, trace.reports, strict=True) if trace.reports else ()
    return (entry.did(report.changed) for entry, report in reports)


def _fingerprint(anchor: Any) -> tuple[int, ...]:
    """Changes when the weights may have: a cell has run, or a parameter was written to."""
    if not isinstance(anchor, nn.Module):
        return (cells().count,)
    versions = sum(p._version for p in anchor.parameters() if not p.is_inference())
    return cells().count, versions


def _tops(baseline: Trace, edited: Trace | None) -> tuple[Top, Top]:
    """The likeliest next tokens of either run, each with its probability in both."""
    traces = [t for t in (baseline, edited) if t is not None]
    if not all(t.predicts for t in traces):
        return (), ()
    likely = {t.id: t.text for trace in traces for t in trace.top(TOP)}

    def row(trace: Trace) -> Top:
        found = [NextToken(i, text, trace.probability(i)) for i, text in likely.items()]
        return tuple(sorted(found, key=lambda token: -token.probability))

    return row(baseline), () if edited is None else row(edited)
