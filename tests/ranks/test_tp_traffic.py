"""What reading makes real ranks send, counted at torch's own entry points."""

from __future__ import annotations

import pytest

from .conftest import RANKS, Reports

pytestmark = pytest.mark.ranks

SHARDS = 3 * 3 * 4 * (16 // RANKS) * 4
"""The bytes of one rank's q_proj outputs: layers, rows, tokens, features, bytes of a number."""


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("read", ["layers", "sums"])
def test_what_is_whole_costs_no_collective(reports: Reports, rank: int, read: str) -> None:
    found = reports[rank]["reading"][read]
    assert found["later"] == {"collectives": 0, "bytes": 0, "seen": []}
    assert found["first"]["seen"] == ["all_gather"]  # the witness, on first use of a site


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_is_split_costs_one_collective_of_the_shards(reports: Reports, rank: int) -> None:
    found = reports[rank]["reading"]["shards"]
    assert found["later"] == {"collectives": 1, "bytes": SHARDS, "seen": ["gather"]}


def test_what_was_read_is_the_value_of_one_process(reports: Reports) -> None:
    for read, count in {"layers": 3, "sums": 6, "shards": 3}.items():
        assert reports[0]["reading"][read]["right"] == [True] * 2 * count
        assert reports[1]["reading"][read]["right"] == []
