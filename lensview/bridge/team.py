"""Team: the ranks of one model as the kernel talks to them.

Owns a command's way there and back: sending it to the ranks, waiting for all of them with limits,
and what their answers come to together. When a rank fails, everything is stopped here, and the
`WorkerError` is kept: every later command raises it again. How a failure is told from a long run
is `verdicts.py`'s.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import RunCancelled, WorkerError
from ..watch import Watch
from .job import Job, RankState, rank_name
from .pending import Cancel, Pending
from .shown import show, tell, warn
from .verdicts import Limits, Verdict, disagreement, long_silent, verdict, whereabouts
from .wire import LONG, Message

STEP_SECONDS = 0.05
INTERRUPT_SECONDS = 4.0
OUTPUT_SECONDS = 0.5
"""How long a command that is done waits for the last lines that ranks printed for it."""


class Team:
    """The ranks of one model: their processes, the line to them, and what is under way.

    Attributes:
        failure: why the ranks are gone, once they are; else None.
    """

    def __init__(self, job: Job, limits: Limits, quiet: bool = False) -> None:
        self.failure: WorkerError | None = None
        self.quiet = quiet
        self.limits = limits
        self.job = job
        self._turn = threading.Condition()
        self._runs = [threading.Lock() for _ in job.groups]
        self._numbers = itertools.count()
        self._pending: dict[int, Pending] = {}
        self._left: list[tuple[Pending, Cancel]] = []
        self._closed = False
        self._names = {rank_name(state.rank): state.rank for state in job.ranks}
        job.changed = self._changed
        self._line = job.open(self._received)

    @property
    def ranks(self) -> list[RankState]:
        """What is known of each rank."""
        return self.job.ranks

    @property
    def closed(self) -> bool:
        """Whether the ranks were ended."""
        return self._closed

    @property
    def refused(self) -> int:
        """How many messages came that were none."""
        return self._line.refused

    # --- commands ------------------------------------------------------------------------------

    def run(
        self,
        kind: str,
        body: Any,
        watch: Watch | None = None,
        limits: Limits | None = None,
        groups: Iterable[int] = (0,),
    ) -> Pending:
        """What the ranks of a group do in step; one such command at a time.

        Args:
            groups: by number; several do it each for itself.

        Raises:
            WorkerError: a rank failed, now or before; the ranks are gone.
            RunCancelled: `watch` was cancelled, and all ranks stopped alike.
        """
        with contextlib.ExitStack() as held:
            for group in sorted(groups):
                while not self._runs[group].acquire(timeout=STEP_SECONDS):
                    if watch is not None:
                        watch.check()
                held.callback(self._runs[group].release)
            to = [rank for group in groups for rank in self.job.groups[group]]
            pending = self._ask(kind, body, to, watch, limits)
        self._complete_output(pending)
        return pending

    def read(self, kind: str, body: Any) -> Pending:
        """What rank 0 answers from what it holds, also while a command runs."""
        return self._ask(kind, body, [0])

    def tell(self, kind: str, body: Any) -> None:
        """Send to rank 0 what needs no answer. It may be called from a finalizer."""
        if self.failure is None and not self._closed:
            self._line.send(Message(kind, 0, body), rank_name(0))

    def _ask(
        self,
        kind: str,
        body: Any,
        to: Iterable[int],
        watch: Watch | None = None,
        limits: Limits | None = None,
    ) -> Pending:
        self._check_alive()
        pending = Pending(self.job.first + next(self._numbers), set(to))
        self._pending[pending.number] = pending
        message = Message(kind, pending.number, body)
        try:
            for rank in sorted(pending.waiting):
                if kind in LONG:
                    self.ranks[rank].does(kind, running=True)
                self._line.send(message, rank_name(rank))
            self._wait(pending, watch, limits or self.limits)
        except (KeyboardInterrupt, SystemExit):
            self._give_up(pending)
            raise
        finally:
            if not any(pending is left for left, _ in self._left):
                self._pending.pop(pending.number, None)
        return pending

    def come(self, limits: Limits) -> None:
        """Wait until every rank has come.

        Raises:
            WorkerError: one did not.
        """
        pending = Pending(0, {r.rank for r in self.ranks})
        self._pending[0] = pending
        self._wait(pending, None, limits)
        del self._pending[0]

    def adopt(self, busy: Mapping[int, int]) -> None:
        """End what ranks do for a kernel that has left; the next command waits for it.

        Args:
            busy: by rank, the number of that command.
        """
        for number in sorted(set(busy.values())):
            left = Pending(number, {rank for rank, n in busy.items() if n == number})
            self._pending[number] = left
            self._left.append((left, self._cancel(left)))

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise WorkerError(
                f"The ranks are gone, because one had failed: {self.job.remedy}. It was this:\n"
                f"{self.failure}",
                *(self.failure.rank, self.failure.exit_code),
                *(self.failure.remote_traceback, self.failure.last_lines),
            )
        if self._closed:
            raise WorkerError(f"The session was stopped: {self.job.remedy}.")

    # --- waiting -------------------------------------------------------------------------------

    def _wait(self, pending: Pending, watch: Watch | None, limits: Limits) -> None:
        cancel = None
        asked_where = 0.0
        while True:
            with self._turn:
                if pending.waiting and self.failure is None and not self._closed:
                    self._turn.wait(STEP_SECONDS)
            self.show_output()
            if not pending.waiting:
                return
            self._check_alive()
            if watch is not None:
                _tell_progress(watch, pending)
                if watch.cancelled and cancel is None:
                    cancel = self._cancel(pending)
            if cancel is not None:
                cancel.step()
            self._go_on_cancelling()
            self._tell_of_silence(pending, limits)
            about, found = self._judged(pending, limits)
            if found is not None and found.wants_where and not asked_where:
                asked_where = time.monotonic()
                self._ask_where(about)
            elif found is not None and (
                not asked_where
                or about.where.keys() >= about.waiting
                or time.monotonic() - asked_where > limits.where
            ):
                raise self.fail(found.with_where(about))

    def _judged(self, pending: Pending, limits: Limits) -> tuple[Pending, Verdict | None]:
        """What has failed of a command, or of one before it that an interrupt gave up."""
        for one in (pending, *(left for left, _ in self._left)):
            if (found := verdict(one, self.job, limits)) is not None:
                return one, found
        return pending, None

    def _cancel(self, pending: Pending) -> Cancel:
        def send(kind: str, rank: int, body: Any) -> None:
            self._line.send(Message(kind, pending.number, body), rank_name(rank))

        return Cancel(pending, send)

    def _tell_of_silence(self, pending: Pending, limits: Limits) -> None:
        """Say once where a rank is that takes long; the run goes on."""
        if pending.told or not long_silent(pending, limits):
            return
        now = time.monotonic()
        if pending.asked_at is None:
            pending.asked_at = now
            self._ask_where(pending)
        elif pending.where.keys() >= pending.waiting or now - pending.asked_at > limits.where:
            pending.told = True
            if where := whereabouts(pending):
                seconds = now - pending.news_at
                tell(f"no module was passed for {seconds:.0f} s: {where}. Interrupting stops it.")
            pending.where.clear()

    def _ask_where(self, pending: Pending) -> None:
        for rank in pending.waiting:
            self._line.send(Message("where", pending.number, None), rank_name(rank))

    def _give_up(self, pending: Pending) -> None:
        """The kernel was interrupted: stop the command, but do not wait for long."""
        watch = Watch()
        watch.cancel()
        end = time.monotonic() + INTERRUPT_SECONDS
        cancel = self._cancel(pending)
        while pending.waiting and self.failure is None and time.monotonic() < end:
            with self._turn:
                self._turn.wait(STEP_SECONDS)
            cancel.step()
        if pending.waiting and self.failure is None:
            self._left.append((pending, cancel))

    def _go_on_cancelling(self) -> None:
        """Ranks may still be in a command that an interrupt gave up; the next one waits for it."""
        with self._turn:
            self._step_left()

    def _step_left(self) -> None:
        for item in list(self._left):
            left, cancel = item
            cancel.step()
            if not left.waiting:
                self._left.remove(item)
                self._pending.pop(left.number, None)
                if 0 in left.answers and left.answers[0].kind == "reply":
                    self._drop(left.answers[0])

    def _complete_output(self, pending: Pending) -> None:
        end = time.monotonic() + OUTPUT_SECONDS
        with self._turn:
            self._turn.wait_for(
                lambda: self.job.output_is_complete(pending.number, pending.to),
                max(0.0, end - time.monotonic()),
            )
        self.show_output()

    # --- answers -------------------------------------------------------------------------------

    def settled(self, pending: Pending) -> dict[str, Any] | None:
        """The error that all ranks raised alike, as data; None where all have done it.

        Raises:
            WorkerError: the ranks disagree; they are gone.
            RunCancelled: all were cancelled.
        """
        found = disagreement(pending)
        if found is not None:
            raise self.fail(found)
        warn(pending)
        first = pending.first
        if first.kind != "failed":
            return None
        if first.body["class"] == "RunCancelled":
            raise RunCancelled(first.body["text"])
        return dict(first.body)

    def fail(self, found: Verdict) -> WorkerError:
        """Stop everything, and keep why."""
        with self._turn:
            if self.failure is not None:
                return self.failure
            error = found.error(self.job)
            self.failure = error
            self._turn.notify_all()
        self.close()
        return error

    def close(self) -> None:
        """End every process, and wait until they are gone."""
        with self._turn:
            first, self._closed = not self._closed, True
            self._turn.notify_all()
        if first:
            self.job.leave(self._line.send, self.failure is not None)
            if self.failure is None:
                with self._turn:
                    self._turn.wait_for(self.job.all_ended, self.limits.leave)
        self.job.end()
        if first:
            self._line.close()

    # --- output --------------------------------------------------------------------------------

    def show_output(self) -> None:
        """Print what ranks have printed, marked with their numbers."""
        lines = self.job.take_output()
        if not self.quiet:
            show(lines)

    # --- other threads -------------------------------------------------------------------------

    def _changed(self) -> None:
        with self._turn:
            self._turn.notify_all()

    def _received(self, sender: bytes, message: Message) -> None:
        rank = self._names.get(sender)
        if rank is None:
            self.job.take(message)
            self._changed()
            return
        if message.kind == "told":
            self.job.note({**message.body, "rank": rank})
            self._changed()
            return
        state = self.ranks[rank]
        if message.kind != "where":  # said by another thread than the one that may hang
            state.alive_at = time.monotonic()
        with self._turn:
            pending = self._pending.get(message.id)
            if message.kind in ("reply", "failed"):
                state.gpu_memory = int(message.body.get("gpu", state.gpu_memory))
                if state.running and pending is not None:
                    state.does("ready")
            if message.kind == "hello":
                state.pid = int(message.body["pid"])
                self.job.note_doing(rank, "here")
            if message.kind == "progress" and not message.body[1]:
                self.job.note_doing(rank, str(message.body[2]))
            if pending is not None:
                pending.take(rank, message)
            elif message.kind == "reply" and rank == 0:
                self._drop(message)
            self._turn.notify_all()

    def _drop(self, message: Message) -> None:
        """Nobody waits for this answer any more: rank 0 need not keep what it is about."""
        result = message.body["result"]
        parts = result.get("steps", [result]) if isinstance(result, dict) else []
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict) and isinstance(part.get("number"), int):
                self._line.send(Message("drop", 0, {"trace": part["number"]}), rank_name(0))


def _tell_progress(watch: Watch, pending: Pending) -> None:
    told, pending.progress = pending.progress, None
    if told is not None:
        with contextlib.suppress(RunCancelled):  # the caller looks at the watch next
            watch.progress(*told)
