"""Torchrun: the one way in which the tests of this folder start real ranks over gloo.

Owns the command, its environment and the reports that the ranks leave, ``rank0.json`` and so on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def start(
    worker: str,
    folder: Path,
    *arguments: str,
    ranks: int = 2,
    timeout: float = 300,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder on that many ranks, to its end, however it ends."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            f"--nproc-per-node={ranks}",
            str(HERE / worker),
            str(folder),
            *arguments,
        ],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def reports_of(
    worker: str, folder: Path, *arguments: str, ranks: int = 2, timeout: float = 300
) -> list[dict[str, Any]]:
    """Each rank's report of a run that must end well."""
    done = start(worker, folder, *arguments, ranks=ranks, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text("utf-8")) for rank in range(ranks)]
