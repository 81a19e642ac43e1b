"""Views: the requests for a site's views besides its heatmap.

Owns what each of them looks at, and that what a view needs and no run has recorded is recorded by
another run, once, with progress and cancel. How answers look is `viewreplies.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..capture.lens import lens_sites
from ..errors import InputError, LensError, SiteError
from ..sites import Site
from ..traces.attention import attention_sites
from ..traces.trace import Trace
from . import params
from .jobs import READ, RUN, Answer, Job, Later, Work
from .protocol import Request
from .replies import missing
from .runs import Latest, Runs
from .viewable import ELSEWHERE, attention_path, source_path, views_of
from .viewreplies import (
    LENS_K,
    MAX_BINS,
    attention_reply,
    distribution_reply,
    lens_reply,
    lens_width,
    norms_reply,
    source_reply,
)

MAX_INDEX = 1 << 40
Read = Callable[[Request, Work], None]
Looking = Callable[[str, str, Callable[[], Answer]], Work]


class Views:
    """The handlers of the views of one explorer.

    Args:
        read: enqueues work that answers a request.
        looking: work that looks at one recorded site, which is recorded first where it was not.
    """

    def __init__(self, runs: Runs, read: Read, looking: Looking) -> None:
        self._runs = runs
        self._read = read
        self._looking = looking

    def methods(self) -> dict[str, Callable[[Request], None]]:
        """By the messages' names."""
        return {
            "views": self._views,
            "distribution": self._distribution,
            "norms": self._norms,
            "attention": self._attention,
            "lens": self._lens,
            "source": self._source,
        }

    def _views(self, request: Request) -> None:
        site = params.text(request.params, "site")

        def work(job: Job) -> Answer:
            return Answer(asdict(views_of(self._runs.session, self._runs.shown(), site)))

        self._read(request, work)

    def _distribution(self, request: Request) -> None:
        site = params.text(request.params, "site")
        bins = params.number(request.params, "bins", 1, MAX_BINS)

        def look() -> Answer:
            missing(self._runs.shown(), site, "baseline")
            reply = distribution_reply(self._runs.session, self._runs.shown(), site, bins)
            return Answer(asdict(reply))

        self._read(request, self._looking(site, "latest", look))

    def _norms(self, request: Request) -> None:
        site = params.text(request.params, "site")
        at = params.numbers(request.params, "index", params.MAX_DIMS)

        def look() -> Answer:
            missing(self._runs.shown(), site, "baseline")
            return Answer(asdict(norms_reply(self._runs.session, self._runs.shown(), site, at)))

        self._read(request, self._looking(site, "latest", look))

    # -- several sites at once

    def _attention(self, request: Request) -> None:
        site, which = params.text(request.params, "site"), params.which(request.params)
        row = params.number(request.params, "row", 0, MAX_INDEX)
        head = params.number(request.params, "head", 0, MAX_INDEX)

        def sites() -> Sequence[str]:
            path = attention_path(self._runs.session, site)
            call = Site.parse(site).call if Site.parse(site).path == path else None
            return attention_sites(str(Site.parse(path).at_call(call)))

        def look(job: Job) -> Answer:
            session: Any = self._runs.session
            latest = self._runs.shown()
            trace, baseline = _traces(latest)
            path = attention_path(session, site)
            call = Site.parse(site).call if Site.parse(site).path == path else None
            at = str(Site.parse(path).at_call(call))
            shown = session.attention(baseline if which == "baseline" else trace, at)
            before = session.attention(baseline, at) if which == "difference" else None
            reply, buffers = attention_reply(latest, shown, before, row, head, site)
            return Answer(asdict(reply), buffers)

        self._read(request, self._recorded(sites, look))

    def _lens(self, request: Request) -> None:
        which = params.which(request.params)
        row = params.number(request.params, "row", 0, MAX_INDEX)
        start = params.number(request.params, "start", 0, MAX_INDEX)

        def sites() -> Sequence[str]:
            self._ask("logit_lens", "the logit lens")
            return lens_sites(self._runs.session.root)

        def look(job: Job) -> Answer:
            latest = self._runs.shown()
            trace, baseline = _traces(latest)
            shown = baseline if which == "baseline" else trace
            width = lens_width(len(sites()))
            lens = self._ask("logit_lens", "the logit lens")(
                shown,
                against=None if shown is baseline else baseline,
                row=row,
                positions=slice(start, start + width),
                k=LENS_K,
                watch=job.watch,
            )
            reply = lens_reply(latest, lens, start, self._runs.session.tokenizer)
            return Answer(asdict(reply))

        self._read(request, self._recorded(sites, look, RUN))

    def _source(self, request: Request) -> None:
        site = params.text(request.params, "site")

        def work(job: Job) -> Answer | Later:
            source_path(self._runs.session, site)
            return Later(run, RUN, held=self._runs.latest.trace is not None)

        def run(job: Job) -> Answer:
            path = source_path(self._runs.session, site)
            latest = self._runs.latest
            ask = self._ask("source", "the source")
            try:
                source = ask(path, latest.inputs, job.watch)
            except SiteError:
                # Its ops cannot be looked at: PyTorch's fused attention. The code still can.
                source = ask(path)
            return Answer(asdict(source_reply(source, latest.run)))

        self._read(request, work)

    def _ask(self, name: str, what: str) -> Any:
        method = getattr(self._runs.session, name, None)
        if method is None:
            raise SiteError(ELSEWHERE.format(what))
        return method

    def _recorded(
        self,
        sites: Callable[[], Sequence[str]],
        look: Callable[[Job], Answer],
        lane: Any = READ,
    ) -> Work:
        """Work that looks at several sites; a run records what the latest left out of them."""

        def work(job: Job) -> Answer | Later:
            trace, baseline = _traces(self._runs.shown())
            absent = [s for s in sites() if _left_out(trace, s) or _left_out(baseline, s)]
            if self._runs.pair is not None:
                absent = []  # of runs that are compared, none can be run again as it was
            # All are noted before the run: each call notes one.
            if any([self._runs.record_too(site) for site in absent]):
                return Later(run_again, RUN, held=True)
            return Later(done, lane, held=True) if lane != READ else done(job)

        def run_again(job: Job) -> Later:
            try:
                self._runs.execute(job.watch, again=True)
            except LensError:
                # A site that cannot be looked at must not stop every later run.
                with self._runs.lock:
                    for site in sites():
                        self._runs.wanted.extra.pop(site, None)
                raise
            return Later(done, lane, held=lane == RUN)

        def done(job: Job) -> Answer:
            answer = look(job)
            job.watch.check()
            return answer

        return work


def _traces(latest: Latest) -> tuple[Trace, Trace]:
    if latest.trace is None or latest.baseline is None:
        raise InputError("Nothing has run yet: give a prompt and run it.")
    return latest.trace, latest.baseline


def _left_out(trace: Trace, site: str) -> bool:
    """Whether another run may record what this one does not hold."""
    text = str(Site.parse(site))
    if text in trace or text in trace.plain:
        return False
    return trace.missed.get(text, "left out").startswith("left out")
