"""Rank: what every rank runs, ``python -m lensview.bridge.rank --connection FILE``.

Owns the rank's threads: the main one runs commands one after the other, in step with the other
ranks; one answers what can be read beside a run; one belongs to the line to the kernel. Commands
come to each rank from the kernel itself, so that between commands no rank waits in a collective,
and all of them sleep. What commands do is in `commands.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import traceback
import warnings
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..errors import IdleInterventionError
from .commands import READS, RUNS, Commands
from .connection import Connection
from .line import Line
from .steps import Steps
from .summary import error_body
from .wire import TO_RANKS, Message

END = "\x1d"
"""Before the number of a command, in a rank's output: what it printed for it is complete."""


class Worker:
    """One rank: its line to the kernel and its two queues."""

    def __init__(self, connection: Connection, folder: Path, rank: int) -> None:
        self._rank = rank
        self._commands = Commands(rank, folder)
        self._runs: SimpleQueue[Message] = SimpleQueue()
        self._reads: SimpleQueue[Message] = SimpleQueue()
        self._steps: dict[int, Steps] = {}
        self._line = Line("line", TO_RANKS, self._received).join(connection, f"rank-{rank}")

    def run(self) -> None:
        """Do what the kernel says until it says stop."""
        self._line.send(Message("hello", 0, {"rank": self._rank, "pid": os.getpid()}))
        threading.Thread(target=self._read, name="lensview read", daemon=True).start()
        while (message := self._runs.get()).kind != "stop":
            self._do(message)
            _end_output(message.id)
        self._line.close()

    # --- the line's thread -----------------------------------------------------------------------

    def _received(self, _: bytes, message: Message) -> None:
        if message.kind in READS:
            self._reads.put(message)
        elif message.kind == "where":
            self._line.send(Message("where", message.id, self._where(message.id)))
        elif message.kind in ("pause", "go", "end"):
            steps = self._steps.get(message.id)
            if steps is not None and message.kind == "pause":
                steps.pause()
            elif steps is not None:
                (steps.go if message.kind == "go" else steps.end)(int(message.body))
        else:
            if message.kind in RUNS:
                self._steps[message.id] = self._new_steps(message.id)
            self._runs.put(message)

    def _new_steps(self, number: int) -> Steps:
        def stands(count: int) -> None:
            self._line.send(Message("paused", number, count))

        def progress(done: int, total: int, text: str) -> None:
            self._line.send(Message("progress", number, (done, total, text)))

        return Steps(stands, progress)

    def _where(self, number: int) -> dict[str, Any]:
        """Where the main thread is, for a kernel that has waited for long."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        steps = self._steps.get(number)
        stack = "".join(traceback.format_stack(frame)[-12:]) if frame else ""
        return {"stack": stack, "count": steps.count if steps else 0}

    # --- the main thread -------------------------------------------------------------------------

    def _do(self, message: Message) -> None:
        self._commands.agreed = self._commands.planned = None
        steps = self._steps.get(message.id)
        with warnings.catch_warnings(record=True) as caught:
            try:
                if message.kind == "load":
                    result = self._commands.load(message.body, lambda t: self._say(message.id, t))
                else:
                    result = RUNS[message.kind](self._commands, message.body, steps)
                reply = Message("reply", message.id, {"result": result})
            except BaseException as error:  # whatever it was, the kernel is to know
                reply = self._failed(message, error)
        reply.body["agreed"] = self._commands.agreed
        reply.body["count"] = steps.count if steps else 0
        reply.body["warnings"] = [(w.category.__name__, str(w.message)) for w in caught]
        reply.body["gpu"] = _gpu_bytes()
        self._steps.pop(message.id, None)
        self._line.send(reply)

    def _failed(self, message: Message, error: BaseException) -> Message:
        body = error_body(error, self._commands.planned)
        if isinstance(error, IdleInterventionError):
            body["trace"] = error.trace
        return Message("failed", message.id, body)

    def _say(self, number: int, text: str) -> None:
        self._line.send(Message("progress", number, (0, 0, text)))

    # --- the reading thread ----------------------------------------------------------------------

    def _read(self) -> None:
        while True:
            message = self._reads.get()
            try:
                result = READS[message.kind](self._commands, message.body)
                reply = Message("reply", message.id, {"result": result})
                self._line.send(reply)
            except Exception as error:
                self._line.send(Message("failed", message.id, error_body(error, None)))


def _gpu_bytes() -> int:
    import torch

    return torch.cuda.memory_reserved() if torch.cuda.is_available() else 0


def _end_output(number: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by a function of the user's
            stream.flush()
    os.write(1, f"{END}{number}\n".encode())


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def main() -> None:
    """Serve the kernel that the connection file names."""
    parser = argparse.ArgumentParser(prog="lensview.bridge.rank")
    parser.add_argument("--connection", required=True, help="the file that the kernel wrote")
    path = Path(parser.parse_args().connection)
    Worker(Connection.read(path), path.parent, int(os.environ.get("RANK", "0"))).run()
    # Threads of libraries, and a process group whose other ranks are gone, must not hold the exit.
    leaving = threading.Thread(target=_leave, daemon=True)
    leaving.start()
    leaving.join(2.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
