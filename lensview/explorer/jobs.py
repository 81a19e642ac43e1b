"""Jobs: the threads that do an explorer's work, and the one answer that each request gets.

Owns the queues, "only the latest" keys, cancelling, the pace of progress and the lock that runs on
one model share. It does not know what a job does (`handlers.py`) nor how an answer travels
(`widget.py`): it is given a function for that.

Two lanes, a thread each, started when first needed: `RUN` for forwards, `READ` for what is answered
from a finished trace, so that looking around stays quick while a run goes on. The threads are
daemons and end at `Jobs.close`; idle, they hold nothing but the queue.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import RunCancelled
from ..watch import Watch
from .cells import cells
from .protocol import Cancelled, Failed, Ok, Progress

Lane = Literal["run", "read"]
RUN: Lane = "run"
READ: Lane = "read"

Reply = Ok | Failed | Cancelled | Progress
Emit = Callable[[Reply, Sequence[bytes]], None]

PROGRESS_SECONDS = 0.1
"""Least time between two progress messages of one job."""
STEP_SECONDS = 0.2
MAX_ERROR_CHARACTERS = 8_000
NEWER = "a newer request took its place"
WAITING = "waiting for the running cell to finish"


@dataclass
class Answer:
    """What a job's work gives back when it is done."""

    result: dict[str, Any] = field(default_factory=dict)
    buffers: Sequence[bytes] = ()


@dataclass
class Later:
    """What a job's work gives back to go on in another lane, as the same request."""

    work: Work
    lane: Lane
    held: bool = False


Work = Callable[["Job"], Answer | Later]


@dataclass(eq=False)
class Job:
    """One piece of work. With an `id` it is a request of the page and is answered; without one it
    came from code, which looks at `done` and `error`.

    Attributes:
        key: jobs of one view with one key: only the latest matters. "" means no key.
        held: wait while a cell of the user is running (a run that the page asked for).
        waited: code waits for it and raises `error`. Only then is the error kept: its traceback
            holds the frames of the run.
        cancelled: why it was cancelled, or "".
        signature: what a request asks for. Another one of its key that asks for the same is taken
            for a repetition: it takes over the work instead of starting it anew.
        watch: the run's cancel flag; its progress becomes messages.
    """

    work: Work | None
    id: str = ""
    view: str = ""
    key: str = ""
    lane: Lane = RUN
    held: bool = False
    waited: bool = False
    error: BaseException | None = None
    cancelled: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    watch: Watch = field(default_factory=Watch)
    # Output and comm messages of the work belong to the cell or message that asked for it.
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    settled: bool = False
    last_progress: float = 0.0
    signature: str = ""

    def stop(self, reason: str) -> None:
        """Ask the work to stop at its next look at the watch."""
        self.cancelled = self.cancelled or reason
        self.watch.cancel()


