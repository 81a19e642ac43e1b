"""Attached: a job that a scheduler started, as a kernel that attaches to it knows it.

Owns the way to its hub (`hub.py`): asking to be let in, and noticing that nothing is heard any
more. What passes between the kernel and the ranks then is what passes in a launched job.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

from ..errors import WorkerError
from ..version import VERSION
from .connection import JobConnection, private_folder
from .hub import HUB
from .job import Job
from .line import Line, Received
from .wire import TO_KERNEL, Message

BEAT_SECONDS = 15.0
BEAT_LOOKS = 100
"""How often one has looked in vain for a sign of the hub, before it is taken to be gone: a kernel
that did something else meanwhile has only not listened."""


class Attached(Job):
    """A job elsewhere. It lives on when the kernel leaves.

    Args:
        file: the connection file.
        address: where the job is met from here, ``tcp://host:port``, if not where the file says.
        patience: seconds in which the job has to answer.

    Attributes:
        busy: by rank, the number of the command that a kernel before left behind.
    """

    def __init__(self, file: Path, address: str, patience: float) -> None:
        self.connection = JobConnection.read(file)
        if address:
            self.connection = replace(self.connection, endpoint=address)
        super().__init__(self.connection.ranks, self.connection.tp)
        self.remedy = "see the job's output; where it runs, session.restart() attaches to it anew"
        self.busy: dict[int, int] = {}
        self.folder = private_folder()
        self._file = file
        self._patience = patience
        self._answered = Event()
        self._refused = ""
        self._in = False
        self._over = ""
        self._heard_at = time.monotonic()
        self._looks = 0

    def open(self, received: Received) -> Line:
        """Ask the hub to be let in.

        Raises:
            WorkerError: nobody answers, or the hub refuses.
        """
        name = f"kernel-{secrets.token_hex(8)}"
        line = Line("kernel", TO_KERNEL, received).join(self.connection, name, routes=True)
        try:
            about = f"{getpass.getuser()}@{socket.gethostname()}, process {os.getpid()}"
            line.send(Message("attach", 0, {"version": VERSION, "name": about}), HUB)
            if not self._answered.wait(self._patience):
                raise WorkerError(
                    f"Nobody answers at {self.connection.endpoint}, where {self._file} says that a "
                    f"job is met, within {self._patience:.0f} s. The job has ended and left the "
                    "file behind, or its machine cannot be reached from here: look at the job; "
                    "through a tunnel, give address='tcp://localhost:PORT'."
                )
            if not self.attached:
                raise WorkerError(f"The job of {self._file} lets nobody in: {self._refused}.")
        except BaseException:
            line.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return line

    def take(self, message: Message) -> None:
        """Take what the hub said."""
        self._heard_at, self._looks = time.monotonic(), 0
        if message.kind == "attached":
            self._take_in(message.body)
            self.attached = True
        elif message.kind == "refused":
            self._refused = str(message.body)
        if message.kind != "beat":
            self._answered.set()

    def _take_in(self, body: Any) -> None:
        self.first = int(body["first"])
        self.busy = {int(rank): int(number) for rank, number in body["busy"].items()}
        for state, told in zip(self.ranks, body["ranks"], strict=True):
            state.lines.extend(map(str, told.pop("lines", ())))
            state.pid = int(told.get("pid", 0))
            self.note({**told, "rank": state.rank})

    @property
    def lost(self) -> str:  # type: ignore[override]
        """Why nothing is heard any more; asked again and again while one waits."""
        if self.attached and self._refused:
            return f"The job has let go of this kernel: {self._refused}."
        self._looks += 1
        silent = time.monotonic() - self._heard_at
        if self._looks > BEAT_LOOKS and silent > BEAT_SECONDS:
            return (
                f"Nothing was heard of rank 0's machine ({self.connection.host}) for {silent:.0f} "
                "s: it has ended, or cannot be reached any more."
            )
        return ""

    def leave(self, send: Callable[[Message, bytes], None], failed: bool) -> None:
        """Detach; a job in which a rank has failed is ended."""
        if self._over or (failed and not self.lost):
            body = {"code": 0 if self._over else 1, "why": self._over or "a rank has failed"}
            send(Message("over", 0, body), HUB)
        else:
            send(Message("detach"), HUB)

    def ask_to_end(self, why: str) -> None:
        """Have `leave` end the job."""
        self._over = why

    def all_ended(self) -> bool:
        """There is nothing to wait for: the ranks live on, or their launcher ends them."""
        return True

    def end(self) -> bool:
        """Let go of what is kept here."""
        shutil.rmtree(self.folder, ignore_errors=True)
        return True
