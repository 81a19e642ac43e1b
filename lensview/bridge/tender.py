"""Tender: the process beside each rank of a job that a scheduler started.

Owns what a launching kernel does for its own ranks: it starts the rank, has it load the model,
hears its output and how it is, and ends it when the launcher (torchrun) or the rest of the job is
gone. It writes the rank's output to the job's, and passes messages between the rank and the hub,
which beside rank 0 is in this process. The rank itself is the one that `lensview.launch` starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import InputError, WorkerError
from .connection import JobConnection, JobKeys, new_connection, private_folder
from .hub import JOIN_SECONDS, LOAD, Hub
from .job import END, rank_name
from .line import Parts
from .processes import ALONE, Lifeline, heard, rank_command
from .relay import Relay, heading
from .wire import Message, frames

TICK_SECONDS = 1.0
BEAT_SECONDS = 15.0
"""How long the hub may be silent: it says something each second."""
LEAVE_SECONDS = 3.0


@dataclass(frozen=True)
class Asked:
    """What the command line says.

    Attributes:
        file: the connection file.
        spec: of the load, see `loading.py`.
        host: the address at which rank 0 is met; "" for that at which the launcher meets it.
        unattended: seconds without a kernel after which the job ends; 0 for never.
    """

    file: Path
    spec: Mapping[str, Any]
    host: str
    unattended: float


class Tender:
    """One rank's, from its start to its end."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._launcher = os.getppid()
        self._news = threading.Event()
        self._over: tuple[int, str] | None = None
        self._heard_at = time.monotonic()
        self._turn = threading.Lock()
        self._left: list[Parts] | None = []
        self._folder = private_folder()
        self._down = Relay("down", self._from_rank)
        self._up: Relay | None = None
        self._hub: Hub | None = None
        self._written: JobConnection | None = None
        self._lifeline = Lifeline()

    def run(self) -> int:
        """Serve until the job ends; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)
        try:
            guard = self._start()
            reaching = threading.Thread(target=self._reach, name="lensview reach", daemon=True)
            reaching.start()
            while self._over is None and guard.poll() is None:
                self._news.wait(TICK_SECONDS)
                self._news.clear()
                self._look()
            return self._end(guard)
        finally:
            self._lifeline.cut()
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- its beginning ---------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[bytes]:
        connection = new_connection(self._folder)
        file = self._folder / "connection.json"
        connection.write(file)
        self._down.serve(connection, connection.endpoint)
        watched = self._lifeline.watched
        guard = subprocess.Popen(
            [*ALONE, "rank", *rank_command(file)],
            stdin=watched,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(watched)
        threading.Thread(target=self._hear, args=(guard,), name="lensview output").start()
        return guard

    def _reach(self) -> None:
        """Be the hub, or come to it."""
        try:
            if self._rank:
                self._come()
            else:
                self._be_met()
        except Exception as error:  # whatever it was, this rank cannot be reached
            self._stop(1, f"rank {self._rank} cannot join the job: {error}")

    def _be_met(self) -> None:
        keys = JobKeys()
        host = self._asked.host or _own_address()
        hub = Hub(keys, self._size, self._to_rank, self._asked.unattended)
        hub.open(host)
        tp = int(self._asked.spec["tp"])
        connection = keys.connection(
            hub.endpoint, host=socket.gethostname(), ranks=self._size, tp=tp
        )
        self._hub, self._written = hub, connection
        connection.write(self._asked.file)
        self._told({"host": socket.gethostname()})
        self._flush()
        print(
            f"lens: rank 0 is at {hub.endpoint}; lensview.attach({str(self._asked.file)!r})",
            flush=True,
        )
        if self._size > 1:
            _store().set("job", keys.job)

    def _come(self) -> None:
        job = _store().get("job").decode()
        connection = self._find(job)
        up = Relay("up", self._from_hub)
        up.join(connection, rank_name(self._rank).decode())
        self._heard_at = time.monotonic()
        self._up = up
        self._told({"host": socket.gethostname()})
        self._flush()

    def _find(self, job: str) -> JobConnection:
        """This job's connection, once its file is seen here."""
        end = time.monotonic() + JOIN_SECONDS / 2
        why = "is of another job"
        while time.monotonic() < end:
            try:
                found = JobConnection.read(self._asked.file)
                if found.job == job:
                    return found
            except InputError as error:
                why = f"cannot be used: {error}"
            time.sleep(0.2)
        raise WorkerError(
            f"{self._asked.file} {why}. Rank 0 has written it on its own machine: let it lie in a "
            "folder that all machines of the job share.",
            self._rank,
        )

    # --- messages --------------------------------------------------------------------------------

    def _from_rank(self, _: bytes, parts: Parts) -> None:
        kind, _number = heading(parts)
        self._pass_up(parts)
        if kind == "hello":
            self._to_rank(frames(Message("load", LOAD, dict(self._asked.spec))))

    def _pass_up(self, parts: Parts) -> None:
        with self._turn:
            if self._left is not None:
                self._left.append(parts)
                return
        self._send_up(parts)

    def _send_up(self, parts: Parts) -> None:
        if self._hub is not None:
            self._hub.from_rank(0, parts)
        elif self._up is not None:
            self._up.pass_on(b"", parts)

    def _flush(self) -> None:
        """Send what was said before anybody could hear it."""
        with self._turn:
            left, self._left = self._left or [], None
            for parts in left:
                self._send_up(parts)

    def _told(self, told: dict[str, Any]) -> None:
        self._pass_up(frames(Message("told", 0, told)))

    def _to_rank(self, parts: Parts) -> None:
        self._down.pass_on(rank_name(self._rank), parts)

    def _from_hub(self, _: bytes, parts: Parts) -> None:
        self._heard_at = time.monotonic()
        kind, _number = heading(parts)
        if kind == "over":
            body = json.loads(bytes(parts[0]))["body"]
            said = {key: value for key, value in body["map"]}
            self._stop(int(said["code"]), str(said["why"]))
        elif kind != "beat":
            self._to_rank(parts)

    # --- how the rank is -------------------------------------------------------------------------

    def _hear(self, guard: subprocess.Popen[bytes]) -> None:
        assert guard.stdout is not None
        with guard.stdout as stream:
            for told in heard(stream):
                line = str(told.get("line", "")).partition(END)
                if "line" in told and (line[0] or not line[1]):
                    print(f"[rank {self._rank}] {line[0]}", flush=True)
                if self._over is None or "exit" not in told:
                    self._told(told)
        guard.wait()
        self._news.set()

    def _look(self) -> None:
        """What only time tells."""
        if os.getppid() != self._launcher:
            self._stop(1, f"its launcher (torchrun) on {socket.gethostname()} ended")
        elif self._hub is not None:
            self._hub.tick()
            if self._hub.over is not None:
                self._stop(*self._hub.over)
        elif self._up is not None and time.monotonic() - self._heard_at > BEAT_SECONDS:
            self._stop(1, "rank 0 does not answer")

    # --- its end ---------------------------------------------------------------------------------

    def _signalled(self, number: int, _: Any) -> None:
        # As a handler it may be anywhere in the main thread: it says nothing, and takes no lock.
        why = f"its launcher ended it by {signal.Signals(number).name}"
        self._over = self._over or (128 + number, why)
        self._news.set()

    def _stop(self, code: int, why: str) -> None:
        self._over = self._over or (code, why)
        self._news.set()

    def _end(self, guard: subprocess.Popen[bytes]) -> int:
        if self._over is None:
            code = guard.returncode
            code = 128 - code if code < 0 else code
            time.sleep(0.1)  # for its last words, which another thread passes on
            self._over = (code, f"rank {self._rank} ended with exit code {guard.returncode}")
        code, why = self._over
        if code:
            with contextlib.suppress(OSError):
                print(f"lens: rank {self._rank} ends: {why}", file=sys.stderr, flush=True)
        if code and guard.poll() is None:
            self._told({"gone": why})
        elif guard.poll() is None:
            self._to_rank(frames(Message("stop")))
            with contextlib.suppress(subprocess.TimeoutExpired):
                guard.wait(LEAVE_SECONDS)
        self._lifeline.cut()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(LEAVE_SECONDS)
        if self._hub is not None:
            self._hub.end(code, why)
            self._hub.close()
        for line in (self._up, self._down):
            if line is not None:
                line.close()
        if self._written is not None:
            self._remove_file(self._written.job)
        return code

    def _remove_file(self, job: str) -> None:
        with contextlib.suppress(InputError, OSError):
            if JobConnection.read(self._asked.file).job == job:
                self._asked.file.unlink()


def _own_address() -> str:
    """The address of this machine at which the launcher's other machines meet it."""
    master = os.environ.get("MASTER_ADDR", "localhost")
    with contextlib.suppress(OSError):
        kind, _, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            name = str(probe.getsockname()[0])
            return f"[{name}]" if ":" in name else name
    return "127.0.0.1"


def _store() -> Any:
    """The launcher's store; it holds the job's name, and no secret."""
    from torch.distributed import (  # type: ignore[attr-defined]
        PrefixStore,
        TCPStore,
    )

    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=JOIN_SECONDS)
    store = TCPStore(master, port, is_master=False, timeout=limit)
    return PrefixStore(f"lensview/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
