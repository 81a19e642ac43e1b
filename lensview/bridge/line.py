"""Line: where the kernel and the ranks meet.

Owns the private folder, the connection file with its key, and a socket with the thread that it
belongs to. Nothing is read from a peer that has not shown the key, and it is told nothing: it is
refused in ZeroMQ's handshake, before any message. What a message is, is `wire.py`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from .wire import Message, WireError, frames, message_of

MAX_FRAME = 16 << 30
"""Bytes of one tensor; a peer that sends more is cut off."""


@dataclass(frozen=True)
class Connection:
    """Where the kernel is met, and the key that a rank has to show."""

    endpoint: str
    key: str

    def write(self, path: Path) -> None:
        """Leave it in a file that the owner alone can read."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"endpoint": self.endpoint, "key": self.key}, file)

    @classmethod
    def read(cls, path: str | Path) -> Connection:
        """What `write` left."""
        body = json.loads(Path(path).read_text("utf-8"))
        return cls(body["endpoint"], body["key"])


def private_folder() -> Path:
    """A new folder for the owner alone, with a name short enough for a socket in it."""
    place = tempfile.gettempdir()
    if len(place) > 60 and os.path.isdir("/tmp"):
        place = "/tmp"
    return Path(tempfile.mkdtemp(prefix="lensview-", dir=place))


def new_connection(folder: Path) -> Connection:
    """A place to meet in `folder`, with a key of its own."""
    return Connection(f"ipc://{folder / 'socket'}", secrets.token_hex(32))


# --- a socket and its thread ------------------------------------------------------------------

Received = Callable[[bytes, Message], None]


class Line:
    """One socket and the thread that it belongs to; `send` is for any thread.

    The thread sleeps until there is something to send or to receive. Messages that are none are
    dropped, and counted in `refused`.
    """

    def __init__(
        self, name: str, kinds: frozenset[str], received: Received, max_frame: int = MAX_FRAME
    ) -> None:
        self.refused = 0
        self._max_frame = max_frame
        self._kinds = kinds
        self._received = received
        self._out: SimpleQueue[tuple[bytes, list[Any]] | None] = SimpleQueue()
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)
        # Reentrant: a finalizer may send while its thread is sending.
        self._open_pipe = threading.RLock()
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._keeper: ThreadAuthenticator | None = None
        self._routes = False
        self._thread = threading.Thread(target=self._loop, name=f"lensview {name}", daemon=True)

    def serve(self, connection: Connection) -> Line:
        """Be the side that others come to, if they have the key."""
        self._keeper = ThreadAuthenticator(self._context)
        self._keeper.start()
        self._keeper.configure_plain(domain="lensview", passwords={"rank": connection.key})
        socket = self._open(zmq.ROUTER)
        socket.plain_server = True
        socket.zap_domain = b"lensview"
        socket.linger = 0
        socket.bind(connection.endpoint)
        self._routes = True
        self._thread.start()
        return self

    def join(self, connection: Connection, identity: str) -> Line:
        """Be a side that comes, under a name of its own."""
        socket = self._open(zmq.DEALER)
        socket.plain_username = b"rank"
        socket.plain_password = connection.key.encode()
        socket.identity = identity.encode()
        socket.linger = 2000
        socket.connect(connection.endpoint)
        self._thread.start()
        return self

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        self._socket = socket = self._context.socket(kind)
        socket.set_hwm(0)
        socket.maxmsgsize = self._max_frame
        return socket

    def send(self, message: Message, to: bytes = b"") -> None:
        """Send a message; to whom, where several have come.

        Raises:
            InputError: it holds something that cannot travel.
        """
        self._out.put((to, frames(message)))
        self._poke()

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._out.put(None)
        self._poke()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _poke(self) -> None:
        with self._open_pipe:
            if self._woken >= 0:
                with contextlib.suppress(BlockingIOError):  # it is awake already
                    os.write(self._woken, b"x")

    def _loop(self) -> None:
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        going = True
        while going:
            for source, _ in poller.poll():
                if source == self._wake:
                    going = self._send_all() and going
                else:
                    self._receive_all()
        self._socket.close()
        if self._keeper is not None:
            self._keeper.stop()
        self._context.term()
        with self._open_pipe:
            woken, self._woken = self._woken, -1
        os.close(self._wake)
        os.close(woken)

    def _send_all(self) -> bool:
        assert self._socket is not None
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                item = self._out.get_nowait()
            except Empty:
                return True
            if item is None:
                return False
            to, parts = item
            self._socket.send_multipart([to, *parts] if self._routes else parts, copy=False)

    def _receive_all(self) -> None:
        assert self._socket is not None
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = parts.pop(0).bytes if self._routes else b""
            try:
                self._received(sender, message_of(parts, self._kinds))
            except WireError:
                self.refused += 1
            except Exception:
                traceback.print_exc(file=sys.stderr)
