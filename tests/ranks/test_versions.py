"""Whether the transformers that runs is taken or refused, on real ranks; `make test-versions`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers

from lensview.parallel.styles import MINIMUM

from .torchrun import reports_of

pytestmark = [pytest.mark.ranks, pytest.mark.full]


def test_this_version_is_taken_or_refused_by_name(tmp_path: Path) -> None:
    reports = reports_of("version_worker.py", tmp_path)
    version = transformers.__version__
    old = tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < MINIMUM
    for told in reports:
        if old:
            floor = ".".join(map(str, MINIMUM))
            assert f"need transformers {floor} or newer; this is {version}" in told["refused"]
        else:
            assert told["apart"] < 1e-6
