"""One torchrun of two gloo ranks for all tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .torchrun import reports_of

RANKS = 2


class Reports(list[dict[str, Any]]):
    """What each rank's checks gave, by the check's name.

    Attributes:
        folder: where the ranks left their files.
    """

    folder: Path


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("ranks")
    found = Reports(reports_of("worker.py", folder, ranks=RANKS))
    found.folder = folder
    for rank, report in enumerate(found):
        for check, result in report.items():
            assert "error" not in result, f"{check} on rank {rank}:\n{result['error']}"
    return found
