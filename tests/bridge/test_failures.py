"""A rank that fails in any way is one error, in time, and the processes are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lensview as lv
from lensview.bridge.processes import Processes
from lensview.bridge.session import RankSession

from . import faulty

pytestmark = pytest.mark.ranks

IDS = torch.tensor([[5, 17, 3, 9]])
LATE = "model.layers.2"
BOUND = 20.0


def prompt(fault: int) -> torch.Tensor:
    return torch.tensor([[fault, 17, 3, 9]])


def alive(pid: int) -> bool:
    """Whether a process is there; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    found, layer = [pid], [pid]
    while layer:
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", ",".join(map(str, layer))],
            capture_output=True,
            text=True,
            check=False,
        )
        layer = [int(word) for word in listed.stdout.split()]
        found += layer
    return found


def processes(session: RankSession) -> list[int]:
    job = session._team.job
    assert isinstance(job, Processes) and job._guard is not None
    guard = job._guard
    found = family(guard.pid)
    # Two guards of ranks, two ranks, torchrun, and the guard of all.
    assert {r.pid for r in session.ranks} <= set(found) and len(found) >= 6
    return found


def gone(pids: list[int], within: float) -> bool:
    end = time.monotonic() + within
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture(scope="module")
def _failing(folder: Path) -> Iterator[RankSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        session = lv.launch(
            "faulty:load",
            tp=2,
            device="cpu",
            options={"path": str(folder)},
            silent=15.0,
            env={"OMP_NUM_THREADS": "1"},
        )
        yield session
        session.stop()


@pytest.fixture
def failing(_failing: RankSession) -> RankSession:
    """A session whose rank 1 fails when told to; started anew where an earlier test broke it."""
    if "ready" not in repr(_failing):
        _failing.restart()
    return _failing


FAULTS: dict[str, tuple[int, str, int | None, bool]] = {
    "raises": (faulty.RAISE, "Rank 1 raised KeyError: .*lost on rank 1", None, True),
    "exits": (faulty.EXIT, "Rank 1 ended with exit code 9", 9, False),
    "is killed": (faulty.KILL, "Rank 1 was killed by SIGKILL", -9, True),
    "is stopped": (faulty.STOP, "Rank 1 is stopped", None, True),
    "sleeps": (faulty.SLEEP, "Rank 1 hangs", None, True),
    "spins": (faulty.SPIN, "Rank 1 hangs", None, True),
    "leaves": (faulty.OTHER, "Rank 1 raised SystemExit", None, True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.full] * f[3]) for n, f in FAULTS.items()]
)
def test_a_rank_that(failing: RankSession, name: str) -> None:
    fault, text, code, _ = FAULTS[name]
    pids = processes(failing)
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match=text) as caught:
        failing.trace(prompt(fault), LATE)
    took = time.monotonic() - begun
    print(f"\nA rank that {name}: told after {took:.1f} s")
    assert took < BOUND
    assert gone(pids, 0.5)
    error = caught.value
    assert (error.rank, error.exit_code) == (1, code)
    assert "restart()" in str(error)
    if fault == faulty.RAISE:
        assert "faulty.py" in error.remote_traceback and "about to raise" in str(error)
    if fault == faulty.EXIT:
        assert error.last_lines[1][-1] == "about to exit"
    if fault in (faulty.SLEEP, faulty.SPIN):
        assert "faulty.py" in error.remote_traceback
    with pytest.raises(lv.WorkerError, match=r"restart\(\)"):
        failing.trace(IDS, LATE)


def test_a_session_restarts_and_stops(failing: RankSession, local: lv.LocalSession) -> None:
    """Started anew after the failure of the test before, it gives the same values."""
    seen = failing.trace(IDS, LATE)
    assert torch.allclose(seen[LATE], local.trace(IDS, LATE)[LATE], 1e-4, 1e-5)
    pids = processes(failing)
    failing.stop()
    assert gone(pids, 0.0)
    assert not failing._team.job.folder.exists()
    failing.stop()
    with pytest.raises(lv.WorkerError, match="was stopped"):
        failing.ping()


@pytest.mark.full
def test_earlier_traces_are_gone_after_a_restart(
    failing: RankSession, local: lv.LocalSession
) -> None:
    before = failing.trace(IDS, [LATE, "lm_head"])
    looked_at = before["lm_head"]
    pids = processes(failing)
    failing.restart()
    assert gone(pids, 0.0)
    assert before["lm_head"] is looked_at
    with pytest.raises(lv.WorkerError, match="are gone"):
        before[LATE]
    seen = failing.trace(IDS, LATE)
    assert torch.allclose(seen[LATE], local.trace(IDS, LATE)[LATE], 1e-4, 1e-5)


@pytest.mark.full
def test_ranks_that_disagree(failing: RankSession) -> None:
    """Rank 1's model goes into train mode; nothing is run that one rank would run otherwise."""
    failing.trace(prompt(faulty.TRAIN), LATE)
    with pytest.raises(lv.WorkerError, match=r"RankDivergenceError.*train or eval mode"):
        failing.trace(IDS, LATE)


@pytest.mark.full
def test_a_rank_killed_between_commands(failing: RankSession) -> None:
    os.kill(failing.ranks[0].pid, signal.SIGKILL)
    time.sleep(3)
    with pytest.raises(lv.WorkerError, match="Rank 0 was killed by SIGKILL"):
        failing.trace(IDS, LATE)


