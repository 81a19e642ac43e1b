"""Values moved between two and three real ranks, each against the same thing in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT
from .tp_moving_worker import CHECKS

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every rank's checks said, from one torchrun of all of them."""
    folder = tmp_path_factory.mktemp("moving")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={request.param}",
            str(Path(__file__).with_name("tp_moving_worker.py")),
            str(folder),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{r}.json").read_text()) for r in range(request.param)]


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_on_every_rank(reports: list[dict[str, Any]], check: str) -> None:
    for rank, report in enumerate(reports):
        assert check in report, f"rank {rank} ended with {list(report)[-1]}"
        assert "error" not in report[check], f"rank {rank}:\n{report[check]['error']}"


def test_all_ranks_were_told_the_same(reports: list[dict[str, Any]]) -> None:
    for check in ("flush", "errors", "weights"):
        said = [report[check]["said"] for report in reports]
        assert said[0] and all(other == said[0] for other in said)


def test_a_divergence_is_told_within_seconds(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["agreement_check"]["said"] < 5
