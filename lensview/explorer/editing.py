"""Editing: what the page's requests for editing, comparing and taking things out do.

Owns one function per request, made into a dict that `Handlers` takes in. Like there, a function
checks and queues; it runs no forward itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from ..capture.effects import Effect, effects
from ..errors import InputError, InterventionError
from ..plan import Plan
from . import params
from .bodies import EffectReply, NamesReply
from .code import code_of
from .cost import cost
from .exports import make_figure, saved
from .jobs import READ, RUN, Answer, Job, Lane, Work, model_lock
from .limits import keep_of
from .origins import namespace
from .pages import page_of_runs
from .params import RequestError
from .protocol import Request
from .runs import MAX_PROMPT
from .trust import plain_call, require_run

if TYPE_CHECKING:
    from .handlers import Handlers

MAX_SITES = 50
MAX_MIB = 1 << 24
_BIG = 1 << 30


class Editing:
    """The requests of one explorer for editing and comparing."""

    def __init__(self, handlers: Handlers) -> None:
        self._of = handlers

    def methods(self) -> dict[str, Callable[[Request], None]]:
        """By request."""
        return {
            "undo": self._undo,
            "redo": self._redo,
            "restore": self._restore,
            "pair": self._pair,
            "rename": self._rename,
            "verify": self._verify,
            "effect": self._effect,
            "names": self._names,
            "estimate": self._estimate,
            "limits": self._limits,
            "code": self._code,
            "save": self._save,
            "figure": self._figure,
        }

    def _queue(self, request: Request, work: Work, lane: Lane = READ) -> None:
        self._of.jobs.submit(
            Job(
                work,
                id=request.id,
                view=request.view,
                key=request.key,
                lane=lane,
                held=lane == RUN,
            )
        )

    def _state(self) -> Answer:
        return Answer(asdict(self._of.state()))

    # -- the table and the timeline

    def _undo(self, request: Request) -> None:
        self._of.runs.step_back()
        self._of.submit_edit(request)

    def _redo(self, request: Request) -> None:
        self._of.runs.step_back(forward=True)
        self._of.submit_edit(request)

    def _restore(self, request: Request) -> None:
        runs = self._of.runs
        runs.restore(params.number(request.params, "number", 1, _BIG))
        self._of.show_prompt(runs.wanted.prompt)
        self._of.submit_edit(request)

    def _pair(self, request: Request) -> None:
        chosen = [_optional(request.params, n, 1, _BIG) for n in ("first", "second")]
        runs = self._of.runs

        def work(job: Job) -> Answer:
            runs.compare(*chosen)
            return self._state()

        self._queue(request, work)

    def _rename(self, request: Request) -> None:
        number = params.number(request.params, "number", 1, _BIG)
        name = params.text(request.params, "name", 1_000)
        runs = self._of.runs

        def work(job: Job) -> Answer:
            with runs.lock:
                runs.timeline.rename(number, name)
            runs.tell()
            return self._state()

        self._queue(request, work)

    # -- trust

    def _verify(self, request: Request) -> None:
        runs = self._of.runs

        def work(job: Job) -> Answer:
            with runs.lock:
                baseline, inputs = require_run(runs.latest.baseline), runs.latest.inputs
                kept = runs.timeline.runs[-1]
            job.watch.progress(0, 1, "calling the model plainly")
            with model_lock(runs.anchor, job.watch):
                job.watch.check()
                check = plain_call(runs.session, baseline, inputs, job.watch)
            with runs.lock:
                kept.verified = check
            runs.tell()
            return self._state()

        self._queue(request, work, RUN)

    def _effect(self, request: Request) -> None:
        row = params.text(request.params, "id", params.MAX_NAME)

        def work(job: Job) -> Answer:
            return Answer(asdict(self._reach(row, job)))

        self._queue(request, work, RUN)

    def _reach(self, row: str, job: Job) -> EffectReply:
        runs = self._of.runs
        runs.check()
        with runs.lock:
            entry = next((e for e in runs.wanted.entries if e.row.id == row), None)
            inputs, sites = runs.wanted.inputs, runs.wanted.sites
        if entry is None or entry.intervention is None:
            raise InterventionError("This row cannot run as it is, so it has no effect to look at.")
        if inputs is None:
            raise InputError("There is nothing to run yet: give a prompt.")
        model = runs.session.root
        if not isinstance(model, nn.Module):
            raise InputError("Over ranks an effect is not looked for yet; compare two runs.")
        with model_lock(runs.anchor, job.watch):
            (effect,) = effects(
                model,
                inputs,
                entry.intervention,
                tokenizer=runs.session.tokenizer,
                sites=sites,
                max_bytes=runs.max_bytes,
                watch=job.watch,
            )
        return EffectReply(row, said(effect), effect.first or "", effect.moved)

    # -- names and cost

    def _names(self, request: Request) -> None:
        site = params.text(request.params, "site")
        operation = params.text(request.params, "operation", params.MAX_NAME)
        runs = self._of.runs

        def work(job: Job) -> Answer:
            size = None
            trace = runs.latest.trace
            if trace is not None and site in trace.sites:
                size = (trace.shape(site) or (None,))[-1]
            return Answer(asdict(NamesReply(runs.origins.fitting(operation, size))))

        self._queue(request, work)

    def _estimate(self, request: Request) -> None:
        prompt = params.text(request.params, "prompt", 10 * MAX_PROMPT)
        sites, keep = _sites(request.params), params.text(request.params, "keep", params.MAX_NAME)
        keep_of(keep)
        runs = self._of.runs

        def work(job: Job) -> Answer:
            inputs = prompt or runs.wanted.inputs
            if inputs is None:
                raise InputError("Give a prompt: what a run holds depends on its length.")
            with model_lock(runs.anchor, job.watch):
                found = cost(
                    runs.session,
                    inputs,
                    sites,
                    keep,
                    selected=self._of.selected(),
                    limit=runs.max_bytes,
                    watch=job.watch,
                )
            return Answer(asdict(found))

        self._queue(request, work, RUN)

    def _limits(self, request: Request) -> None:
        sites, keep = _sites(request.params), params.text(request.params, "keep", params.MAX_NAME)
        keep_of(keep)
        most = _optional(request.params, "max_mib", 1, MAX_MIB)
        Plan.make(sites)  # a text that is no site is told here
        runs = self._of.runs
        with runs.lock:
            runs.wanted.sites, runs.wanted.keep = tuple(sites), keep
            runs.wanted.extra.clear()
            runs.max_bytes = None if most is None else most << 20
        if runs.wanted.inputs is None:
            self._queue(request, lambda job: self._state())
        else:
            self._of.submit_run(request)

    # -- out of the page

    def _code(self, request: Request) -> None:
        self._queue(request, lambda job: Answer({"text": code_of(self._of.runs, namespace())}))

    def _save(self, request: Request) -> None:
        path = params.text(request.params, "path")
        what = params.text(request.params, "what", params.MAX_NAME)
        over = bool(request.params.get("replace"))
        runs = self._of.runs

        def work(job: Job) -> Answer:
            shown = runs.shown()
            trace = require_run(shown.baseline if what == "baseline" else shown.trace)
            job.watch.progress(0, 1, "writing the file")
            page = partial(page_of_runs, runs, self._of.selected())
            return Answer(asdict(saved(path, what, over, trace, page)))

        self._queue(request, work, RUN)

    def _figure(self, request: Request) -> None:
        runs = self._of.runs

        def work(job: Job) -> Answer:
            shown = runs.shown()
            both = shown.baseline if runs.pair is not None else None
            trace = require_run(shown.trace)
            return Answer({"text": make_figure(trace, both, self._of.selected())})

        self._queue(request, work)


def said(effect: Effect) -> str:
    """What an intervention does by itself, in a sentence."""
    if not effect.report.calls:
        return "Alone it does nothing: no value passes there in this run."
    if effect.first is None:
        reach = f"Alone it changes none of {effect.sites} recorded sites"
    else:
        others = f"{effect.differing} of {effect.sites} sites differ"
        reach = f"Alone its first effect is at {effect.first}; {others}"
    if effect.moved is None or effect.kl is None:
        return f"{reach}. The model has no logits to compare."
    if not effect.moved:
        return f"{reach}. The logits do not move."
    return (
        f"{reach}. The logits move by up to {effect.largest:.3g}; KL(baseline || edited) is "
        f"{max(effect.kl):.3g} nats."
    )


def _sites(values: dict[str, Any]) -> list[str]:
    sites = values.get("sites")
    if not isinstance(sites, list) or not 0 < len(sites) <= MAX_SITES:
        raise RequestError(f"'sites' is not a list of 1 to {MAX_SITES} texts.")
    return [params.text({"site": s}, "site") for s in sites]


def _optional(values: dict[str, Any], name: str, low: int, high: int) -> int | None:
    return None if values.get(name) is None else params.number(values, name, low, high)
