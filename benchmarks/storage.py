"""What saving and loading a trace costs beside raw safetensors, in one interleaved run.

    python -m benchmarks.storage [--rounds 9] [--tokens 256] [--folder .]

Prints one table. Both write the same tensors to the same disk and read every byte back. A trace is
written to be there after a power cut (fsync), so its peer is safetensors followed by fsync; without
it is shown beside. Ratios are medians over rounds in which every way ran once, in an order of
chance. Needs the demo model.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import lensview as lv

TARGET = 0.8
"""At least so much of the peer's speed."""
DISK = 1.01
"""At most so many bytes for each byte of tensors."""


def synced(path: Path) -> None:
    """Wait until a file is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def ways(trace: lv.Trace, folder: Path) -> dict[str, Callable[[], object]]:
    """Each thing that is timed. What is loaded is read in whole, by a sum over its bits."""
    tensors = dict(trace)

    def raw_save(*, sync: bool) -> None:
        save_file(tensors, folder / "raw")
        if sync:
            synced(folder / "raw")

    def read_whole(values: object) -> int:
        assert isinstance(values, list)
        return sum(int(v.view(torch.int32).sum()) for v in values)

    return {
        "safetensors, save": lambda: raw_save(sync=False),
        "safetensors, save + fsync": lambda: raw_save(sync=True),
        "lensview, save": lambda: trace.save(folder / "ours"),
        "safetensors, load": lambda: read_whole([*load_file(folder / "raw").values()]),
        "lensview, load": lambda: read_whole([*lv.load(folder / "ours").values()]),
        "lensview, load one site": lambda: read_whole([lv.load(folder / "ours")[trace.sites[9]]]),
    }


def measure(timed: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way per round; the first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in timed}
    for round_ in range(rounds + 1):
        saves = [n for n in timed if "save" in n]
        loads = [n for n in timed if "load" in n]
        for names in (saves, loads):
            random.Random(round_).shuffle(names)
            for name in names:
                os.sync()
                start = time.perf_counter()
                timed[name]()
                if round_:
                    times[name].append(time.perf_counter() - start)
    return times


def main(arguments: list[str]) -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--folder", default=None, help="where the files go; default: temporary")
    options = parser.parse_args(arguments)
    model, _ = lv.demo()
    torch.manual_seed(0)
    ids = torch.randint(0, 49_000, (1, options.tokens))
    # A value that passes at several sites is stored once by a trace, and refused by safetensors:
    # here each is taken at one.
    distinct = {t.data_ptr(): site for site, t in lv.trace(model, ids, "**").items()}
    trace = lv.trace(model, ids, distinct.values())
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        folder = Path(place)
        times = measure(ways(trace, folder), options.rounds)
        ours, raw = ((folder / n).stat().st_size for n in ("ours", "raw"))
    theory = sum(t.nbytes for t in trace.values())
    theory += 0 if trace.logits is None else trace.logits.nbytes
    print(f"{len(trace)} sites, {theory / 1e6:.0f} MB of values, {torch.get_num_threads()} threads")
    print(f"{'':28}{'median ms':>10}{'MB/s':>9}{'speed / peer':>14}  target")
    failed = False
    peers = {
        "lensview, save": "safetensors, save + fsync",
        "lensview, load": "safetensors, load",
    }
    for name, seconds in times.items():
        median = statistics.median(seconds)
        size = raw if name.startswith("safetensors") else ours
        rate = "" if "one site" in name else f"{size / median / 1e6:.0f}"
        shown = ""
        if peer := peers.get(name):
            speed = statistics.median(b / a for a, b in zip(seconds, times[peer], strict=True))
            failed |= speed < TARGET
            shown = f"{speed:14.2f}  {TARGET} {'met' if speed >= TARGET else 'MISSED'}"
        print(f"{name:28}{median * 1e3:10.1f}{rate:>9}{shown}")
    ratio = ours / theory
    failed |= ratio > DISK
    met = "met" if ratio <= DISK else "MISSED"
    print(f"on disk / values: {ratio:.4f}  {DISK} {met}  (raw safetensors {raw / theory:.4f})")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
