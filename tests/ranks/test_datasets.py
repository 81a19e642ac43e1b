"""Datasets by real ranks: torchrun's, two agents' that meet, and one model's over two of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lensview as lv
from lensview.datasets.manifests import read_state
from tests.datasets.conftest import assert_equal
from tests.datasets.toy import SITES, Letters, texts, toy

from .torchrun import HERE, ROOT, reports_of

pytestmark = pytest.mark.ranks
WORKER = "dataset_worker.py"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> lv.ActivationDataset:
    """The same by one process that nobody stops."""
    folder = tmp_path_factory.mktemp("whole") / "acts"
    options: dict[str, Any] = {"tokenizer": Letters(), "batch_size": 4, "progress": False}
    return lv.extract_dataset(toy(), texts(60), SITES, folder, **options)


def check(folder: Path, whole: lv.ActivationDataset, workers: int) -> None:
    state = read_state(folder)
    assert len(np.unique(state.keys)) == len(state.keys) == 60
    assert len(list((folder / "manifests").iterdir())) == workers
    assert_equal(lv.open_dataset(folder), whole)


@pytest.mark.parametrize("mode", ["plain", "group"])
def test_each_rank_takes_its_share(whole: lv.ActivationDataset, tmp_path: Path, mode: str) -> None:
    reports = reports_of(WORKER, tmp_path, mode)
    assert any(report["complete"] for report in reports)
    check(tmp_path / "acts", whole, workers=2)


def test_two_agents_with_one_rendezvous(whole: lv.ActivationDataset, tmp_path: Path) -> None:
    """As two machines would start it; one rank is killed, and both agents start theirs again."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
    }
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *("--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d"),
                *(f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=acts"),
                *(str(HERE / WORKER), str(tmp_path), "crash"),
            ],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for agent in agents:
            out, _ = agent.communicate(timeout=240)
            assert agent.returncode == 0, out
    finally:
        for agent in agents:
            agent.terminate()  # an agent that is told to end takes its rank with it
            agent.wait(timeout=60)
    check(tmp_path / "acts", whole, workers=len(list((tmp_path / "acts" / "manifests").iterdir())))
    assert len(list((tmp_path / "acts" / "manifests").iterdir())) > 2, "no rank was killed"


def test_a_model_over_two_ranks_is_one_worker(tmp_path: Path) -> None:
    first, second = reports_of(WORKER, tmp_path, "split")
    assert first["manifests"] == second["manifests"] == 1, "rank 0 alone writes"
    assert first["items"] == 60 and first["far"] < 1e-5
    assert "model.layers.0.mlp.up_proj" in first["sites"]
    for report in (first, second):
        assert "weights (model.layers.0.mlp.up_proj.weight)" in report["changed"]
