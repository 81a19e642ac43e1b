"""Traces: a mapping by any spelling, next tokens, differences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])


def test_any_spelling_that_means_the_site(tiny_llama: nn.Module) -> None:
    trace = lv.trace(tiny_llama, IDS, ["model.layers.0", ":output"])
    value = trace["model.layers.0"]
    for text in ("model.layers.0:output", "model.layers.0@0", "model.layers.0:output@0"):
        assert trace[text] is value and text in trace
    assert trace[""] is trace[":output"] is trace[":output[logits]"]
    assert "nope" not in trace
    assert list(trace) == list(trace.sites) == ["model.layers.0", ":output"]


def test_a_site_that_is_not_there_says_why(tiny_llama: nn.Module) -> None:
    trace = lv.trace(tiny_llama, IDS, ["model.layers.0"])
    with pytest.raises(lv.NotRecordedError, match=r"model\.layers\.0") as caught:
        trace["model.layer.0"]
    assert isinstance(caught.value, KeyError)
    assert "\\n" not in str(caught.value) and not str(caught.value).startswith("'")
    with pytest.raises(lv.NotRecordedError, match="select"):
        trace["model.layers.*"]
    assert list(trace.select("model.layers.*")) == ["model.layers.0"]
    with pytest.raises(lv.SiteError):
        trace["a["]


def test_top_is_a_softmax_at_the_last_real_token(tiny_llama: nn.Module) -> None:
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    trace = lv.trace(tiny_llama, {"input_ids": IDS, "attention_mask": mask}, ":output")
    for row, last in ((0, 1), (1, 3)):
        expected = torch.softmax(trace[":output"][row, last], -1)
        top = trace.top(101, row)
        assert [t.id for t in top] == expected.sort(descending=True).indices.tolist()
        assert [t.probability for t in top] == pytest.approx(sorted(expected.tolist())[::-1])
        assert math.isclose(sum(t.probability for t in top), 1, rel_tol=1e-5)
    assert len(trace.top(1000)) == 101
    with pytest.raises(ValueError, match="2 rows"):
        trace.top(row=2)
    with pytest.raises(ValueError, match="1 or more"):
        trace.top(0)


def test_left_padding_reads_the_last_column(tiny_llama: nn.Module) -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    trace = lv.trace(tiny_llama, {"input_ids": IDS, "attention_mask": mask}, ":output")
    assert torch.equal(trace.logits, trace[":output"][:, 3])  # type: ignore[arg-type]


def test_diff_against_plain_arithmetic(tiny_llama: nn.Module) -> None:
    site = "model.layers.1"
    first = lv.trace(tiny_llama, IDS, "**")
    second = lv.trace(tiny_llama, IDS, "**", lv.add(site, 0.5, index=(0, 2)))
    diff = first.diff(second)
    assert diff.first == site
    here = diff[site]
    assert (here.changed, here.elements) == (16, 128)
    gap = (second[site].double() - first[site].double()).abs()
    assert here.largest == gap.max().item()
    assert here.rms == pytest.approx(gap.square().mean().sqrt().item())
    assert here.relative == pytest.approx(here.rms / first[site].double().square().mean().sqrt())
    p, q = (t.logits.double().log_softmax(-1) for t in (first, second))  # type: ignore[union-attr]
    kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)
    assert diff.kl == pytest.approx(kl.tolist())
    assert diff.kl is not None and diff.kl[0] > 0 and diff.kl[1] == pytest.approx(0, abs=1e-12)
    assert first.diff(first).first is None
    assert site in repr(diff) and "KL" in repr(diff)


def test_diff_of_other_sites_other_shapes_and_nan() -> None:
    class Give(nn.Module):
        def __init__(self, value: Tensor) -> None:
            super().__init__()
            self.a, self.value = nn.Identity(), value

        def forward(self, x: Tensor) -> Any:
            return self.a(self.value)

    def trace(value: list[float], sites: str = "a") -> lv.Trace:
        return lv.trace(Give(torch.tensor(value)), torch.ones(1), sites)

    nan, inf = float("nan"), float("inf")
    same = trace([nan, inf, 1]).diff(trace([nan, inf, 1]))["a"]
    assert (same.changed, same.largest) == (0, 0)
    broken = trace([1, 2]).diff(trace([1, nan]))["a"]
    assert (broken.changed, broken.largest) == (1, inf)
    shapes = trace([1, 2]).diff(trace([1, 2, 3]))
    assert "(2,)" in shapes["a"].note and shapes.first == "a"
    other = trace([1]).diff(trace([1], ":output"))
    assert (other.only_first, other.only_second, len(other)) == (("a",), (":output",), 0)
    with pytest.raises(lv.NotRecordedError):
        other["a"]


def test_diff_of_nested_and_sparse_records(tmp_path: object) -> None:
    """O17: a padded encoder in eval passes nested tensors between its layers."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    model = nn.TransformerEncoder(layer, 2).eval()
    inputs = {
        "src": torch.randn(2, 4, 8),
        "src_key_padding_mask": torch.tensor([[False] * 4, [False, False, True, True]]),
    }
    with torch.no_grad():
        expected = model(**inputs)
    first = lv.trace(model, inputs, "**", keep_output=True)
    assert torch.equal(first.output, expected)
    assert first["layers.0"].is_nested and not first.aligned("layers.0")
    with pytest.raises(lv.IdleInterventionError) as idle:
        lv.trace(model, inputs, "**", lv.zero("layers.0.self_attn.out_proj"))
    second = idle.value.trace
    assert isinstance(second, lv.Trace)
    same = first.diff(second)
    assert same.first is None and same["layers.0"].elements == 6 * 8
    other = {**inputs, "src": inputs["src"] + 1}
    moved = first.diff(lv.trace(model, other, "**"))["layers.0"]
    gap = [
        (a - b).abs().max().item()
        for a, b in zip(
            first["layers.0"].unbind(),
            lv.trace(model, other, "**")["layers.0"].unbind(),
            strict=True,
        )
    ]
    assert moved.largest == pytest.approx(max(gap))

    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.diag(x).to_sparse()

    one, two = (lv.trace(Sparse(), torch.tensor(v), ":output") for v in ([1.0, 2], [1.0, 5]))
    assert "1 sites" in repr(one)
    assert (one.diff(two)[":output"].changed, one.diff(two)[":output"].largest) == (1, 3)
