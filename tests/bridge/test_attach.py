"""A job that torchrun agents hold is attached to, left, and found again; it ends when it should."""

from __future__ import annotations

import json
import os
import signal
import socket as bare
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lensview as lv
from lensview.bridge.connection import JobKeys

from . import faulty
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
        told = session.states()
        assert [(s.rank, s.state) for s in told] == [(0, "idle"), (1, "idle")]
        assert all(s.pid and s.memory > 50 << 20 and s.host == bare.gethostname() for s in told)
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


@pytest.mark.full
def test_a_kernel_that_is_killed_leaves_the_job(job: Job, local: lv.LocalSession) -> None:
    """… in the midst of a generation, which the next kernel ends before its own run."""
    job.attach().stop()  # it has begun
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
    job.agents[1].kill()
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match=r"Rank [01] is gone: its launcher") as caught:
        session.generate(IDS, LATE, slow, max_new_tokens=50)
    took = time.monotonic() - begun
    print(f"\nAn agent was killed: told after {took:.1f} s: {str(caught.value).splitlines()[0]}")
    assert took < 20
    assert job.codes(60)[0] != 0
    assert gone(pids, 10)
    assert not job.file.exists()
    with pytest.raises(lv.InputError, match="does not exist"):
        session.restart()


def test_a_file_that_is_not_to_be_used(tmp_path: Path) -> None:
    keys = JobKeys()
    file = tmp_path / "job.json"
    keys.connection("tcp://127.0.0.1:9", host="here", ranks=1, tp=1).write(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [f.name for f in tmp_path.iterdir()] == ["job.json"]
    begun = time.monotonic()
    with pytest.raises(lv.WorkerError, match=r"Nobody answers at tcp://127\.0\.0\.1:9"):
        lv.attach(file, patience=1.0)
    assert time.monotonic() - begun < 5
    file.chmod(0o640)
    with pytest.raises(lv.InputError, match=r"open to others \(mode 0640\)"):
        lv.attach(file)
    file.chmod(0o600)
    body = json.loads(file.read_text())
    for wrong, told in {
        json.dumps({**body, "version": "0.0.9"}): "runs lensview 0.0.9",
        json.dumps({**body, "ranks": "2"}): "is no connection file",
        "[]": "is no connection file",
        "{": "is no connection file",
    }.items():
        file.write_text(wrong)
        with pytest.raises(lv.InputError, match=told):
            lv.attach(file)
    with pytest.raises(lv.InputError, match="does not exist"):
        lv.attach(tmp_path / "none.json")


@pytest.mark.full
def test_nobody_is_attached_for_long(folder: Path, tmp_path: Path) -> None:
    """A job that is left alone ends by itself, and says why."""
    job = Job(tmp_path, str(folder), "--unattended", "3")
    try:
        with job.attach() as session:
            time.sleep(4)
            session.ping()
        assert job.running()
        assert job.codes(30) == [0], job.log()
        assert "nobody has been attached for" in job.log()
        assert not job.file.exists()
    finally:
        job.end()


@pytest.mark.full
def test_a_rank_that_fails_ends_the_job(folder: Path, tmp_path: Path) -> None:
    options = json.dumps({"path": str(folder)})
    job = Job(tmp_path, "faulty:load", "--options", options, ranks=2)
    try:
        session = job.attach()
        begun = time.monotonic()
        with pytest.raises(lv.WorkerError, match="Rank 1 ended with exit code 9") as caught:
            session.trace(torch.tensor([[faulty.EXIT, 3, 9]]), LATE)
        assert time.monotonic() - begun < 20
        assert caught.value.last_lines[1][-1] == "about to exit"
        assert job.codes(30) != [0]
    finally:
        job.end()


@pytest.mark.full
def test_a_job_that_its_launcher_restarts(
    folder: Path, local: lv.LocalSession, tmp_path: Path
) -> None:
    job = Job(tmp_path, str(folder), ranks=2, again=1)
    try:
        session = job.attach()
        before = json.loads(job.file.read_text())["job"]
        os.kill(session.ranks[1].pid, signal.SIGKILL)
        with pytest.raises(lv.WorkerError, match="Rank 1 was killed by SIGKILL"):
            for _ in range(100):
                session.trace(IDS, LATE)
                time.sleep(0.1)
        end = time.monotonic() + 60
        while not job.file.exists() or json.loads(job.file.read_text())["job"] == before:
            assert time.monotonic() < end and job.running(), job.log()
            time.sleep(0.1)
        session.restart()
        assert close(session.trace(IDS, LATE)[LATE], local.trace(IDS, LATE)[LATE])
        session.end()
        assert job.codes(30) == [0], job.log()
    finally:
        job.end()


@pytest.mark.full
def test_a_load_that_fails_ends_the_job(folder: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, "faulty:not_a_model", ranks=1)
    try:
        with pytest.raises(lv.LensError, match="returned a str"):
            job.attach()
        assert job.codes(30) != [0]
        assert "could not be loaded" in job.log()
    finally:
        job.end()


def test_a_session_ends_its_job(one: Job) -> None:
    """Last of those that use it."""
    session = one.attach()
    pids = [pid for agent in one.agents for pid in family(agent.pid)]
    session.end()
    assert one.codes(30) == [0], one.log()
    assert gone(pids, 1) and not one.file.exists()
