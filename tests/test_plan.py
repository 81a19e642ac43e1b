"""Plans: made from what a caller writes, and the same after JSON."""

from __future__ import annotations

import json

import pytest
import torch

import lensview as lv
from lensview.plan import Plan


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
