"""Processes: torchrun and its ranks, as the kernel starts, hears and ends them.

Owns the pipes: the one whose end tells every process that the kernel is gone (`guard.py` watches
it), and the one through which the ranks' output comes, whose end tells that all of them are gone.
What ranks say over the wire is `team.py`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import guard
from .connection import new_connection, private_folder
from .job import Job, rank_name
from .line import Line, Received
from .wire import TO_KERNEL, Message

ENDING_SECONDS = 10.0
ALONE = (sys.executable, "-I", "-S", "-u", guard.__file__)
"""Runs a guard, which needs nothing that is installed."""


class Processes(Job):
    """A job of torchrun that this process starts, and that ends with it."""

    def __init__(self, size: int, tp: int, env: Mapping[str, str]) -> None:
        super().__init__(size, tp)
        self.folder = private_folder()
        self._env = dict(env)
        self._guard: subprocess.Popen[bytes] | None = None
        self._lifeline = Lifeline()

    def open(self, received: Received) -> Line:
        """Start the ranks in fresh interpreters, and be where they come to."""
        connection = new_connection(self.folder)
        line = Line("kernel", TO_KERNEL, received).serve(connection, connection.endpoint)
        file = self.folder / "connection.json"
        connection.write(file)
        torchrun = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"),
            *(f"--nproc-per-node={len(self.ranks)}", "--max-restarts=0", "--monitor-interval=0.1"),
        ]
        watched = self._lifeline.watched
        try:
            self._guard = subprocess.Popen(
                [*ALONE, "all", str(self.folder), *torchrun, *ALONE, "rank", *rank_command(file)],
                stdin=watched,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self._env,
            )
        finally:
            os.close(watched)
        weakref.finalize(self, self._lifeline.cut)
        threading.Thread(target=self._hear, name="lensview output", daemon=True).start()
        return line

    def leave(self, send: Callable[[Message, bytes], None], failed: bool) -> None:
        """Ask every rank to end by itself, where none has failed."""
        for rank in () if failed else self.ranks:
            send(Message("stop"), rank_name(rank.rank))

    def end(self) -> bool:
        """End every process, and wait until they are gone; whether they are."""
        self._lifeline.cut()
        ended = True
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(ENDING_SECONDS)
            ended = self.gone.wait(1.0)
        shutil.rmtree(self.folder, ignore_errors=True)
        return ended

    # --- the output's thread ---------------------------------------------------------------------

    def _hear(self) -> None:
        assert self._guard is not None and self._guard.stdout is not None
        with self._guard.stdout as stream:
            for told in heard(stream):
                self.note(told)
                self.changed()
        self._guard.wait()
        self.gone.set()
        self.changed()


def rank_command(file: Path) -> list[str]:
    """What runs one rank, which comes to where `file` says."""
    return [sys.executable, "-u", "-m", "lensview.bridge.rank", "--connection", str(file)]


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
