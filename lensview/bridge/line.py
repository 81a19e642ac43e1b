"""Line: a socket and the thread that it belongs to.

Owns sending from any thread, and receiving. Where it leads and who is let in is `connection.py`'s;
what a message is, is `wire.py`'s.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from .wire import Message, WireError, frames, message_of

MAX_FRAME = 16 << 30
"""Bytes of one tensor; a peer that sends more is cut off."""
LINGER_MS = 2000

Received = Callable[[bytes, Message], None]
Parts = list[Any]
"""The frames of a message, not looked into."""


class Door(Protocol):
    """Who is let in: see `connection.py`."""

    def admit(self, socket: zmq.Socket[bytes], keeper: Any) -> None:
        """Let peers with the key into a socket that others come to."""


class Way(Protocol):
    """Where a line leads: see `connection.py`."""

    @property
    def endpoint(self) -> str:
        """As ZeroMQ writes it."""

    def show(self, socket: zmq.Socket[bytes]) -> None:
        """Show the key with a socket that comes."""


class Line:
    """One socket and the thread that it belongs to; `send` is for any thread.

    The thread sleeps until there is something to send or to receive. Messages that are none are
    dropped, and counted in `refused`.
    """

    def __init__(
        self, name: str, kinds: frozenset[str], received: Received, max_frame: int = MAX_FRAME
    ) -> None:
        self.refused = 0
        self.endpoint = ""
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
        self._unreachable: Callable[[bytes], None] | None = None
        self._thread = threading.Thread(target=self._loop, name=f"lensview {name}", daemon=True)

    def serve(
        self, door: Door, at: str, unreachable: Callable[[bytes], None] | None = None
    ) -> Line:
        """Be the side that others come to, if they have the key.

        Args:
            at: where to be met; ``endpoint`` has it with the port that the system chose.
            unreachable: called on the line's thread when a message is for a peer that is not, or
                not any more, connected; without it such messages are dropped.
        """
        self._keeper = ThreadAuthenticator(self._context)
        self._keeper.start()
        socket = self._open(zmq.ROUTER)
        door.admit(socket, self._keeper)
        socket.zap_domain = b"lensview"
        socket.linger = 0 if unreachable is None else LINGER_MS
        socket.router_mandatory = unreachable is not None
        self._unreachable = unreachable
        socket.bind(at)
        self.endpoint = str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        self._routes = True
        self._thread.start()
        return self

    def join(self, way: Way, identity: str, *, routes: bool = False) -> Line:
        """Be a side that comes, under a name of its own.

        Args:
            routes: what is met passes messages on: each has the name of whom it is to or from.
        """
        socket = self._open(zmq.DEALER)
        way.show(socket)
        socket.identity = identity.encode()
        socket.linger = LINGER_MS
        socket.connect(way.endpoint)
        self._routes = routes
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
        self.pass_on(to, frames(message))

    def pass_on(self, to: bytes, parts: Parts) -> None:
        """Send the frames of a message as they are."""
        self._out.put((to, parts))
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
            try:
                self._socket.send_multipart([to, *parts] if self._routes else parts, copy=False)
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH or self._unreachable is None:
                    raise
                self._unreachable(to)

    def _receive_all(self) -> None:
        assert self._socket is not None
        while True:
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sender = parts.pop(0).bytes if self._routes else b""
            try:
                self._take(sender, parts)
            except WireError:
                self.refused += 1
            except Exception:
                traceback.print_exc(file=sys.stderr)

    def _take(self, sender: bytes, parts: Parts) -> None:
        self._received(sender, message_of(parts, self._kinds))
