"""One torchrun of two gloo ranks for all tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RANKS = 2
ROOT = Path(__file__).resolve().parents[2]


class Reports(list[dict[str, Any]]):
    """What each rank's checks gave, by the check's name.

    Attributes:
        folder: where the ranks left their files.
    """

    folder: Path


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("ranks")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={RANKS}",
            str(Path(__file__).with_name("worker.py")),
            str(folder),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = Reports(
        json.loads((folder / f"rank{rank}.json").read_text("utf-8")) for rank in range(RANKS)
    )
    found.folder = folder
    for rank, report in enumerate(found):
        for check, result in report.items():
            assert "error" not in result, f"{check} on rank {rank}:\n{result['error']}"
    return found
