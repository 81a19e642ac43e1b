"""What the tests of datasets share: workers as processes, and the comparison of two datasets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import lensview as lv

HERE = Path(__file__).parent


def start(folder: Path, *arguments: str, rank: int = 0, workers: int = 1) -> subprocess.Popen[str]:
    """A worker of `extract.py`, once it is ready to begin."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "extract.py"), str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(workers),
        },
    )
    return process


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.communicate())


def finish(folder: Path, *arguments: str, workers: int = 1) -> None:
    """Workers to their end, which must be a good one."""
    started = [start(folder, *arguments, rank=r, workers=workers) for r in range(workers)]
    for process in started:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, out + err


def assert_equal(one: lv.ActivationDataset, other: lv.ActivationDataset) -> None:
    """Row for row, bit for bit."""
    assert len(one) == len(other)
    assert one.keys() == other.keys()
    assert one.sites == other.sites
    assert one.skipped == other.skipped and one.truncated == other.truncated
    for i in range(len(one)):
        mine, theirs = one[i], other[i]
        assert mine.keys() == theirs.keys()
        for site in mine:
            assert mine[site].dtype == theirs[site].dtype
            assert torch.equal(mine[site], theirs[site]), (i, site)
        assert torch.equal(one.tokens(i), other.tokens(i))
