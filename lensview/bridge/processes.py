"""Processes: torchrun and its ranks, as the kernel starts, hears and ends them.

Owns the pipes: the one whose end tells every process that the kernel is gone (`guard.py` watches
it), and the one through which the ranks' output comes, whose end tells that all of them are gone.
What ranks say over the wire is `team.py`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import guard

LAST_LINES = 40
"""Lines of output that are kept of each rank."""
ENDING_SECONDS = 10.0
END = "\x1d"


@dataclass(eq=False)
class RankState:
    """One rank as the kernel knows it.

    Attributes:
        rank: its number.
        pid: of its process; 0 until it has come.
        doing: in a word or a few: "starting", "ready", …
        exit: its exit status once it has ended; negative is the number of a signal.
        ended_at: when that was told.
        stopped_at: since when it is stopped (SIGSTOP), by the kernel's clock; None where it is not.
        alive_at: when it last computed or said something.
        memory: bytes of its process.
        lines: its last lines of output.
    """

    rank: int
    pid: int = 0
    doing: str = "starting"
    exit: int | None = None
    ended_at: float = 0.0
    stopped_at: float | None = None
    alive_at: float = field(default_factory=time.monotonic)
    memory: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))


class Processes:
    """A job of torchrun. `changed` is called on a thread of its own whenever something is heard.

    Attributes:
        ranks: one state per rank.
        launcher: the last lines of torchrun itself.
        gone: set once every process has ended.
    """

    def __init__(self, size: int, changed: Callable[[], None]) -> None:
        self.ranks = [RankState(rank) for rank in range(size)]
        self.launcher: deque[str] = deque(maxlen=LAST_LINES)
        self.gone = threading.Event()
        self._changed = changed
        self._unshown: deque[tuple[int | None, str]] = deque(maxlen=10_000)
        self._ended = [0] * size
        self._guard: subprocess.Popen[bytes] | None = None
        self._lifeline = Lifeline()

    def start(self, worker: list[str], folder: Path, env: Mapping[str, str]) -> None:
        """Start the ranks, each running `worker`, in fresh interpreters."""
        alone = [sys.executable, "-I", "-S", "-u", guard.__file__]
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
            *(f"--nproc-per-node={len(self.ranks)}", "--max-restarts=0", "--monitor-interval=0.1"),
        ]
        watched = self._lifeline.watched
        try:
            self._guard = subprocess.Popen(
                [*alone, "all", str(folder), *torchrun, *alone, "rank", *worker],
                stdin=watched,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(env),
            )
        finally:
            os.close(watched)
        weakref.finalize(self, self._lifeline.cut)
        threading.Thread(target=self._hear, name="lensview output", daemon=True).start()

    def end(self) -> bool:
        """End every process, and wait until they are gone; whether they are."""
        self._lifeline.cut()
        if self._guard is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(ENDING_SECONDS)
        return self.gone.wait(1.0)

    def all_ended(self) -> bool:
        """Whether every rank's process has ended."""
        return self.gone.is_set() or all(rank.exit is not None for rank in self.ranks)

    def take_output(self) -> list[tuple[int | None, str]]:
        """What ranks printed since the last call: (rank, line); rank None is torchrun."""
        taken = []
        while self._unshown:
            taken.append(self._unshown.popleft())
        return taken

    def note_doing(self, rank: int, doing: str) -> None:
        """Say what a rank is doing, for whoever waits for it."""
        self.ranks[rank].doing = doing
        self._unshown.append((rank, doing))

    def output_is_complete(self, number: int) -> bool:
        """Whether every living rank's output for a command is here."""
        alive = [r.rank for r in self.ranks if r.exit is None]
        return self.gone.is_set() or all(self._ended[rank] >= number for rank in alive)

    # --- the output's thread ---------------------------------------------------------------------

    def _hear(self) -> None:
        assert self._guard is not None and self._guard.stdout is not None
        with self._guard.stdout as stream:
            for told in heard(stream):
                self._note(told)
                self._changed()
        self._guard.wait()
        self.gone.set()
        self._changed()

    def _note(self, told: dict[str, Any]) -> None:
        rank = told.get("rank")
        state = self.ranks[rank] if isinstance(rank, int) and rank < len(self.ranks) else None
        if "line" in told:
            self._note_line(state, str(told["line"]))
        elif state is not None and isinstance(code := told.get("exit"), int):
            state.exit, state.ended_at = code, time.monotonic()
            state.doing = ended_how(code)
        elif state is not None:
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


def heard(stream: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """What guards wrote, from the lines of their output; any other line as ``{"line"}`` alone."""
    for raw in stream:
        before, mark, told = raw.rstrip(b"\n").rpartition(guard.MARK)
        if before or not mark:
            yield {"line": (before if mark else told).decode("utf-8", "backslashreplace")}
        if mark:
            try:
                yield json.loads(told)
            except ValueError:
                yield {"line": told.decode("utf-8", "backslashreplace")}


def ended_how(code: int) -> str:
    """An exit status in words."""
    import signal

    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class Lifeline:
    """A pipe whose one end is this process's alone; with it, what watches the other end ends.

    Attributes:
        watched: the end for the processes that watch.
    """

    def __init__(self) -> None:
        self.watched, held = os.pipe()
        # The number is given to another file as soon as it is closed: it is closed once.
        self._held = [held]
        _lifelines.add(self)

    def cut(self) -> None:
        """Let go of it; what watches it ends."""
        with contextlib.suppress(IndexError):
            os.close(self._held.pop())


_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _cut_in_child() -> None:
    # A forked child of the kernel must not keep the ranks alive after it.
    for line in list(_lifelines):
        line.cut()


os.register_at_fork(after_in_child=_cut_in_child)
