"""Handlers: from a message of the page to a job, and what each job does.

Owns one method of work per message kind. `Handlers.handle` checks, enqueues and returns; it runs
no forward and reads no tensor, since it may be on the kernel's main thread. Messages come from a
page, so their kinds and sizes are checked (`params.py`); every failure becomes the request's
answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from ..errors import SiteError
from ..interventions import zero
from ..modules import ModuleRow
from ..sites import Site
from . import params
from .editing import Editing
from .jobs import READ, RUN, Answer, Job, Jobs, Lane, Later, Work, error_text
from .outputs import Outlook, outputs_page
from .overlays import Overlays
from .params import RequestError
from .protocol import Failed, Ok, Request, TileParams
from .ranks import one_rank, rank_methods
from .replies import hello, missing, state_of, tile_reply, tree_page, value_text
from .rows import entries_from, read_rows
from .runs import Runs, noting_failure
from .views import Views

RUN_KEY = "run"
"""One for all views and for code: only the latest run that was asked for matters."""


class Port(Protocol):
    """What the handlers need of the widget."""

    def show_selected(self, site: str) -> None:
        """Set the `selected` trait, which was checked."""

    def show_prompt(self, prompt: str) -> None:
        """Set the `prompt` trait, without running it."""

    def selected_site(self) -> str:
        """The `selected` trait."""


class Handlers:
    """The message handlers of one explorer."""

    def __init__(self, runs: Runs, jobs: Jobs, port: Callable[[], Port | None]) -> None:
        self._runs = runs
        self._jobs = jobs
        self._port = port
        self._tree: list[ModuleRow] | None = None
        self.overlays = Overlays()
        outlook = Outlook(runs, self.overlays, self._rows, self._read)
        self._methods: dict[str, Callable[[Request], None]] = {
            "hello": self._hello,
            "tree": self._tree_page,
            "outputs": self._outputs,
            "run": self._run,
            "select": self._select,
            "tile": self._tile,
            "value": self._value,
            "interventions": self._interventions,
            **outlook.methods,
            "cancel": self._cancel,
            **Views(runs, self._read, self._looking).methods(),
            **Editing(self).methods(),
            **rank_methods(runs, self._read),
        }

    def handle(self, content: Any, buffers: Sequence[Any] = ()) -> None:
        """Take one message of the page. Returns at once; never raises for what a page sent."""
        try:
            request = params.read_request(content, buffers)
            method = self._methods.get(request.method)
            if method is None:
                raise RequestError(
                    f"There is no method {request.method!r}; this kernel knows "
                    f"{', '.join(self._methods)}. Reload the page if lensview was just updated."
                )
            method(request)
        except Exception as error:
            name = content.get("id") if isinstance(content, dict) else None
            # Without an id nobody waits for an answer.
            if isinstance(name, str) and len(name) <= params.MAX_NAME:
                self._jobs.answer(Failed(name, type(error).__name__, error_text(error)))

    # -- looking

    def _read(self, request: Request, work: Work) -> None:
        self._jobs.submit(
            Job(
                work,
                id=request.id,
                view=request.view,
                key=request.key,
                lane=READ,
                signature=_signature(request),
            )
        )

    def _hello(self, request: Request) -> None:
        def work(job: Job) -> Answer:
            rows = self._rows(fresh=True)
            return Answer(asdict(hello(self._runs.session, len(rows), self.state())))

        self._read(request, work)

    def _tree_page(self, request: Request) -> None:
        offset, limit = params.page(request.params)
        self._read(request, lambda job: Answer(asdict(tree_page(self._rows(), offset, limit))))

    def _outputs(self, request: Request) -> None:
        offset, limit = params.page(request.params)

        def work(job: Job) -> Answer:
            return Answer(asdict(outputs_page(self._rows(), self._runs.shown(), offset, limit)))

        self._read(request, work)

    def _rows(self, fresh: bool = False) -> list[ModuleRow]:
        if self._tree is None or fresh:
            self._tree = self._runs.session.tree()
        return self._tree

    def state(self) -> Any:
        """The explorer's state as it is now."""
        port = self._port()
        selected = port.selected_site() if port is not None else ""
        return state_of(self._runs, selected, self.overlays.revision)

    def overlay(self, name: str, values: Any) -> None:
        """Show the user's numbers; see `Overlays.put`."""
        paths = (row.path for row in self._rows())
        self.overlays.put(name, values, paths, self._runs.latest.trace)

    def _select(self, request: Request) -> None:
        site = params.text(request.params, "site")

        def work(job: Job) -> Answer:
            canonical = self.checked_site(site)
            port = self._port()
            if port is not None:
                port.show_selected(canonical)
            return Answer({"site": canonical})

        self._read(request, work)

    def checked_site(self, text: str) -> str:
        """The canonical text of a site that exists in the model.

        Raises:
            SiteError: it does not, or is a glob.
        """
        site = Site.parse(text)
        if site.is_glob:
            raise SiteError(f"{text!r} is a glob: select one site.")
        (wrong,) = self._runs.session.check([zero(str(site))])
        if wrong:
            raise SiteError(wrong)
        return str(site)

    def _tile(self, request: Request) -> None:
        wanted = params.tile(request.params)
        self._read(request, self._looking(wanted.site, wanted.which, lambda: self._cut(wanted)))

    def _cut(self, wanted: TileParams) -> Answer:
        session = one_rank(self._runs.session, wanted.rank)
        reply, cells = tile_reply(session, self._runs.shown(), wanted)
        return Answer(asdict(reply), [cells])

    def _value(self, request: Request) -> None:
        site, which = params.text(request.params, "site"), params.which(request.params)
        index = params.numbers(request.params, "index", params.MAX_DIMS)

        rank = params.rank(request.params)

        def work(job: Job) -> Answer:
            session = one_rank(self._runs.session, rank)
            text = value_text(session, self._runs.shown(), site, which, index)
            return Answer({"text": text})

        self._read(request, work)

    def _looking(self, site: str, which: str, look: Callable[[], Answer]) -> Work:
        """Work that looks at a recorded site; one that the trace left out is recorded first."""

        def work(job: Job) -> Answer | Later:
            # Of runs that are compared, none can be run again as it was.
            lacks = self._runs.pair is None and missing(self._runs.latest, site, which)
            if lacks and self._runs.record_too(self.checked_site(site)):
                return Later(run_again, RUN, held=True)
            answer = look()
            job.watch.check()
            return answer

        def run_again(job: Job) -> Later:
            self._runs.execute(job.watch, again=True)
            return Later(work, READ)

        return work

    # -- for `editing.py`

    @property
    def runs(self) -> Runs:
        """The explorer's runs."""
        return self._runs

    @property
    def jobs(self) -> Jobs:
        """Its queue."""
        return self._jobs

    def selected(self) -> str:
        """The selected site, or ""."""
        port = self._port()
        return port.selected_site() if port is not None else ""

    def show_prompt(self, prompt: str) -> None:
        """Set the `prompt` trait, without running it."""
        port = self._port()
        if port is not None:
            port.show_prompt(prompt)

    # -- running

    def _run(self, request: Request) -> None:
        prompt = params.prompt(request.params)
        self._runs.want(prompt)
        port = self._port()
        if port is not None:
            port.show_prompt(self._runs.wanted.prompt)
        self.submit_run(request)

    def submit_run(self, request: Request | None = None, *, waited: bool = False) -> Job:
        """Run what is wanted. Without a request, for code: at once, even inside a cell."""

        def work(job: Job) -> Answer:
            if request is None and not waited:
                with noting_failure(self._runs):
                    self._runs.execute(job.watch)
            else:
                self._runs.execute(job.watch)
            return Answer(asdict(self.state()))

        return self._submit(request, work, RUN, waited)

    def _interventions(self, request: Request) -> None:
        rows = read_rows(request.params.get("rows"))
        with self._runs.lock:
            self._runs.set_rows(entries_from(rows, self._runs.wanted.entries))
        self.submit_edit(request)

    def submit_edit(self, request: Request | None = None) -> Job:
        """Check the rows and run again where they changed what a run does."""

        def check(job: Job) -> Answer | Later:
            self._runs.check()
            if self._runs.wanted.inputs is None or self._runs.up_to_date():
                self._runs.tell()
                return Answer(asdict(self.state()))
            return Later(run, RUN, held=request is not None)

        def run(job: Job) -> Answer:
            if request is None:
                with noting_failure(self._runs):
                    self._runs.execute(job.watch, fresh=False)
            else:
                self._runs.execute(job.watch, fresh=False)
            return Answer(asdict(self.state()))

        return self._submit(request, check, READ, False)

    def _submit(self, request: Request | None, work: Work, lane: Lane, waited: bool) -> Job:
        job = Job(
            work,
            id=request.id if request is not None else "",
            key=RUN_KEY,
            lane=lane,
            held=request is not None and lane == RUN,
            waited=waited,
        )
        return self._jobs.submit(job)

    def _cancel(self, request: Request) -> None:
        target = params.text(request.params, "id", params.MAX_NAME)
        self._jobs.cancel(target)
        self._jobs.answer(Ok(request.id, {}))


def _signature(request: Request) -> str:
    return f"{request.method} {json.dumps(request.params, sort_keys=True)}"
