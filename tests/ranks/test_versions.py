"""Whether the transformers that runs is taken or refused, on real ranks; `make test-versions`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

from lensview.parallel.styles import MINIMUM

pytestmark = [pytest.mark.ranks, pytest.mark.full]

ROOT = Path(__file__).resolve().parents[2]


def test_this_version_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            "--nproc-per-node=2",
            str(Path(__file__).with_name("version_worker.py")),
            str(tmp_path),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    version = transformers.__version__
    old = tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < MINIMUM
    for rank in range(2):
        told = json.loads((tmp_path / f"rank{rank}.json").read_text("utf-8"))
        if old:
            floor = ".".join(map(str, MINIMUM))
            assert f"need transformers {floor} or newer; this is {version}" in told["refused"]
        else:
            assert told["apart"] < 1e-6
