"""What each rank holds of the whole, on real ranks, against one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.tp_models import CASES, DIFFERENT, FAST, LABELLED, UNFIT, planned
from tests.ranks.tp_run import Table, run

pytestmark = pytest.mark.ranks

ROWS = [n for n in (*FAST, *CASES) if n != "llama, thirds" and n not in UNFIT]
OPS = [n for n in ("llama", "mixtral, batched", "granite_swa", "phi3, packed") if n not in UNFIT]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return run(ROWS, tmp_path_factory.mktemp("layouts"))


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return run(OPS, tmp_path_factory.mktemp("ops"), ops=True)


@pytest.mark.parametrize("name", ROWS)
def test_every_value_is_whole_or_labelled(table: Table, name: str) -> None:
    row = table[name]
    assert "error" not in row, row.get("trace")
    assert row["wrong"] == [] and row["missing"] == []
    assert row["same_output"] and row["right"] > 100
    assert sum(row["labelled"].values()) == LABELLED.get(name, 0), row["labelled"]


def test_every_kind_of_placement_was_met(table: Table) -> None:
    met = {kind for row in table.values() for kind in row["kinds"]}
    assert met == {"Whole", "Shard", "Packed", "Scaled"}


@pytest.mark.parametrize("name", OPS)
def test_values_between_ops(ops: Table, name: str) -> None:
    row = ops[name]
    assert "error" not in row, row.get("trace")
    assert row["wrong"] == [] and row["missing"] == []
    assert row["right"] > 800 and sum(row["labelled"].values()) < 150


def test_three_ranks(tmp_path: Path) -> None:
    table = run(["llama, thirds"], tmp_path, ranks=3)
    row = table["llama, thirds"]
    assert "error" not in row, row.get("trace")
    assert row["wrong"] == [] and row["missing"] == [] and not row["labelled"]


@pytest.mark.full
@pytest.mark.timeout(2400)
def test_every_model_type(tmp_path: Path) -> None:
    table = run(planned(), tmp_path)
    ran = {name: row for name, row in table.items() if "error" not in row}
    same = {name: row for name, row in ran.items() if row["same_output"]}
    assert len(same) >= 60
    assert {name: row["wrong"] for name, row in same.items() if row["wrong"]} == {}
    assert {name: row["missing"] for name, row in same.items() if row["missing"]} == {}
    assert set(ran) - set(same) <= DIFFERENT
