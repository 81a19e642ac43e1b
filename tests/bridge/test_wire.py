"""Messages arrive whole or not at all, and only from peers with the key."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

import lensview as lv
from lensview.bridge.connection import Connection, new_connection, private_folder
from lensview.bridge.line import Line
from lensview.bridge.wire import TO_KERNEL, TO_RANKS, Message, WireError, frames, message_of

LIMIT = 1 << 20


class Kernel:
    """A kernel's end of the line that keeps what it receives."""

    def __init__(self, folder: Path) -> None:
        self.connection = new_connection(folder)
        self.got: list[tuple[bytes, Message]] = []
        self._news = threading.Event()
        self.line = Line("kernel", TO_KERNEL, self._take, LIMIT).serve(
            self.connection, self.connection.endpoint
        )

    def _take(self, sender: bytes, message: Message) -> None:
        self.got.append((sender, message))
        self._news.set()

    def next(self) -> Message:
        assert self._news.wait(5)
        self._news.clear()
        return self.got[-1][1]


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    folder = private_folder()
    kernel = Kernel(folder)
    yield kernel
    kernel.line.close()
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()


def join(kernel: Kernel, got: list[Message] | None = None, name: str = "rank-0") -> Line:
    taken: list[Message] = [] if got is None else got
    line = Line("line", TO_RANKS, lambda _, message: taken.append(message))
    return line.join(kernel.connection, name)


