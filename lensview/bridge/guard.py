"""Guard: a small process beside each process of the bridge, which ends it when the kernel is gone.

Owns the watch over what must not outlive the kernel, from outside any interpreter that may be busy
or stopped: its standard input is a pipe whose other end is the kernel's alone, so the kernel's
death, however it came, is the end of that pipe. It also marks what a rank prints, and tells how
the rank is and how it ended. It imports the standard library alone and nothing of this package: it
must be up in milliseconds, long before the process that it guards has imported torch.

Run as a script, in one of two roles::

    guard.py all FOLDER COMMAND …    the whole job: no descendant outlives it, FOLDER is removed
    guard.py rank COMMAND …          one rank; RANK is in the environment

What it writes to its standard output, one per line after `MARK`, is JSON: ``{"rank", "line"}``,
``{"rank", "state", "cpu", "rss"}`` or ``{"rank", "exit"}`` (negative: the signal's number).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time

MARK = b"\x1e"
LINE = 600
"""Bytes of one message's text: written as JSON it stays below what a pipe takes in one piece."""
LOOK_SECONDS = 1.0
CPU_SECONDS = 0.05
"""How much processor time between two looks is told: a process that waits uses less."""
REAP_SECONDS = 9.0


def main(arguments: list[str]) -> int:
    """Guard what the arguments say; the exit status is that of what was guarded."""
    role, *rest = arguments
    wake, written = os.pipe()
    for end in (wake, written):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(written)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    if role == "all":
        return _guard_all(rest[0], rest[1:], wake)
    return _guard_rank(int(os.environ.get("RANK", "0")), rest, wake)


# --- the whole job ----------------------------------------------------------------------------


def _guard_all(folder: str, command: list[str], wake: int) -> int:
    _adopt_orphans()
    ending = [False]
    signal.signal(signal.SIGTERM, lambda *_: ending.__setitem__(0, True))
    started = subprocess.Popen(command, start_new_session=True)
    code = None
    poller = _poller(wake)
    try:
        while code is None and not ending[0]:
            events = dict(poller.poll(LOOK_SECONDS * 1000))
            _drain(wake)
            code = started.poll()
            if 0 in events:
                break
    finally:
        _end_descendants(started.pid)
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if code is None else code & 0xFF


def _adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, where the system has that."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def _end_descendants(group: int) -> None:
    end = time.monotonic() + REAP_SECONDS
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)
    while time.monotonic() < end:
        for pid in _descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _descendants() -> list[int]:
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit() and (fields := _stat(int(name))) is not None:
            parents[int(name)] = int(fields[1])
    found: list[int] = []
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found += layer
    return found


# --- one rank ---------------------------------------------------------------------------------


def _guard_rank(rank: int, command: list[str], wake: int) -> int:
    out, into = os.pipe()
    worker = subprocess.Popen(command, stdout=into, stderr=into, process_group=0)
    os.close(into)
    os.set_blocking(out, False)
    signal.signal(signal.SIGTERM, lambda *_: _end_group(worker.pid))
    poller = _poller(wake)
    poller.register(out, select.POLLIN)
    lines = _Lines(rank)
    looked, before = 0.0, ("", 0.0, 0)
    while not _has_ended(worker.pid):
        events = dict(poller.poll(LOOK_SECONDS * 1000))
        _drain(wake)
        if 0 in events:
            poller.unregister(0)
            _end_group(worker.pid)
        if out in events and not lines.take(out):
            poller.unregister(out)
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            now = _state(worker.pid)
            if now[0] != before[0] or now[1] - before[1] >= CPU_SECONDS:
                _say({"rank": rank, "state": now[0], "cpu": now[1], "rss": now[2]})
            before = now
    # Its own children must not hold its output open; the group's number is not free until reaped.
    _end_group(worker.pid)
    code = worker.wait()
    lines.take(out)
    lines.end()
    _say({"rank": rank, "exit": code})
    if code < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


class _Lines:
    """The output of a rank, told line by line."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._rest = b""

    def take(self, out: int) -> bool:
        """Tell what there is to read; false at its end."""
        while True:
            try:
                piece = os.read(out, 1 << 16)
            except BlockingIOError:
                return True
            if not piece:
                return False
            *whole, self._rest = (self._rest + piece).split(b"\n")
            for line in whole:
                self._tell(line)
            if len(self._rest) > 64 * LINE:
                self.end()

    def end(self) -> None:
        """Tell the last line, which has no end."""
        if self._rest:
            self._tell(self._rest)
            self._rest = b""

    def _tell(self, line: bytes) -> None:
        # A progress bar writes over its own line; a reader of lines wants its last state.
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        for start in range(0, max(1, len(line)), LINE):
            text = line[start : start + LINE].decode("utf-8", "backslashreplace")
            _say({"rank": self._rank, "line": text})


def _has_ended(pid: int) -> bool:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, pid, flags) is not None


def _end_group(group: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signal.SIGKILL)


def _state(pid: int) -> tuple[str, float, int]:
    """The process's state as one letter (T: stopped), its processor time in seconds, its bytes."""
    fields = _stat(pid)
    if fields is None:
        return "", 0.0, 0
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    # A thread that computes or waits is no news; one that is stopped is.
    return (
        fields[0] if fields[0] in "TtZX" else "",
        cpu,
        int(fields[21]) * os.sysconf("SC_PAGESIZE"),
    )


# --- both -------------------------------------------------------------------------------------


def _stat(pid: int) -> list[str] | None:
    """The fields of a process from its state on; the name before them may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().decode("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None


def _poller(wake: int) -> select.poll:
    poller = select.poll()
    poller.register(0, 0)  # its end is told unasked
    poller.register(wake, select.POLLIN)
    return poller


def _drain(wake: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(wake, 4096):
            pass


def _say(message: dict[str, object]) -> None:
    # When nobody reads any more, the end of standard input tells what to do.
    with contextlib.suppress(OSError):
        os.write(1, MARK + json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
