"""What captures leave in memory: nothing, by the count of the operating system too."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn

import lensview as lv

STATM = Path("/proc/self/statm")
IDS = torch.arange(64)[None].expand(4, 64)


def resident() -> int:
    """Bytes of this process in memory."""
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.skipif(not STATM.exists(), reason="this system has no /proc")
def test_two_hundred_captures_leave_resident_memory_flat(tiny_llama: nn.Module) -> None:
    """Each holds 0.9 MB: the 160 measured ones would be 150 MB if they stayed, without a single
    forced collection."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # nothing here is worth two, and waiting for one is slow
    held = 0
    for _ in range(40):
        trace = lv.trace(tiny_llama, IDS, ["**", "**:input"])
        held = sum({t.data_ptr(): t.nbytes for t in trace.values()}.values())
    assert held > 900_000
    gc.disable()
    try:
        before = resident()
        for _ in range(160):
            lv.trace(tiny_llama, IDS, ["**", "**:input"])
        grown = resident() - before
    finally:
        gc.enable()
        torch.set_num_threads(threads)
    assert grown < 16 << 20, f"{grown / 2**20:.1f} MiB"
