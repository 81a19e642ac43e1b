"""What the bridge costs: an empty command, a tensor's way here, a trace beside its forward.

    python -m benchmarks.bridge [--repeats 30] [--megabytes 64]

Starts a tiny llama over two ranks on this machine. Times are medians; the transfer is beside the
same bytes over bare pyzmq between two processes, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import zmq

import lensview as lv
from lensview.bridge.remote import RemoteTrace

WIDTH = 128
ECHO = """
import sys, zmq, numpy
socket = zmq.Context().socket(zmq.REP)
socket.connect(sys.argv[1])
data = numpy.zeros(int(sys.argv[2]), dtype=numpy.uint8)
while True:
    socket.recv()
    socket.send(data, copy=False)
"""


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes, once."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def tiny(folder: Path) -> None:
    """A llama of four small layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def transfer(session: lv.RankSession, megabytes: int, repeats: int) -> tuple[float, float]:
    """Bytes per second of a record and of bare pyzmq."""
    tokens = 256
    rows = (megabytes << 20) // (tokens * WIDTH * 4)
    trace = session.trace(torch.ones(rows, tokens, dtype=torch.long), "model.layers.3")
    assert isinstance(trace, RemoteTrace)
    size = trace["model.layers.3"].nbytes
    body = {"trace": trace.number, "sites": ["model.layers.3"]}
    with tempfile.TemporaryDirectory() as place:
        endpoint = f"ipc://{place}/bare"
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.REQ)
        socket.bind(endpoint)
        other = subprocess.Popen([sys.executable, "-c", ECHO, endpoint, str(size)])
        try:

            def bare() -> None:
                socket.send(b"")
                socket.recv(copy=False)

            bare()
            pairs = [
                (seconds(lambda: session._read("fetch", body)), seconds(bare))
                for _ in range(repeats)
            ]
        finally:
            other.kill()
            other.wait()
            socket.close(0)
    ours, raw = (statistics.median(side) for side in zip(*pairs, strict=True))
    return size / ours, size / raw


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        tiny(Path(place))
        begun = time.perf_counter()
        with lv.launch(place, tp=2, quiet=True) as session:
            started = time.perf_counter() - begun
            session.ping()
            empty = statistics.median(seconds(session.ping) for _ in range(options.repeats))
            ids = torch.ones(1, 64, dtype=torch.long)
            runs = {}
            for name, sites in {"lm_head alone": "lm_head", "every module": "**"}.items():
                session.trace(ids, sites)
                runs[name] = statistics.median(
                    seconds(lambda sites=sites: session.trace(ids, sites))  # type: ignore[misc]
                    for _ in range(options.repeats)
                )
            ours, raw = transfer(session, options.megabytes, options.repeats)
            stopped = seconds(session.stop)
    rows = [
        ("start of two ranks", f"{started:.1f} s"),
        ("an empty command", f"{empty * 1e3:.2f} ms"),
        *((f"a trace of {name}", f"{took * 1e3:.1f} ms") for name, took in runs.items()),
        (f"a tensor of {options.megabytes} MiB", f"{ours / 2**20:.0f} MiB/s"),
        ("the same over bare pyzmq", f"{raw / 2**20:.0f} MiB/s, ratio {ours / raw:.2f}"),
        ("stop", f"{stopped:.1f} s"),
    ]
    for name, value in rows:
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
