"""Hub: where kernels attach to a job that a scheduler started.

Owns who is attached (one kernel at a time), what it has to know of the ranks, and when the job
ends. It runs beside rank 0, in the process that tends it (`tender.py`), so that it answers whatever
the rank does. Messages pass through it unread, but for their headings.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..version import VERSION
from .connection import JobKeys
from .job import END, LAST_LINES, rank_name
from .line import Parts
from .relay import Relay, heading, renumbered
from .wire import LONG, TO_HUB, TO_KERNEL, TO_RANKS, Message, WireError, frames, message_of

LOAD = 1
"""The number of the load, which no kernel asked for."""
NUMBERS = 1 << 32
"""How many commands a kernel may give before its numbers meet the next one's."""
JOIN_SECONDS = 120.0
LOST_SECONDS = 3.0
FAILED_SECONDS = 6.0
"""How long a job lives on whose load has failed, for its other ranks to say how."""
HUB = b"hub"


@dataclass(eq=False)
class Known:
    """What a kernel that comes later has to know of one rank."""

    told: dict[str, Any] = field(default_factory=dict)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    load: Parts | None = None
    asked: int | None = None
    busy: int = 0
    here: bool = False
    lost_at: float | None = None
    failed_at: float | None = None


class Hub:
    """The middle of a job.

    Args:
        size: how many ranks there are.
        own: takes a message to rank 0.
        unattended: seconds without a kernel after which the job ends; 0 for never.

    Attributes:
        endpoint: where it is met.
        over: the exit status that the job ends with, once it does, and why.
    """

    def __init__(
        self, keys: JobKeys, size: int, own: Callable[[Parts], None], unattended: float
    ) -> None:
        self.over: tuple[int, str] | None = None
        self.endpoint = ""
        self._keys = keys
        self._own = own
        self._unattended = unattended
        self._ranks = [Known() for _ in range(size)]
        self._ranks[0].here = True
        self._kernel: bytes | None = None
        self._about = ""
        self._seen_at = time.monotonic()
        self._began = time.monotonic()
        self._attached = 0
        self._turn = threading.RLock()
        self._line = Relay("hub", self._taken)

    def open(self, host: str) -> None:
        """Be met at an address of this machine; the port is the system's choice."""
        self._line.serve(self._keys, f"tcp://{host}:0", self._unreachable)
        self.endpoint = self._line.endpoint

    def close(self) -> None:
        """Send what is left, and be met no more."""
        self._line.close()

    # --- from ranks ------------------------------------------------------------------------------

    def from_rank(self, rank: int, parts: Parts) -> None:
        """Take what a rank, or who tends it, said."""
        kind, number = heading(parts)
        if kind not in TO_KERNEL:
            raise WireError(f"A rank does not say {kind!r:.40}.")
        with self._turn:
            known = self._ranks[rank]
            known.here, known.lost_at = True, None
            if kind == "hello":
                known.told["pid"] = message_of(parts, TO_KERNEL).body["pid"]
            if kind == "told":
                self._note(known, dict(message_of(parts, TO_KERNEL).body))
            if number == LOAD:
                if kind in ("reply", "failed"):
                    known.load = [bytes(part) for part in parts]
                    known.failed_at = time.monotonic() if kind == "failed" else None
                    self._say_ready()
                if known.asked is None:
                    return
                parts = renumbered(parts, known.asked)
            elif kind in ("reply", "failed") and number == known.busy:
                known.busy = 0
            self._to_kernel(rank_name(rank), parts)

    def _note(self, known: Known, told: dict[str, Any]) -> None:
        line = told.pop("line", None)
        if isinstance(line, str) and (not (parts := line.partition(END))[1] or parts[0]):
            known.lines.append(parts[0])
        known.told.update(told)

    def _say_ready(self) -> None:
        answers = [k.load for k in self._ranks]
        if all(a is not None and heading(a)[0] == "reply" for a in answers):
            self._seen_at = time.monotonic()
            print("lens: the model is loaded; it can be attached to", flush=True)

    def _to_kernel(self, sender: bytes, parts: Parts) -> None:
        if self._kernel is not None:
            self._line.pass_on(self._kernel, [sender, *parts])

    def _say(self, to: bytes, message: Message) -> None:
        self._line.pass_on(to, [HUB, *frames(message)])

    # --- from peers on the network ---------------------------------------------------------------

    def _taken(self, sender: bytes, parts: Parts) -> None:
        """On the line's thread: a message of a peer that has shown the key."""
        for rank in range(1, len(self._ranks)):
            if sender == rank_name(rank):
                self.from_rank(rank, parts)
                return
        if not parts:
            raise WireError("A message to nobody.")
        to, rest = bytes(parts[0]), parts[1:]
        with self._turn:
            if to == HUB:
                self._asked(sender, message_of(rest, TO_HUB))
            elif sender != self._kernel:
                self._say(sender, Message("refused", 0, self._why_not()))
            else:
                self._seen_at = time.monotonic()
                self._command(to, rest)

    def _command(self, to: bytes, parts: Parts) -> None:
        kind, number = heading(parts)
        if kind not in TO_RANKS or kind == "stop":
            raise WireError(f"A kernel does not say {kind!r:.40} to a rank.")
        for rank, known in enumerate(self._ranks):
            if to == rank_name(rank):
                if kind == "load":
                    known.asked = number
                    if known.load is not None:
                        self._to_kernel(to, renumbered(known.load, number))
                    return
                if kind in LONG:
                    known.busy = number
                self._to_rank(rank, parts)

    def _to_rank(self, rank: int, parts: Parts) -> None:
        if rank:
            self._line.pass_on(rank_name(rank), parts)
        else:
            self._own(parts)

    def _asked(self, sender: bytes, message: Message) -> None:
        if message.kind == "attach":
            self._attach(sender, dict(message.body))
        elif sender == self._kernel and message.kind == "detach":
            print(f"lens: {self._about} has left", flush=True)
            self._leave()
        elif sender == self._kernel:
            self.end(int(message.body["code"]), str(message.body["why"]))

    def _attach(self, sender: bytes, body: dict[str, Any]) -> None:
        why = ""
        if body.get("version") != VERSION:
            why = f"it runs lensview {VERSION}, and you {body.get('version')!s:.40}"
        elif self.over is not None:
            why = f"it is ending: {self.over[1]}"
        elif self._kernel not in (None, sender):
            why = self._why_not()
        if why:
            self._say(sender, Message("refused", 0, why))
            return
        self._kernel, self._about = sender, str(body.get("name"))[:200]
        self._seen_at = time.monotonic()
        self._attached += 1
        print(f"lens: {self._about} has come", flush=True)
        for known in self._ranks:
            known.asked = None
        busy = {rank: known.busy for rank, known in enumerate(self._ranks) if known.busy}
        told = [{**known.told, "lines": list(known.lines)} for known in self._ranks]
        about = {"first": self._attached * NUMBERS, "busy": busy, "ranks": told}
        self._say(sender, Message("attached", 0, about))

    def _why_not(self) -> str:
        return (
            f"{self._about} is attached to it" if self._kernel else "it does not hear you any more"
        )

    def _leave(self) -> None:
        self._kernel, self._seen_at = None, time.monotonic()
        self._own(frames(Message("drop", 0, {"trace": None})))

    def _unreachable(self, peer: bytes) -> None:
        with self._turn:
            if peer == self._kernel:
                print(f"lens: {self._about} is gone", flush=True)
                self._leave()
            for rank, known in enumerate(self._ranks):
                if peer == rank_name(rank) and known.here and known.lost_at is None:
                    known.lost_at = time.monotonic()

    # --- as time goes by -------------------------------------------------------------------------

    def tick(self) -> None:
        """Call it each second: see who is still there."""
        with self._turn:
            now = time.monotonic()
            if self._kernel is not None:
                self._say(self._kernel, Message("beat"))
            for rank, known in enumerate(self._ranks[1:], 1):
                if known.here:
                    self._line.send(Message("beat"), rank_name(rank))
                gone = known.lost_at is not None and now - known.lost_at > LOST_SECONDS
                if gone or (not known.here and now - self._began > JOIN_SECONDS):
                    host = known.told.get("host")
                    self.lose(rank, f"its machine{f' ({host})' if host else ''} does not answer")
            if any(k.failed_at and now - k.failed_at > FAILED_SECONDS for k in self._ranks):
                self.end(1, "the model could not be loaded")
            alone = now - self._seen_at if self._kernel is None else 0.0
            if 0 < self._unattended < alone and all(k.load for k in self._ranks):
                self.end(0, f"nobody has been attached for {alone:.0f} s")

    def lose(self, rank: int, why: str) -> None:
        """A rank is gone: tell the kernel, and end the job."""
        self._to_kernel(rank_name(rank), frames(Message("told", 0, {"gone": why})))
        self.end(1, f"rank {rank} is gone: {why}")

    def end(self, code: int, why: str) -> None:
        """End the job: every rank is told."""
        if self.over is None:
            self.over = (code, why)
            print(f"lens: the job ends: {why}", flush=True)
            if self._kernel is not None:
                self._say(self._kernel, Message("refused", 0, f"it ends: {why}"))
            for rank in range(1, len(self._ranks)):
                if self._ranks[rank].here:
                    self._line.send(Message("over", 0, {"code": code, "why": why}), rank_name(rank))
