"""Two real ranks over gloo: what is split over them is refused, whole, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Reports

pytestmark = pytest.mark.ranks

CASES = {
    ("fsdp1", "nested"): {("FSDP", "model.layers.1")},
    ("fsdp1", "whole"): {("FSDP", "")},
    ("fsdp2", "whole"): {("FSDP2", ""), ("DTensor", "lm_head.weight")},
    ("fsdp2", "nested"): {
        ("FSDP2", "model.layers.1"),
        ("DTensor", "model.layers.1.mlp.up_proj.weight"),
    },
    ("tensor_parallel", "layers"): {
        ("parallelize_module", "model.layers.0.mlp.gate_proj"),
        ("parallelize_module", "model.layers.0.mlp.down_proj"),
        ("DTensor", "model.layers.0.mlp.gate_proj.weight"),
        ("DTensor", "model.layers.0.mlp.down_proj.weight"),
    },
    ("tensor_parallel", "hooks alone"): {("parallelize_module", "model.layers.2.mlp")},
    ("tensors", "buffer"): {("DTensor", "1.table")},
    ("tensors", "sharded"): {("ShardedTensor", "0.split")},
    ("hidden", "hidden"): {
        ("DeviceMesh", "0.helpers.groups['tp'][1]"),
        ("pipeline stage", "1.later[0].args[0]"),
        ("pipeline stage", "2.schedule['schedule']"),
    },
}


def holds(report: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    """Refused with at least these findings, before any forward, with nothing left behind."""
    assert report["refused"] is True
    found = {(kind, where) for kind, where in report["findings"]}
    assert expected <= found
    assert report["ran"] == [] and report["left"] is False
    for kind, where in expected:
        assert kind in report["text"]
        assert where in report["text"] or len(found) > 6
    assert {tuple(f) for f in report["told"]} == found


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_what_is_split_is_refused(reports: Reports, rank: int, case: tuple[str, str]) -> None:
    """O11, and what other tools let through; no rank hangs, or there would be no reports."""
    check, name = case
    holds(reports[rank][check][name], CASES[case])


def test_every_finding_is_told_and_none_is_invented(reports: Reports) -> None:
    for case in (("tensor_parallel", "layers"), ("tensors", "buffer"), ("hidden", "hidden")):
        found = reports[0][case[0]][case[1]]["findings"]
        assert {tuple(f) for f in found} == CASES[case]
    nested = reports[0]["fsdp2"]["nested"]
    assert all(where.startswith("model.layers.1") for _, where in nested["findings"])
    assert len(nested["findings"]) == 1 + 9
    assert len(nested["text"].splitlines()) < 8


def test_the_first_wrapper_is_named_first(reports: Reports) -> None:
    line = reports[0]["fsdp2"]["nested"]["text"].splitlines()[1]
    assert line.strip().startswith("FSDP2 at model.layers.1:")


def test_what_is_still_capturable_is_named_and_is_so(reports: Reports) -> None:
    text = reports[0]["fsdp2"]["nested"]["text"]
    able = next(line for line in text.splitlines() if "Asked for and not affected" in line)
    assert "'model.layers.0.mlp'" in able and "'model.layers.1.mlp'" not in able
    assert "down_proj" in reports[0]["fsdp2"]["alone"]
    assert "Asked for and not affected" not in reports[0]["fsdp2"]["whole"]["text"]


def test_an_input_that_is_split_is_refused_on_one_rank_alone(reports: Reports) -> None:
    expected = {("DTensor", "inputs[input_ids]"), ("DTensor", "inputs[deep][0][also][0]")}
    holds(reports[1]["tensors"]["input"], expected)


def test_transformers_tensor_parallel_is_told_apart(reports: Reports) -> None:
    """It is captured whole; the same DTensors made by hand are refused (above)."""
    report = reports[0]["transformers_tp"]
    assert report["refused"] is False and report["told"] == []
    assert report["left"] is False and report["ran"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stages_own_module_is_captured_and_labelled(reports: Reports, rank: int) -> None:
    own = reports[rank]["hidden"]["own"]
    assert own["right"] is True
    assert own["fragment"].startswith(f"pipeline stage {rank} of 2")
    assert own["fragment"] in own["warned"]
    assert reports[rank]["hidden"]["plain"] is None
    assert "stage.submod" in reports[rank]["hidden"]["stage"]
