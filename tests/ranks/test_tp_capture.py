"""Runs on models that are split over two and three real ranks, each against one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .torchrun import reports_of
from .tp_capture_worker import BLOCK, CHECKS, SWEPT
from .tp_models import CASES, FAST

pytestmark = pytest.mark.ranks

BLOCKS = [
    f"{SWEPT}{name}{BLOCK}"
    for name in ("deepseek_v3", "mixtral", "qwen3", "llama4_text", "gpt_oss", "phi3, packed")
]
THIRDS = "llama, thirds"
Reports = list[dict[str, dict[str, Any]]]


def run(folder: Path, names: list[str], ranks: int = 2) -> Reports:
    """What every rank's checks said, from one torchrun of all of them."""
    return reports_of("tp_capture_worker.py", folder, *names, ranks=ranks, timeout=600)


def right(reports: Reports, name: str) -> dict[str, Any]:
    for rank, report in enumerate(reports):
        assert "error" not in report[name], f"rank {rank}:\n{report[name]['error']}"
    return reports[0][name]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return run(tmp_path_factory.mktemp("capture"), [*CHECKS, *BLOCKS])


@pytest.mark.parametrize("name", CHECKS)
def test_as_in_one_process(reports: Reports, name: str) -> None:
    right(reports, name)


@pytest.mark.parametrize("name", BLOCKS)
def test_edits_of_every_side_of_a_block(reports: Reports, name: str) -> None:
    row = right(reports, name)
    assert row["right"] > 20 and not row["refused"] and not row["labelled"]


def test_three_ranks(tmp_path: Path) -> None:
    name = f"{SWEPT}{THIRDS}"
    row = right(run(tmp_path, [name], ranks=3), name)
    assert row["right"] > 200 and not row["refused"]


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*FAST, "qwen3_moe", "deepseek_v2", *(set(CASES) - {THIRDS})])
def test_edits_of_every_side(tmp_path: Path, name: str) -> None:
    row = right(run(tmp_path, [SWEPT + name]), SWEPT + name)
    assert row["right"] > 100
