"""A job on the network says nothing to a peer without its key, and one with it does no harm."""

from __future__ import annotations

import contextlib
import json
import socket as bare
import time

import pytest
import torch
import zmq

import lensview as lv
from lensview.bridge.connection import JobKeys
from lensview.bridge.line import Line
from lensview.bridge.wire import TO_KERNEL, TO_RANKS, Message, frames

from .jobs import Job

pytestmark = pytest.mark.ranks

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 11, 90]])
LATE = "model.layers.2"
LIMIT = 1 << 20


class Peer:
    """A bare socket that comes to a job with keys of its own."""

    def __init__(self, job: Job, **change: str) -> None:
        self._context = zmq.Context()
        body = {**json.loads(job.file.read_text()), **change}
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        if body["secret"]:
            self.socket.curve_serverkey = body["server"].encode()
            self.socket.curve_publickey = body["public"].encode()
            self.socket.curve_secretkey = body["secret"].encode()
        self.socket.linger = 0
        self.socket.identity = b"kernel-0"
        self.socket.connect(body["endpoint"])

    def __enter__(self) -> zmq.Socket[bytes]:
        return self.socket

    def __exit__(self, *args: object) -> None:
        self.socket.close()
        self._context.term()


ASK = frames(Message("attach", 0, {"version": lv.__version__, "name": "a stranger"}))


def test_without_the_key_nothing_is_told(one: Job) -> None:
    """No key, another key, the wrong server's key, and bytes that are no ZeroMQ at all."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other, _ = (key.decode() for key in zmq.curve_keypair())
    strangers = ({"secret": ""}, {"public": public, "secret": secret}, {"server": other})
    for change in strangers:
        with Peer(one, **change) as socket:
            socket.send_multipart([b"hub", *ASK])
            assert socket.poll(1500) == 0, change
    host, port = json.loads(one.file.read_text())["endpoint"].removeprefix("tcp://").split(":")
    with bare.create_connection((host, int(port))) as raw:
        raw.sendall(b"GET / HTTP/1.0\r\n\r\n" + bytes(range(256)) * 64)
        raw.settimeout(2)
        heard = b""
        with contextlib.suppress(OSError):
            while piece := raw.recv(4096):
                heard += piece
    assert len(heard) <= 64 and b"lensview" not in heard  # ZeroMQ's greeting, which names itself
    assert "a stranger" not in one.log()
    with one.attach() as session:
        session.ping()


@pytest.mark.full
def test_what_is_no_message_does_no_harm(one: Job) -> None:
    """… from a peer that has the key: garbage, kinds that are not for it, and a huge frame."""
    bad = [
        [b"hub", b"\x80\x04\x95"],
        [b"hub", *frames(Message("load", 0, {}))],
        [b"hub"],
        [b""],
        [b"rank-0", *frames(Message("stop", 0, None))],
        [b"rank-7", *frames(Message("ping", 0, {}))],
        [b"rank-0", b"[" * 100_000],
    ]
    with Peer(one) as socket:
        for parts in bad:
            socket.send_multipart(parts)
        socket.send_multipart([b"hub", *ASK])
        kinds = [""]
        while kinds[-1] != "attached":
            assert socket.poll(5000)
            kinds.append(json.loads(socket.recv_multipart()[-1])["kind"])
        assert set(kinds[1:-1]) == {"refused"}
    end = time.monotonic() + 10
    while "a stranger is gone" not in one.log():
        assert time.monotonic() < end, one.log()
        time.sleep(0.1)
    with one.attach() as session:
        assert session.trace(IDS, LATE)[LATE].shape == (2, 4, 16)


def test_an_oversized_frame_ends_its_sender() -> None:
    """Over TCP too; others are not disturbed."""
    keys = JobKeys()
    got: list[Message] = []
    line = Line("job", TO_KERNEL, lambda _, message: got.append(message), LIMIT)
    line.serve(keys, "tcp://127.0.0.1:0")
    way = keys.connection(line.endpoint, host="here", ranks=1, tp=1)
    peers = [Line("peer", TO_RANKS, lambda *_: None).join(way, f"rank-{i}") for i in range(2)]
    peers[0].send(Message("reply", 1, torch.zeros(LIMIT + 1, dtype=torch.uint8)))
    time.sleep(0.5)
    assert got == []
    peers[1].send(Message("reply", 2, torch.arange(1000)))
    end = time.monotonic() + 5
    while not got and time.monotonic() < end:
        time.sleep(0.01)
    assert torch.equal(got[0].body, torch.arange(1000))
    for peer in (*peers, line):
        peer.close()
