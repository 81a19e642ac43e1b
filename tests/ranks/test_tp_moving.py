"""Values moved between two and three real ranks, each against the same thing in one process."""

from __future__ import annotations

from typing import Any

import pytest

from .torchrun import reports_of
from .tp_moving_worker import CHECKS

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module", params=[2, 3], ids="{} ranks".format)
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What every rank's checks said, from one torchrun of all of them."""
    folder = tmp_path_factory.mktemp("moving")
    return reports_of("tp_moving_worker.py", folder, ranks=request.param)


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