class Jobs:
    """The queue and the threads of one explorer. Safe to use from any thread.

    Args:
        emit: called with each reply and its buffers, on whichever thread settles the job.
        name: for the threads' names.
    """

    def __init__(self, emit: Emit, name: str = "lensview") -> None:
        self._emit = emit
        self._name = name
        self._queue: list[Job] = []
        self._running: dict[Lane, Job] = {}
        self._threads: dict[Lane, threading.Thread] = {}
        self._turn = threading.Condition()
        # Held while an answer or progress goes out: nothing follows a request's one answer.
        self._voice = threading.RLock()
        self._waiting_inside = 0
        self._closed = False
        cells().call_when_idle(self)

    def submit(self, job: Job) -> Job:
        """Queue `job`. An earlier one of its view with its key is cancelled."""
        job.watch = Watch(lambda done, total, text: self._progress(job, done, total, text))
        with self._turn:
            refused = self._closed
            if not refused and self._took_over(job):
                return job
            dropped = [] if refused else self._supersede(job)
            if not refused:
                self._enqueue(job)
        for old in dropped:
            self._settle(old, reason=NEWER)
        if refused:
            self._settle(job, reason="the explorer is closed")
        elif job.held and cells().running:
            self._say(job, 0, 0, WAITING)
        return job

    def cancel(self, request: str, reason: str = "cancelled") -> None:
        """Stop the job that answers `request`; one that is done or unknown is left alone."""
        with self._turn:
            for job in self._running.values():
                if job.id == request:
                    job.stop(reason)
            found = [j for j in self._queue if j.id == request]
            self._queue = [j for j in self._queue if j.id != request]
        for job in found:
            self._settle(job, reason=reason)

    def stop(self, job: Job, reason: str = "cancelled") -> None:
        """Stop `job` itself, whether or not it answers a request."""
        with self._turn:
            queued = job in self._queue
            if queued:
                self._queue.remove(job)
            else:
                job.stop(reason)
        if queued:
            self._settle(job, reason=reason)

    def wait(self, job: Job, timeout: float | None = None) -> bool:
        """Block until `job` is done; False when `timeout` seconds passed first."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._released():
            # In steps: some systems deliver an interrupt only between waits.
            while not job.done.wait(_step_of(end)):
                if end is not None and time.monotonic() >= end:
                    return False
        return True

    def wait_idle(self, lane: Lane | None = None, timeout: float | None = None) -> bool:
        """Block until nothing runs or waits in `lane` (None: in any); False when `timeout`
        seconds passed first."""

        def idle() -> bool:
            lanes = [*self._running, *(j.lane for j in self._queue)]
            return not lanes if lane is None else lane not in lanes

        end = None if timeout is None else time.monotonic() + timeout
        with self._released(), self._turn:
            while not self._turn.wait_for(idle, _step_of(end)):
                if end is not None and time.monotonic() >= end:
                    return False
        return True

    def on_own_thread(self) -> bool:
        """Whether the caller is one of this queue's threads, where waiting would never end."""
        return threading.current_thread() in self._threads.values()

    def wake(self) -> None:
        """Look at the queue again: a cell of the user has ended."""
        with self._turn:
            self._turn.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Answer all that is open as cancelled, and end the threads.

        Waits up to `timeout` seconds for the running work to leave the model, except when called
        by that work itself.
        """
        with self._turn:
            self._closed = True
            queued, self._queue = self._queue, []
            running = list(self._running.values())
            for job in running:
                job.stop("the explorer was closed")
            threads = list(self._threads.values())
            self._turn.notify_all()
        for job in queued:
            self._settle(job, reason="the explorer was closed")
        for job in running:
            self._settle(job, reason="the explorer was closed", keep_open=True)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(timeout)

    def answer(self, reply: Ok | Failed) -> None:
        """Answer a request that needs no job."""
        with self._voice:
            self._give(reply)

    # -- the queue, under the lock

    def _took_over(self, job: Job) -> bool:
        """Whether `job` repeats one that is on its way, which now answers it (a page that has
        waited for long asks again: starting anew each time, nothing long would ever end)."""
        if not (job.key and job.signature):
            return False
        for old in [*self._queue, *self._running.values()]:
            same = (old.view, old.key, old.signature) == (job.view, job.key, job.signature)
            if same and not old.watch.cancelled:
                with self._voice:
                    if old.settled:
                        continue
                    self._give(Cancelled(old.id, NEWER))
                    old.id = job.id
                return True
        return False

    def _supersede(self, job: Job) -> list[Job]:
        if not job.key:
            return []
        same = (job.view, job.key)
        for running in self._running.values():
            if (running.view, running.key) == same:
                running.stop(NEWER)
        dropped = [j for j in self._queue if (j.view, j.key) == same]
        self._queue = [j for j in self._queue if j not in dropped]
        return dropped

    def _enqueue(self, job: Job) -> None:
        self._queue.append(job)
        if job.lane not in self._threads:
            thread = threading.Thread(
                target=self._loop, args=(job.lane,), name=f"{self._name} {job.lane}", daemon=True
            )
            self._threads[job.lane] = thread
            thread.start()
        self._turn.notify_all()

    def _next(self, lane: Lane) -> Job | None:
        with self._turn:
            while not self._closed:
                for job in self._queue:
                    if job.lane == lane and not self._must_wait(job):
                        self._queue.remove(job)
                        self._running[lane] = job
                        return job
                self._turn.wait()
        return None

    def _must_wait(self, job: Job) -> bool:
        return job.held and cells().running and not self._waiting_inside

    @contextmanager
    def _released(self) -> Iterator[None]:
        # A cell that waits for us does nothing else meanwhile: what waits for the cell may run.
        with self._turn:
            self._waiting_inside += 1
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._waiting_inside -= 1

    # -- the threads

    def _loop(self, lane: Lane) -> None:
        while self._step(lane):
            pass

    def _step(self, lane: Lane) -> bool:
        # Its own function, so that an idle thread's frame holds no job and no trace.
        job = self._next(lane)
        if job is None:
            return False
        after = job.context.run(self._do, job)
        with self._turn:
            del self._running[lane]
            if after is not None and not self._closed:
                job.work, job.lane, job.held = after.work, after.lane, after.held
                self._enqueue(job)
            self._turn.notify_all()
        if after is not None and self._closed:
            self._settle(job, reason="the explorer was closed")
        elif after is not None and job.held and cells().running:
            self._say(job, 0, 0, WAITING)
        elif after is None:
            job.done.set()
        return True

    def _do(self, job: Job) -> Later | None:
        work, job.work = job.work, None
        try:
            job.watch.check()
            if work is None:  # pragma: no cover - a job is queued with its work
                raise RuntimeError("a job was run twice")
            answer = work(job)
        except RunCancelled:
            self._settle(job, reason=job.cancelled or "cancelled", keep_open=True)
        except BaseException as error:
            # Whatever the work raised, an interrupt included, is the request's answer: the thread
            # serves the next one.
            if job.waited:
                job.error = error
            self._settle(job, Failed(job.id, type(error).__name__, error_text(error)), (), True)
        else:
            if isinstance(answer, Later):
                return answer
            self._settle(job, Ok(job.id, answer.result), answer.buffers, True)
        return None

    # -- answers

    def _settle(
        self,
        job: Job,
        reply: Ok | Failed | None = None,
        buffers: Sequence[bytes] = (),
        keep_open: bool = False,
        reason: str = "",
    ) -> None:
        """Give the job its one answer: `reply`, or cancelled for `reason`. Later ones are dropped.
        With `keep_open` its thread still has to leave it before `done`."""
        with self._voice:
            first, job.settled = not job.settled, True
            if first and reply is None:
                job.cancelled = reason
            if first and job.id:
                self._give(reply or Cancelled(job.id, reason), buffers)
        if not keep_open:
            job.work = None
            job.done.set()

    def _give(self, reply: Reply, buffers: Sequence[bytes] = ()) -> None:
        try:
            self._emit(reply, buffers)
        except Exception:
            # The way to the page is broken; the work is not, and the thread goes on.
            traceback.print_exc(file=sys.stderr)

    def _progress(self, job: Job, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if now - job.last_progress >= PROGRESS_SECONDS:
            job.last_progress = now
            self._say(job, done, total, text)

    def _say(self, job: Job, done: int, total: int, text: str) -> None:
        with self._voice:
            if job.id and not job.settled:
                self._give(Progress(job.id, done, total, text))


def _step_of(end: float | None) -> float:
    return STEP_SECONDS if end is None else max(0.0, min(STEP_SECONDS, end - time.monotonic()))


def error_text(error: BaseException) -> str:
    """An error's own words for a person, at a bounded length."""
    try:
        text = str(error) or type(error).__name__
    except Exception as broken:
        text = f"{type(error).__name__} (its text could not be made: {type(broken).__name__})"
    if len(text) > MAX_ERROR_CHARACTERS:
        text = f"{text[:MAX_ERROR_CHARACTERS]} … ({len(text)} characters)"
    return text


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_locks_lock = threading.Lock()


@contextmanager
def model_lock(anchor: Any, watch: Watch) -> Iterator[None]:
    """Hold the lock that all explorers over `anchor` (a root module) share.

    Raises:
        RunCancelled: `watch` was cancelled while another run held it.
    """
    with _locks_lock:
        lock = _locks.setdefault(anchor, threading.RLock())
    while not lock.acquire(timeout=0.05):
        watch.check()
    try:
        yield
    finally:
        lock.release()
