"""Plans: made from what a caller writes, and the same after JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import lensview as lv
from lensview.operations import apply
from lensview.plan import Plan
from lensview.regions import Frame
from lensview.sites import Site


def test_json_and_back() -> None:
    source = {"a": torch.randn(2, 3)}
    plan = Plan.make(
        ["**.mlp", "a:input"],
        [
            lv.zero("a"),
            lv.scale("a", 2.0, (..., -1)),
            lv.add("a", torch.arange(3.0), lv.at(token=[0, -1])),
            lv.clamp("a", low=-1.5),
            lv.put("a", float("inf")),
            lv.patch("a", source, slice(0, 1)),
            lv.patch("a", torch.ones(2, 3)),
        ],
        keep_output=True,
        max_bytes=1 << 30,
    )
    body, tensors = plan.to_json()
    again = Plan.from_json(json.loads(json.dumps(body, allow_nan=False)), tensors)
    assert (again.sites, again.keep_output, again.max_bytes) == (plan.sites, True, 1 << 30)
    assert [str(i) for i in again.interventions] == [str(i) for i in plan.interventions]
    assert [i.index for i in again.interventions] == [i.index for i in plan.interventions]
    assert torch.equal(again.interventions[2].args["vector"], torch.arange(3.0))
    assert torch.equal(again.interventions[5].args["source"].records["a"], source["a"])
    assert again.interventions[3].args == {"low": -1.5, "high": None}
    assert again.interventions[4].args == {"value": float("inf")}


def test_json_and_back_of_what_is_more_than_numbers() -> None:
    given = (torch.ones(2, 3), None, ["input"])
    plan = Plan.make(
        "a",
        [
            lv.noise("a", 0.5, 2**70, 1),
            lv.project_out("a", torch.arange(3.0)),
            lv.mean("a", torch.randn(5, 3), lv.at(token=-1)),
            lv.skip("a", "input"),
            lv.skip("a@1", given),
            lv.skip("a", {"a": torch.ones(4)}),
            lv.call("a", torch.nn.functional.relu),
            lv.call("a", source="def f(x):\n    return x + 1"),
        ],
    )
    assert all(i.portable for i in plan.interventions)
    body, tensors = plan.to_json()
    again = Plan.from_json(json.loads(json.dumps(body, allow_nan=False)), tensors)
    assert [str(i) for i in again.interventions] == [str(i) for i in plan.interventions]
    assert [i.index for i in again.interventions] == [i.index for i in plan.interventions]
    noise, project, mean, same, nested, source, relu, text = again.interventions
    assert noise.args == {"std": 0.5, "seed": 2**70}
    assert project.args["direction"].tolist() == [0, 1, 2]
    assert torch.equal(mean.args["reference"].whole, plan.interventions[2].args["reference"].whole)
    assert same.args["value"].value == "input"
    first, nothing, listed = nested.args["value"].value
    assert torch.equal(first, given[0]) and nothing is None and listed == ["input"]
    assert source.args["value"].records["a"].shape == (4,)
    for edit, expected in ((relu, 1), (text, 2)):
        # Reading runs nothing; a function waits for someone to say that it may.
        with pytest.raises(lv.InterventionError, match="trusted"):
            apply(edit, torch.ones(1), Site("a", call=0), Frame())
        result, _ = apply(edit.trusted(), torch.ones(1), Site("a", call=0), Frame())
        assert result.tolist() == pytest.approx([expected])


def test_what_cannot_travel_is_written_as_such_and_refused_when_used() -> None:
    value = dataclasses.make_dataclass("Out", ["h"])(torch.ones(2))
    edits = [lv.call("a", lambda x: x, name="mine"), lv.skip("a", value)]
    assert not any(i.portable for i in edits)
    body, tensors = Plan.make("a", edits).to_json()
    call, skip = Plan.from_json(json.loads(json.dumps(body)), tensors).interventions
    assert "mine" in str(call) and "Out(h=tensor(2,))" in str(skip)
    assert not call.portable and not skip.portable
    with pytest.raises(lv.InterventionError, match="mine was not portable"):
        apply(call, torch.ones(1), Site("a", call=0), Frame())
    with pytest.raises(lv.InterventionError, match="mine was not portable"):
        call.trusted()
    with pytest.raises(lv.InterventionError, match="not portable when it was saved"):
        lv.trace(torch.nn.ModuleDict({"a": torch.nn.Identity()}), torch.ones(1), (), skip)


def test_reading_a_plan_runs_nothing(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    source = f"open({str(target)!r}, 'w').close()\ndef f(x):\n    return x"
    edit = lv.call("a", source=source)
    assert target.exists()
    target.unlink()
    body, tensors = Plan.make("a", edit).to_json()
    read = Plan.from_json(body, tensors)
    with pytest.raises(lv.InterventionError):
        apply(read.interventions[0], torch.ones(1), Site("a", call=0), Frame())
    assert not target.exists()
    read.interventions[0].trusted()
    assert target.exists()


def test_an_operation_of_another_version_is_named() -> None:
    body, tensors = Plan.make("a", lv.zero("a")).to_json()
    body["interventions"][0]["op"] = "transmogrify"
    with pytest.raises(lv.InterventionError, match="transmogrify"):
        Plan.from_json(body, tensors)


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(lv.SiteError, match="int"):
        Plan.make([1])  # type: ignore[list-item]
    with pytest.raises(lv.InterventionError, match=r"lv\.zero"):
        Plan.make("a", ["zero"])  # type: ignore[list-item]