VALUES: dict[str, Any] = {
    "nothing": None,
    "numbers": [1, -2.5, True, float("inf"), float("-inf"), 1 << 70],
    "containers": {"a": (1, [2, (3,)]), 5: {"b": None}, ("x", 1): "y"},
    "dtype": torch.bfloat16,
    "bytes": b"\x00\xff",
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_as_they_are(name: str) -> None:
    assert round_trip(VALUES[name]) == VALUES[name]


def round_trip(value: Any) -> Any:
    parts = [zmq.Frame(bytes(part)) for part in frames(Message("reply", 7, value))]
    message = message_of(parts, TO_KERNEL)
    assert (message.kind, message.id) == ("reply", 7)
    return message.body


@pytest.mark.parametrize(
    "dtype",
    "float32 float64 float16 bfloat16 int8 uint8 int64 bool complex64 float8_e4m3fn".split(),
)
def test_tensors_come_back_bit_for_bit(dtype: str) -> None:
    kind = getattr(torch, dtype)
    bits = torch.arange(48, dtype=torch.uint8)
    bits = bits % 2 if dtype == "bool" else bits
    for tensor in (
        bits.view(kind),
        bits.view(kind)[:4].reshape(2, 2).T,
        bits.view(kind)[0],
        torch.empty(0, 3, dtype=kind),
    ):
        back = round_trip({"x": tensor})["x"]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        raw, want = (t.contiguous().reshape(-1).view(torch.uint8) for t in (back, tensor))
        assert torch.equal(raw, want)


def test_nan_and_its_kin() -> None:
    assert round_trip(float("nan")) != round_trip(float("nan"))
    assert round_trip(lv.Args(1, x=2)).kwargs == {"x": 2}


def test_what_cannot_travel_is_refused_by_name() -> None:
    with pytest.raises(lv.InputError, match="A Thread cannot be sent"):
        frames(Message("reply", 0, [threading.Thread()]))
    with pytest.raises(lv.InputError, match="sparse"):
        frames(Message("reply", 0, torch.eye(3).to_sparse()))


BAD: dict[str, list[bytes]] = {
    "nothing": [],
    "no JSON": [b"\x80\x04\x95"],
    "no message": [b"[]"],
    "an unknown kind": [json.dumps({"kind": "exec", "id": 0, "body": 0, "tensors": []}).encode()],
    "a kind of the other side": [
        json.dumps({"kind": "trace", "id": 0, "body": 0, "tensors": []}).encode()
    ],
    "a missing tensor": [
        json.dumps({"kind": "reply", "id": 0, "body": 0, "tensors": [["float32", [2]]]}).encode()
    ],
    "a short tensor": [
        json.dumps({"kind": "reply", "id": 0, "body": 0, "tensors": [["float32", [2]]]}).encode(),
        b"1234",
    ],
    "a negative shape": [
        json.dumps({"kind": "reply", "id": 0, "body": 0, "tensors": [["int8", [-2, -2]]]}).encode(),
        b"1234",
    ],
    "an unknown dtype": [
        json.dumps({"kind": "reply", "id": 0, "body": 0, "tensors": [["object", [4]]]}).encode(),
        b"1234",
    ],
    "a value of no kind": [
        json.dumps({"kind": "reply", "id": 0, "body": {"code": "1"}, "tensors": []}).encode()
    ],
    "a tensor that is not there": [
        json.dumps({"kind": "reply", "id": 0, "body": {"tensor": 3}, "tensors": []}).encode()
    ],
    "depth": [b'{"kind": "reply", "id": 0, "tensors": [], "body": ' + b"[" * 9000 + b"]" * 9000],
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_message_is_dropped(name: str, kernel: Kernel) -> None:
    with pytest.raises(WireError):
        message_of([zmq.Frame(part) for part in BAD[name]], TO_KERNEL)
    with peer(kernel.connection, kernel.connection.key) as socket:
        socket.send_multipart(BAD[name] or [b""])
        socket.send_multipart(frames(Message("hello", 1, "after it")))
        assert kernel.next().body == "after it"
    assert kernel.line.refused == 1


class peer:
    """A bare socket that comes with a key."""

    def __init__(self, connection: Connection, key: str | None) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        if key is not None:
            self._socket.plain_username = b"rank"
            self._socket.plain_password = key.encode()
        self._socket.linger = 0
        self._socket.identity = b"rank-1"
        self._socket.connect(connection.endpoint)

    def __enter__(self) -> zmq.Socket[bytes]:
        return self._socket

    def __exit__(self, *args: object) -> None:
        self._socket.close()
        self._context.term()


@pytest.mark.parametrize("key", [None, "0" * 64, "rank"])
def test_without_the_key_nothing_comes_and_nothing_is_told(key: str | None, kernel: Kernel) -> None:
    with peer(kernel.connection, key) as socket:
        socket.send_multipart(frames(Message("hello", 1, "let me in")))
        kernel.line.send(Message("ping", 1, "secret"), b"rank-1")
        assert socket.poll(1000) == 0
    assert kernel.got == []
    got: list[Message] = []
    line = join(kernel, got)
    line.send(Message("hello", 1, "with the key"))
    assert kernel.next().body == "with the key"
    kernel.line.send(Message("ping", 2, torch.ones(3)), b"rank-0")
    end = time.monotonic() + 5
    while not got and time.monotonic() < end:
        time.sleep(0.01)
    assert torch.equal(got[0].body, torch.ones(3))
    line.close()


def test_an_oversized_frame_ends_its_sender(kernel: Kernel) -> None:
    honest = join(kernel)
    with peer(kernel.connection, kernel.connection.key) as socket:
        socket.send_multipart(
            frames(Message("reply", 1, torch.zeros(LIMIT + 1, dtype=torch.uint8)))
        )
        time.sleep(0.5)
    assert kernel.got == []
    honest.send(Message("reply", 1, torch.zeros(1000)))
    assert kernel.next().body.shape == (1000,)
    honest.close()


def test_the_connection_is_for_its_owner_alone() -> None:
    folder = private_folder()
    connection = new_connection(folder)
    file = folder / "connection.json"
    connection.write(file)
    try:
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
        assert Connection.read(file) == connection
        assert len(connection.key) == 64 and connection.key != new_connection(folder).key
        assert len(connection.endpoint) < 100
        with pytest.raises(FileExistsError):
            connection.write(file)
    finally:
        file.unlink()
        folder.rmdir()
