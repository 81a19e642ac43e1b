"""How sessions begin and end beside each other."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import lensview as lv

from .test_failures import IDS, KERNEL, LATE, alive, gone, processes

pytestmark = [pytest.mark.ranks, pytest.mark.full]


def test_two_sessions_at_once(folder: Path, local: lv.LocalSession) -> None:
    """Neither takes the other's port, and one lives on when the other fails."""
    expected = local.trace(IDS, LATE)[LATE]
    with (
        lv.launch(folder, tp=2, device="cpu", quiet=True) as one,
        lv.launch(folder, tp=1, device="cpu", quiet=True) as two,
    ):
        for session in (one, two):
            assert torch.allclose(session.trace(IDS, LATE)[LATE], expected, 1e-4, 1e-5)
        os.kill(one.ranks[1].pid, signal.SIGKILL)
        with pytest.raises(lv.WorkerError, match="Rank 1 was killed"):
            one.trace(IDS, LATE)
        assert torch.allclose(two.trace(IDS, LATE)[LATE], expected, 1e-4, 1e-5)


def test_a_session_that_is_dropped_ends(folder: Path) -> None:
    session = lv.launch(folder, tp=1, device="cpu", quiet=True)
    place, pids = session._team.job.folder, [rank.pid for rank in session.ranks]
    assert all(map(alive, pids))
    del session
    gc.collect()
    assert gone(pids, 10.0)
    end = time.monotonic() + 5
    while place.exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not place.exists()


def test_an_interrupted_launch_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    before = set(folder.parent.glob("*"))
    teams: list[object] = []
    from lensview.bridge import launch as launching

    def interrupt() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            for team in list(launching._teams):
                if not team.closed and all(r.doing.startswith("calling") for r in team.ranks):
                    teams.extend(processes(_Holder(team)))  # type: ignore[arg-type]
                    os.kill(os.getpid(), signal.SIGINT)
                    return
            time.sleep(0.1)

    threading.Thread(target=interrupt).start()
    options = {"path": str(folder), "sleep": 600.0}
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lv.launch("faulty:load", tp=2, device="cpu", options=options, quiet=True)
    print(f"\nAn interrupted launch: {time.monotonic() - begun:.1f} s in all")
    assert len(teams) >= 6 and gone(teams, 0.5)  # type: ignore[arg-type]
    assert set(folder.parent.glob("*")) == before


class _Holder:
    """What `processes` looks at of a session, of one that is not there yet."""

    def __init__(self, team: object) -> None:
        self._team = team

    @property
    def ranks(self) -> object:
        return self._team.ranks  # type: ignore[attr-defined]


FORKED = """
pid = __import__("os").fork()
if not pid:
    time.sleep(60)
print(pid, flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_ranks(folder: Path) -> None:
    """… nor does it end them when it ends."""
    code = KERNEL.format(path=str(folder), options={}, then=FORKED)
    root = str(Path(__file__).parents[2])
    kernel = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert kernel.stdout is not None
    guard = int(kernel.stdout.readline().split()[0])
    child = int(kernel.stdout.readline())
    try:
        kernel.kill()
        kernel.wait()
        assert alive(child)
        assert gone([guard], 10.0)
    finally:
        os.kill(child, signal.SIGKILL)
