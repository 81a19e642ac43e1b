"""A job that torchrun agents hold is attached to, left, and found again; it ends when it should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lensview as lv

from .jobs import ROOT, Job
from .test_failures import family, gone

pytestmark = pytest.mark.ranks

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 11, 90]])
Q = "model.layers.1.self_attn.q_proj"
LATE = "model.layers.2"
SLOW = "def slow(t):\n    import time\n    time.sleep(0.5)\n    return t"


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5)


@pytest.fixture(scope="module")
def job(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Two agents, each with one rank, stand for two machines."""
    job = Job(tmp_path_factory.mktemp("job"), str(folder), nodes=2)
    yield job
    job.end()


def test_a_job_on_two_machines_is_a_session(job: Job, local: lv.LocalSession) -> None:
    with job.attach() as session:
        assert isinstance(session, lv.Session)
        assert session.title == local.title
        sites = ["**", "**:input"]
        seen, expected = session.trace(IDS, sites), local.trace(IDS, sites)
        assert seen.sites == expected.sites
        assert [s for s in expected.sites if not close(seen[s], expected[s])] == []
        assert len([row for row in session.tree() if row.path]) > 20
        prompt = "the big cat sat"
        edit = lv.scale(Q, 3.0)
        got, want = session.trace(prompt, LATE, edit), local.trace(prompt, LATE, edit)
        assert [(t.text, t.id) for t in got.top(3)] == [(t.text, t.id) for t in want.top(3)]
        made = session.generate(IDS, LATE, max_new_tokens=3)
        assert torch.equal(made.ids, lv.generate(local.root, IDS, LATE, max_new_tokens=3).ids)
        tile, known = session.tile(seen, Q, index=(1,)), local.tile(expected, Q, index=(1,))
        cells = [torch.frombuffer(bytearray(t.data), dtype=torch.float32) for t in (tile, known)]
        assert close(*cells)
    assert job.running(), job.log()


def test_one_kernel_at_a_time(job: Job, local: lv.LocalSession) -> None:
    session = job.attach()
    try:
        with pytest.raises(lv.WorkerError, match=rf"process {os.getpid()} is attached to it"):
            job.attach()
        assert close(session.trace(IDS, LATE)[LATE], local.trace(IDS, LATE)[LATE])
        before = session.trace(IDS, [LATE, Q])
    finally:
        session.stop()
    session.stop()
    with pytest.raises(lv.WorkerError, match=r"restart\(\)"):
        session.ping()
    session.restart()
    assert close(session.trace(IDS, LATE)[LATE], local.trace(IDS, LATE)[LATE])
    with pytest.raises(lv.WorkerError, match="are gone"):
        before[Q]
    session.stop()


KERNEL = """
import sys, torch, lensview as lv
session = lv.attach(sys.argv[1], quiet=True)
print("attached", flush=True)
slow = lv.call({late!r}, source={slow!r})
session.generate(torch.tensor([[5, 17, 3, 9]]), {late!r}, slow, max_new_tokens=50)
"""


def test_a_kernel_that_is_killed_leaves_the_job(job: Job, local: lv.LocalSession) -> None:
    """… in the midst of a generation, which the next kernel ends before its own run."""
    code = KERNEL.format(late=LATE, slow=SLOW)
    kernel = subprocess.Popen(
        [sys.executable, "-c", code, str(job.file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert kernel.stdout is not None and kernel.stdout.readline() == "attached\n"
    time.sleep(2.0)
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    begun = time.monotonic()
    session = None
    while session is None:
        try:
            session = job.attach()
        except lv.WorkerError as error:
            assert "is attached to it" in str(error) and time.monotonic() - begun < 5
            time.sleep(0.1)
    with session:
        assert close(session.trace(IDS, LATE)[LATE], local.trace(IDS, LATE)[LATE])
    print(f"\nA run {time.monotonic() - begun:.1f} s after the kernel before was killed")
    assert time.monotonic() - begun < 15
    assert "is gone" in job.log()


def test_an_agent_that_is_killed(job: Job) -> None:
    """One machine's torchrun is killed: one error, in time, and nothing is left."""
    session = job.attach()
    pids = [pid for agent in job.agents for pid in family(agent.pid)]
    slow = lv.call(LATE, source=SLOW)
    rank = 1 if "rank 1" in job._logs[1].read_text() else 0
    job.agents[1].kill()
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match=f"Rank {rank}") as caught:
        session.generate(IDS, LATE, slow, max_new_tokens=50)
    took = time.monotonic() - begun
    print(f"\nAn agent was killed: told after {took:.1f} s: {str(caught.value).splitlines()[0]}")
    assert took < 20
    assert job.codes(60)[0] != 0
    assert gone(pids, 10)
    assert not job.file.exists()
    with pytest.raises(lv.InputError, match="does not exist"):
        session.restart()
