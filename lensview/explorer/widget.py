"""Explorer: the widget.

Owns the traits, the message port and the life of one explorer. What messages do is in
`handlers.py`, what a run does in `runs.py`, what the page looks like in `js/`.

No tensor and no tree is in a trait: what is synced is the selected site and the prompt. The rest
travels by request, so that a saved notebook stays small.
"""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..errors import InterventionError, LensError, RunCancelled, SiteError
from ..interventions import OPERATIONS, Intervention
from ..session import Session
from ..traces.trace import Trace
from .code import code_of
from .handlers import Handlers
from .jobs import RUN, Jobs, Reply
from .origins import namespace
from .protocol import MAX_MESSAGE_BYTES, Event, Failed, message
from .replies import json_bytes, strict
from .rows import merged
from .runs import MAX_BYTES, Runs
from .timeline import KeptRun

BUNDLE = Path(__file__).parent / "static" / "widget.js"
FALLBACK_SECONDS = 1.5
"""How long showing an explorer waits for a run, so that the saved notebook has its result."""
INTERRUPT_SECONDS = 30.0


def _bundle() -> str:
    # The text, not the path: given a path, anywidget would keep every instance, and its model,
    # alive through the file's change signal.
    try:
        return BUNDLE.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ImportError(
            f"The explorer's page is missing: {BUNDLE}. An installed lensview has it, so install "
            "again; in a checkout, build it with `npm ci && npm run build` in js/."
        ) from error


class _Same(traitlets.Any):
    """A trait that changes when it is given another object: comparing traces would compare all
    their tensors."""

    def set(self, obj: Any, value: Any) -> None:
        value = self._validate(obj, value)
        old = obj._trait_values.get(self.name, self.default_value)
        obj._trait_values[self.name] = value
        if old is not value:
            obj._notify_trait(self.name, old, value)


