"""Job: the ranks' processes as the kernel knows them.

Owns what was heard of each rank: its process, its memory, its output. Where that comes from is
`processes.py`'s (a job that this process started) and `attached.py`'s (one that a scheduler did).
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .line import Line, Received
from .wire import Message

LAST_LINES = 40
"""Lines of output that are kept of each rank."""
END = "\x1d"


@dataclass(eq=False)
class RankState:
    """One rank as the kernel knows it.

    Attributes:
        rank: its number.
        pid: of its process; 0 until it has come.
        doing: in a word or a few: "starting", "ready", "trace", …
        since: when it began to.
        running: whether that is a command.
        exit: its exit status once it has ended; negative is the number of a signal.
        ended_at: when that was told.
        stopped_at: since when it is stopped (SIGSTOP), by the kernel's clock; None where it is not.
        alive_at: when it last computed or said something.
        gone: why nothing is heard of it any more, where its end was not; else "".
        host: its machine, where that was told.
        memory: bytes of its process.
        gpu_memory: bytes that it held on its GPU after its last command.
        lines: its last lines of output.
    """

    rank: int
    pid: int = 0
    doing: str = "starting"
    since: float = field(default_factory=time.monotonic)
    running: bool = False
    exit: int | None = None
    ended_at: float = 0.0
    stopped_at: float | None = None
    alive_at: float = field(default_factory=time.monotonic)
    gone: str = ""
    host: str = ""
    memory: int = 0
    gpu_memory: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def does(self, doing: str, running: bool = False) -> None:
        """It does this from now on."""
        if (self.doing, self.running) != (doing, running):
            self.doing, self.running, self.since = doing, running, time.monotonic()


class Job(ABC):
    """What is known of a job's processes. `changed` is called whenever something is heard.

    Attributes:
        ranks: one state per rank.
        groups: the numbers of the ranks that hold one model together, for each copy of it.
        folder: of this process alone, for as long as the job is.
        launcher: the last lines of torchrun itself.
        gone: set once every process has ended.
        lost: why nothing is heard of the ranks any more; "" while something is.
        remedy: what to do when the ranks are gone, as a sentence.
        first: the number that no command has yet.
        attached: whether its ranks have loaded their model without being told to.
    """

    folder: Path
    remedy = "call session.restart(), or launch again"
    lost = ""
    first = 1
    attached = False

    def __init__(self, size: int, tp: int) -> None:
        self.ranks = [RankState(rank) for rank in range(size)]
        self.groups = [range(first, first + tp) for first in range(0, size, tp)]
        self.launcher: deque[str] = deque(maxlen=LAST_LINES)
        self.gone = threading.Event()
        self.changed: Callable[[], None] = lambda: None
        self._unshown: deque[tuple[int | None, str]] = deque(maxlen=10_000)
        self._ended = [0] * size

    @abstractmethod
    def open(self, received: Received) -> Line:
        """Reach the ranks; what they say goes to `received`."""

    @abstractmethod
    def leave(self, send: Callable[[Message, bytes], None], failed: bool) -> None:
        """Say over the line that it will be closed."""

    @abstractmethod
    def end(self) -> bool:
        """Let go of every process; whether that is done."""

    def take(self, message: Message) -> None:  # noqa: B027 - few jobs have anybody else
        """Take what another than a rank said."""

    def all_ended(self) -> bool:
        """Whether every rank's process has ended."""
        return self.gone.is_set() or all(r.exit is not None or r.gone for r in self.ranks)

    def take_output(self) -> list[tuple[int | None, str]]:
        """What ranks printed since the last call: (rank, line); rank None is torchrun."""
        taken = []
        while self._unshown:
            taken.append(self._unshown.popleft())
        return taken

    def note_doing(self, rank: int, doing: str) -> None:
        """Say what a rank is doing, for whoever waits for it."""
        self.ranks[rank].does(doing)
        self._unshown.append((rank, doing))

    def output_is_complete(self, number: int, ranks: Iterable[int]) -> bool:
        """Whether the output of those of `ranks` that live is here, for a command."""
        alive = [n for n in ranks if self.ranks[n].exit is None and not self.ranks[n].gone]
        return self.gone.is_set() or all(self._ended[rank] >= number for rank in alive)

    def note(self, told: dict[str, Any]) -> None:
        """Take what a guard said."""
        rank = told.get("rank")
        state = self.ranks[rank] if isinstance(rank, int) and rank < len(self.ranks) else None
        if state is not None and "host" in told:
            state.host = str(told["host"])
        if "line" in told:
            self._note_line(state, str(told["line"]))
        elif state is not None and isinstance(code := told.get("exit"), int):
            state.exit, state.ended_at = code, time.monotonic()
            state.does(ended_how(code))
        elif state is not None and "gone" in told:
            state.gone, state.ended_at = str(told["gone"]), time.monotonic()
            state.does("gone")
        elif state is not None and "state" in told:
            now = time.monotonic()
            stopped = str(told.get("state", "")) in ("T", "t")
            state.stopped_at = (state.stopped_at or now) if stopped else None
            state.memory = int(str(told.get("rss", 0)))
            state.alive_at = now

    def _note_line(self, state: RankState | None, line: str) -> None:
        line, mark, number = line.partition(END)
        if mark and state is not None and number.isdigit():
            self._ended[state.rank] = int(number)
            if not line:
                return
        (self.launcher if state is None else state.lines).append(line)
        self._unshown.append((None if state is None else state.rank, line))
        if state is not None:
            state.alive_at = time.monotonic()


def rank_name(rank: int) -> bytes:
    """How a rank is called on a line."""
    return f"rank-{rank}".encode()


def ended_how(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