@pytest.mark.full
def test_a_rank_that_computes_for_ever_is_told_of(
    failing: RankSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """It may be a long computation: so first a word, and an end only once it does not stop."""
    failing.trace(IDS, LATE)  # the first run looks at how the model is split, which takes a moment
    failing._team.limits = replace(failing._team.limits, notice=1.0, cancelled=2.0, silent=1800.0)
    watch = lv.Watch()
    threading.Timer(3.0, watch.cancel).start()
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match=r"Rank 1 hangs.*all were asked to stop") as caught:
        failing.trace(prompt(faulty.SPIN), LATE, watch=watch)
    assert 5.0 <= time.monotonic() - begun < BOUND
    assert "faulty.py" in caught.value.remote_traceback
    (told,) = [t for t in capfd.readouterr().err.splitlines() if t.startswith("lens: no module")]
    assert "rank 1 is at" in told and "faulty.py" in told and "rank 0 is at" not in told


@pytest.mark.full
def test_an_interrupt_comes_back_in_time(failing: RankSession) -> None:
    """Where all can stop alike, the session lives; where one cannot, the interrupt comes too."""
    slow = lv.call(LATE, source="def f(t):\n    import time\n    time.sleep(0.5)\n    return t")
    for inputs, alive_after in ((IDS, True), (prompt(faulty.SLEEP), False)):
        timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            failing.generate(inputs, LATE, slow, max_new_tokens=30)
        assert time.monotonic() - begun < 1.5 + 5
        if alive_after:
            seen = failing.trace(IDS, LATE)
            number = seen.number  # type: ignore[attr-defined]
            assert failing._read("fetch", {"trace": number, "sites": [LATE]})
        else:
            with pytest.raises(lv.WorkerError, match="Rank 1 hangs"):
                failing.trace(IDS, LATE)


KERNEL = """
import sys, time, threading, torch
import lensview as lv
session = lv.launch({path!r}, tp=2, device="cpu", options={options!r}, quiet=True)
guard = session._team.job._guard
print(guard.pid, session._team.job.folder, flush=True)
{then}
"""
BUSY = "while True: session.trace(torch.full((256, 60), 7), LATE)".replace("LATE", repr(LATE))


def start_kernel(folder: Path, then: str) -> tuple[subprocess.Popen[str], int, Path]:
    code = KERNEL.format(path="faulty:load", options={"path": str(folder)}, then=then)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    kernel = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert kernel.stdout is not None
    pid, place = kernel.stdout.readline().split()
    return kernel, int(pid), Path(place)


def sleeping_forever(fault: int) -> str:
    return f"session.trace(torch.tensor([[{fault}, 3, 9]]), 'lm_head')"


DEATHS: dict[str, tuple[str, Callable[[int], None], bool]] = {
    "killed, ranks busy": (BUSY, lambda pid: os.kill(pid, signal.SIGKILL), False),
    "killed, a rank stopped": (
        sleeping_forever(faulty.STOP),
        lambda pid: os.kill(pid, signal.SIGKILL),
        True,
    ),
    "killed, a rank spins": (
        sleeping_forever(faulty.SPIN),
        lambda pid: os.kill(pid, signal.SIGKILL),
        True,
    ),
    "ends by itself": ("time.sleep(1)", lambda pid: None, True),
    "ends by an error": ("raise SystemExit(3)", lambda pid: None, True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.full] * d[2]) for n, d in DEATHS.items()]
)
def test_when_the_kernel(folder: Path, name: str) -> None:
    """… everything is gone within 10 s, and what is not its own lives on."""
    then, end, _ = DEATHS[name]
    other = subprocess.Popen(["sleep", "600"])
    kernel, guard, place = start_kernel(folder, then)
    try:
        time.sleep(1.0)
        pids = family(guard)
        assert not name.startswith("killed") or (len(pids) >= 6 and kernel.poll() is None)
        end(kernel.pid)
        kernel.wait(10)
        begun = time.monotonic()
        assert gone(pids, 10.0)
        while place.exists() and time.monotonic() - begun < 10.0:
            time.sleep(0.05)
        print(f"\nThe kernel {name}: all gone after {time.monotonic() - begun:.2f} s")
        assert not place.exists()
        assert other.poll() is None
    finally:
        kernel.kill()
        other.kill()


def test_a_load_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(lv.LensError, match="returned a str"):
        lv.launch("faulty:not_a_model", tp=1, device="cpu", quiet=True)


@pytest.mark.full
def test_a_load_that_fails_on_one_rank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    options = {"path": str(folder), "fail": 1}
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match="no weights on rank 1") as caught:
        lv.launch("faulty:load", tp=2, device="cpu", options=options, quiet=True)
    assert caught.value.rank == 1
    assert time.monotonic() - begun < 60
    with pytest.raises(OSError, match="nowhere"):
        lv.launch("/nowhere/at/all", tp=2, device="cpu", quiet=True)


@pytest.mark.full
def test_time_between_commands_does_not_count(folder: Path, local: lv.LocalSession) -> None:
    """A group whose collectives time out after 5 s, idle for 12."""
    with lv.launch(folder, tp=2, device="cpu", timeout=5.0, quiet=True) as session:
        session.trace(IDS, LATE)
        time.sleep(12)
        seen = session.trace(IDS, LATE)
        assert torch.allclose(seen[LATE], local.trace(IDS, LATE)[LATE], 1e-4, 1e-5)