class Explorer(anywidget.AnyWidget):
    """An interactive view of a model's inside. Make one with `lensview.explore`.

    Besides what every ipywidget has, these can be observed, linked and read in the next cell:

    Attributes:
        selected: the selected site's text, or "". Settable; a site that does not exist is a
            `SiteError`.
        prompt: the text that the model runs on. Setting it runs the model, without waiting.
        trace: the `Trace` of the latest run, or None; with interventions on, the edited one.
        baseline: the `Trace` of the same inputs without interventions, or None.
        interventions: the interventions that are on, a tuple. Settable; they are checked, shown
            in the table and run.

    `trace`, `baseline` and `interventions` are set on the explorer's own thread when a run ends,
    so functions that observe them run there: they must be quick, and must not wait for a run.
    """

    _esm = _bundle()
    selected = traitlets.Unicode("").tag(sync=True)
    prompt = traitlets.Unicode("").tag(sync=True)
    trace = _Same(None, allow_none=True, read_only=True)
    baseline = _Same(None, allow_none=True, read_only=True)
    interventions = _Same(())

    def __init__(
        self,
        session: Session,
        sites: Sequence[str] = ("**",),
        max_bytes: int | None = MAX_BYTES,
    ) -> None:
        """See `lensview.explore`."""
        own = weakref.ref(self)
        self._lock = threading.RLock()
        self._own = threading.local()
        self._runs: Runs | None = Runs(session, sites, max_bytes, lambda: _call(own, "_changed"))
        self._jobs = Jobs(lambda reply, buffers: _call(own, "_emit", reply, buffers))
        self._handlers = Handlers(self._runs, self._jobs, own)
        self._summary = f"{session.title} ({session.summary})"
        super().__init__()
        self._layout_made_here = self.layout
        self.on_msg(_receive)

    # -- for the user's code

    @property
    def session(self) -> Session:
        """What runs the model: its `root` is the model, its `tokenizer` reads the prompts."""
        return self._open().session

    def run(self, prompt: Any = None, *, wait: bool = True) -> Trace | None:
        """Run the model, and show it.

        Args:
            prompt: a text, or any inputs that `lensview.trace` takes; None runs the last ones
                again.
            wait: block until the run is done, and return its trace. An interrupt of the kernel
                cancels the run and leaves the model as it was.

        Raises:
            InputError, CaptureUnsupportedError: as `lensview.trace`.
            InterventionError: an intervention does not fit; the others were run and are shown.
            RunCancelled: it was cancelled in the page, or a newer run took its place.
        """
        runs = self._open()
        if wait and self._jobs.on_own_thread():
            raise LensError(
                "run() was called by a function that observes this explorer, where waiting would "
                "never end: use run(…, wait=False)."
            )
        if prompt is not None:
            runs.want(prompt)
            self.show_prompt(runs.wanted.prompt)
        job = self._handlers.submit_run(waited=wait)
        if not wait:
            return None
        try:
            self._jobs.wait(job)
        except BaseException:
            self._jobs.stop(job, "interrupted")
            job.done.wait(INTERRUPT_SECONDS)
            raise
        if job.error is not None:
            try:
                raise job.error
            finally:
                job.error = None
        if job.cancelled:
            raise RunCancelled(f"The run was cancelled: {job.cancelled}.")
        if errors := self.errors:
            raise InterventionError(
                "The run is shown without the interventions that do not fit:\n  "
                + "\n  ".join(errors.values())
            )
        return runs.latest.trace

    @property
    def errors(self) -> dict[str, str]:
        """Why interventions that are on were left out of the latest run, by what they say."""
        return self._open().errors()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until no run is in progress; False when `timeout` seconds passed first."""
        return self._jobs.wait_idle(timeout=timeout)

    def snapshot(self) -> None:
        """Display a picture of what is shown now: selected heatmap, next tokens, interventions.

        It is plain HTML, so it is still there in a reopened or converted notebook.
        """
        from IPython.display import display

        from .snapshot import snapshot_html

        runs = self._open()
        html = snapshot_html(runs, self.selected)
        display({"text/html": html, "text/plain": repr(self)}, raw=True)  # type: ignore[no-untyped-call]

    def overlay(self, name: str, values: Any) -> None:
        """Show numbers of your own with the model's: as the tree's bars, or beside a heatmap.

        Args:
            name: what they are, a short text; the same name again replaces what it showed.
            values: a mapping of module paths to numbers, shown as the tree's bars; a mapping of
                sites to 1-D tensors of one number per token (T,), or one such tensor for every
                site that has tokens, shown beside the rows; or None, which takes them away.

        Raises:
            InputError: values of another kind, or not one per token of the latest run.
            SiteError: a module that the model does not have.
        """
        self._open()
        self._handlers.overlay(name, values)
        self._push()

    @property
    def runs(self) -> tuple[KeptRun, ...]:
        """The timeline: every run so far, oldest first, as far back as it is kept. Each has its
        `number`, `name`, `inputs`, `interventions`, `trace` and `baseline`; the last two are None
        where its values were let go."""
        runs = self._open()
        with runs.lock:
            return tuple(runs.timeline)

    def undo(self) -> bool:
        """Take back the last change of the interventions, and run; False where there is none."""
        return self._stepped(forward=False)

    def redo(self) -> bool:
        """Make the last undone change again, and run; False where there is none."""
        return self._stepped(forward=True)

    def _stepped(self, *, forward: bool) -> bool:
        stepped = self._open().step_back(forward=forward)
        if stepped:
            self._handlers.submit_edit()
        return stepped

    def compare(self, first: int | None, second: int | None = None) -> None:
        """Show two runs of the timeline, by number, beside each other; None ends that.

        Raises:
            InputError: there is no such run.
        """
        self._open().compare(first, second)

    def code(self) -> str:
        """The lensview lines that reproduce what is shown."""
        return code_of(self._open(), namespace())

    def close(self) -> None:
        """End the explorer: its runs are cancelled, its threads end, its traces are let go."""
        runs, self._runs = getattr(self, "_runs", None), None
        if runs is not None:
            self._jobs.close()
            self.unobserve_all()
            runs.forget()
            for name in ("trace", "baseline"):
                self._trait_values[name] = None
            self._trait_values["interventions"] = ()
            del self._handlers
            layout = getattr(self, "_layout_made_here", None)
            if layout is not None:
                layout.close()
        super().close()

    def _open(self) -> Runs:
        if self._runs is None:
            raise LensError("This explorer is closed. Make a new one, or run its cell again.")
        return self._runs

    # -- for the handlers (see `handlers.Port`)

    def show_selected(self, site: str) -> None:
        """Set `selected` to a site that was checked."""
        with self._quietly():
            self.selected = site
        self._push()

    def show_prompt(self, prompt: str) -> None:
        """Set `prompt` to what is wanted already."""
        with self._quietly():
            self.prompt = prompt

    def selected_site(self) -> str:
        """`selected`."""
        return str(self.selected)

    # -- traits set by code

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Set traits on this thread without acting on them."""
        before = getattr(self._own, "quiet", False)
        self._own.quiet = True
        try:
            yield
        finally:
            self._own.quiet = before

    @property
    def _quiet(self) -> bool:
        return getattr(self._own, "quiet", False) or self._runs is None

    @traitlets.validate("selected")
    def _check_selected(self, proposal: Any) -> str:
        if self._quiet or proposal["value"] == "":
            return str(proposal["value"])
        return self._handlers.checked_site(proposal["value"])

    @traitlets.observe("selected")
    def _on_selected(self, change: Any) -> None:
        if not self._quiet:
            self._push()

    @traitlets.validate("prompt")
    def _check_prompt(self, proposal: Any) -> str:
        if not self._quiet and proposal["value"].strip():
            self._open().want(proposal["value"])
        return str(proposal["value"])

    @traitlets.observe("prompt")
    def _on_prompt(self, change: Any) -> None:
        # A cleared text box that is linked to the prompt clears it; there is nothing to run.
        if not self._quiet and change["new"].strip():
            self._handlers.submit_run()

    @traitlets.validate("interventions")
    def _check_interventions(self, proposal: Any) -> tuple[Intervention, ...]:
        given = proposal["value"]
        if self._quiet:
            return tuple(given)
        edits = (given,) if isinstance(given, Intervention) else _as_tuple(given)
        for edit in edits:
            if not isinstance(edit, Intervention):
                raise InterventionError(
                    f"{edit!r} is a {type(edit).__name__}, not an intervention; make one with "
                    f"{', '.join('lv.' + o for o in OPERATIONS)}."
                )
        for wrong in self._open().session.check(edits):
            if wrong:
                raise SiteError(wrong)
        return edits

    @traitlets.observe("interventions")
    def _on_interventions(self, change: Any) -> None:
        if self._quiet:
            return
        runs = self._open()
        with runs.lock:
            runs.set_rows(merged(change["new"], runs.wanted.entries))
        self._handlers.submit_edit()

    # -- to the page

    def _changed(self) -> None:
        """A run began or ended, or rows changed: set the traits, tell the page. Worker thread."""
        runs = self._runs
        if runs is None:
            return
        with self._lock, self._quietly():
            latest = runs.latest
            try:
                self.set_trait("baseline", latest.baseline)
                self.set_trait("trace", latest.trace)
                edits = runs.enabled()
                if edits != self.interventions:
                    self.interventions = edits
            except Exception:
                # An observer of the user's has failed, not the run: told where its cell prints.
                traceback.print_exc(file=sys.stderr)
        self._push()

    def _push(self) -> None:
        if self._runs is not None and self.comm is not None:
            self._post(strict(message(Event(asdict(self._handlers.state())))), ())

    def _emit(self, reply: Reply, buffers: Sequence[bytes]) -> None:
        body = strict(message(reply))
        size = json_bytes(body) + sum(map(len, buffers))
        if size > MAX_MESSAGE_BYTES:
            text = f"The answer has {size:,} bytes, more than a message may have; ask for less."
            body, buffers = message(Failed(reply.id, "ReplyTooLarge", text)), ()
        self._post(body, buffers)

    def _post(self, body: dict[str, Any], buffers: Sequence[bytes]) -> None:
        if self.comm is not None:
            self.send(body, list(buffers))

    def open(self) -> None:
        super().open()
        _forget_pin(self.comm)

    def _send(self, msg: Any, buffers: Any = None) -> None:
        super()._send(msg, buffers)
        _forget_pin(self.comm)

    # -- how it looks without its page

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        from .snapshot import fallback_html

        runs = self._runs
        if runs is None:
            return None
        if not self._jobs.on_own_thread():
            self._jobs.wait_idle(RUN, FALLBACK_SECONDS)
        shown = super()._repr_mimebundle_(**kwargs)
        if shown is None:
            return None
        data, metadata = shown
        data["text/html"] = fallback_html(runs, self.selected)
        return data, metadata

    def __repr__(self) -> str:
        if self._runs is None:
            return f"Explorer of {self._summary}, closed"
        latest = self._runs.latest
        if latest.trace is None:
            return f"Explorer of {self._summary}"
        top = (latest.top_edited or latest.top_baseline)[:1]
        says = f", next token {top[0].text!r} {top[0].probability:.2f}" if top else ""
        return f"Explorer of {self._summary}: run {latest.run}{says}"


def _as_tuple(given: Any) -> tuple[Any, ...]:
    if not isinstance(given, Iterable):
        raise InterventionError(
            f"interventions takes a tuple of interventions, not a {type(given).__name__}."
        )
    return tuple(given)


def _receive(widget: Explorer, content: Any, buffers: Any) -> None:
    # A function, not a bound method, which ipywidgets would keep in a circle.
    if widget._runs is not None:
        widget._handlers.handle(content, buffers)


def _call(own: weakref.ref[Explorer], name: str, *args: Any) -> None:
    widget = own()
    if widget is not None:
        getattr(widget, name)(*args)


def _forget_pin(comm: Any) -> None:
    """Let the page's next message be served where it would be without our last one.

    ipykernel 7.4 sends a comm's messages to whichever subshell last published on it: after a trait
    was set in a cell, a cancel would wait for that cell to end. It also keeps one entry for every
    message with an id. Both are private; a browser test fails if this stops working.
    """
    lock = getattr(comm, "_reply_subshell_lock", None)
    if lock is None:
        return
    with lock:
        comm.__dict__.pop("_reply_subshell_id", None)
        comm._reply_subshell_ids.clear()
