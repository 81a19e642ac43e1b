"""Merging the traces of a batch's parts: the whole batch's trace, or a refusal."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90], [44, 2, 61, 7], [3, 3, 50, 21], [1, 2, 3, 4]])


def parts(model: nn.Module, *cuts: slice, ids: Tensor = IDS, **kwargs: Any) -> list[lv.Trace]:
    return [lv.trace(model, ids[cut], ["**", "**:input"], **kwargs) for cut in cuts]


@pytest.mark.parametrize("cuts", [(2, 4), (1, 2, 3, 4), (3,)])
def test_parts_join_to_the_whole(tiny_llama: nn.Module, cuts: tuple[int, ...]) -> None:
    """Uneven last parts and parts of one row, against one run of the whole batch."""
    bounds = [0, *cuts, len(IDS)]
    slices = [slice(a, b) for a, b in pairwise(bounds)]
    edit = lv.add("model.layers.1", torch.linspace(-1, 1, 16), lv.at(token=[0, -1]))
    whole = lv.trace(tiny_llama, IDS, ["**", "**:input"], edit)
    merged = lv.merge_ranks(parts(tiny_llama, *slices, interventions=edit))
    for site, tensor in merged.items():
        torch.testing.assert_close(tensor, whole[site], rtol=1e-5, atol=1e-6)
    # One value for all rows comes from the rotary embedding alone.
    assert set(whole) - set(merged) == {"model.rotary_emb"}
    assert merged.logits is not None and whole.logits is not None
    torch.testing.assert_close(merged.logits, whole.logits, rtol=1e-5, atol=1e-6)
    assert (merged.reports[0].calls, merged.reports[0].changed) == (1, whole.reports[0].changed)
    assert merged.tokens is not None and whole.tokens is not None
    assert merged.tokens.labels == whole.tokens.labels
    assert torch.equal(merged.tokens.mask, whole.tokens.mask)
    assert merged.asked("**")[0] == whole.asked("**")[0]


def test_masks_and_padding_are_joined_as_they_were(tiny_llama: nn.Module) -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])
    batch = {"input_ids": IDS[:3], "attention_mask": mask}
    rows = [{k: v[cut] for k, v in batch.items()} for cut in (slice(0, 2), slice(2, 3))]
    whole = lv.trace(tiny_llama, batch, "model.layers.*")
    merged = lv.merge_ranks([lv.trace(tiny_llama, r, "model.layers.*") for r in rows])
    assert merged.tokens is not None and torch.equal(merged.tokens.mask, mask.bool())
    for site in whole:
        torch.testing.assert_close(merged[site], whole[site], rtol=1e-5, atol=1e-6)
    assert merged.logits is not None and whole.logits is not None
    torch.testing.assert_close(merged.logits, whole.logits, rtol=1e-5, atol=1e-6)


def test_one_trace_is_itself_and_a_merged_one_is_a_trace(
    tiny_llama: nn.Module, tmp_path: Path
) -> None:
    one, two = parts(tiny_llama, slice(0, 2), slice(2, 5))
    assert lv.merge_ranks([one]) is one
    merged = lv.merge_ranks(iter([one, two]))
    merged.save(tmp_path / "whole.safetensors")
    again = lv.load(tmp_path / "whole.safetensors")
    assert again.sites == merged.sites and again.meta["merged"] == [2, 3]
    assert not any(d.changed for d in merged.diff(again).values())


class Flat(nn.Module):
    """Values whose dim 0 is not the batch: flattened tokens, a sum over rows, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.flat, self.total, self.count = nn.Identity(), nn.Identity(), nn.Identity()
        self.rows = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        self.flat(x.flatten(0, 1))
        self.total(x.sum(0))
        self.count(x.sum())
        out: Tensor = self.rows(x)
        return out


@pytest.mark.parametrize("rows", [(2, 3), (2, 2), (1, 1)])
def test_what_is_not_known_to_be_rows_is_not_joined(rows: tuple[int, int]) -> None:
    model = Flat()
    x = torch.randint(0, 99, (sum(rows), 7))
    sites = ["flat", "total", "count", "rows"]

    class Text(nn.Module):
        """Takes its numbers as token ids."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, input_ids: Tensor) -> Any:
            return self.inner(input_ids.float())

    cut = slice(0, rows[0]), slice(rows[0], None)
    traces = [
        lv.trace(Text(), {"input_ids": x[c]}, [f"inner.{site}" for site in sites]) for c in cut
    ]
    merged = lv.merge_ranks(traces)
    assert merged.sites == ("inner.rows",)
    assert torch.equal(merged["inner.rows"], x.float())
    assert set(merged.missed) == {"inner.flat", "inner.total", "inner.count"}


def test_values_of_one_row_that_suit_every_row_are_not_joined(tiny_llama: nn.Module) -> None:
    """With one row per rank, a rotary embedding looks like a row."""
    traces = parts(tiny_llama, slice(0, 1), slice(1, 2))
    assert traces[0]["model.rotary_emb"].shape[:2] == (1, 4)
    merged = lv.merge_ranks(traces)
    assert "one value for all rows" in merged.missed["model.rotary_emb"]
    assert "model.layers.0" in merged


def test_other_runs_are_refused_by_what_differs(
    tiny_llama: nn.Module, tiny_gpt2: nn.Module
) -> None:
    one = lv.trace(tiny_llama, IDS[:2], "**.mlp")
    edit = lv.scale("model.layers.1", 2.0)

    def said(*others: lv.Trace) -> str:
        with pytest.raises(lv.TraceMergeError) as caught:
            lv.merge_ranks([one, *others])
        return str(caught.value)

    assert "GPT2LMHeadModel" in said(lv.trace(tiny_gpt2, IDS[:2], "**.mlp"))
    assert "sites or interventions" in said(lv.trace(tiny_llama, IDS[2:], "**.self_attn"))
    assert "sites or interventions" in said(lv.trace(tiny_llama, IDS[2:], "**.mlp", edit))
    layers: Any = tiny_llama.get_submodule("model.layers")
    last = layers[2]
    del layers[2]
    assert "only one of them has model.layers.2.mlp" in said(
        lv.trace(tiny_llama, IDS[2:], "**.mlp")
    )
    layers.append(last)
    tiny_llama.train()
    assert "training" in said(lv.trace(tiny_llama, IDS[2:], "**.mlp"))
    tiny_llama.eval()
    assert "Pad them to one length" in said(lv.trace(tiny_llama, IDS[2:, :3], "**.mlp"))
    vectors = [torch.full((16,), value) for value in (1.0, float("nan"), float("nan"))]
    edited = [lv.trace(tiny_llama, IDS[:2], "**", lv.add("model.layers.1", v)) for v in vectors]
    with pytest.raises(lv.TraceMergeError, match="interventions"):
        lv.merge_ranks(edited[:2])
    assert len(lv.merge_ranks(edited[1:]))


@pytest.mark.parametrize("index", [0, ([0, 1], ...), lv.at(batch=0)])
def test_rows_by_number_mean_nothing_in_the_whole_batch(tiny_llama: nn.Module, index: Any) -> None:
    edit = lv.zero("model.layers.1", index)
    with pytest.raises(lv.TraceMergeError, match="by number"):
        lv.merge_ranks(parts(tiny_llama, slice(0, 2), slice(2, 5), interventions=edit))
    everywhere = lv.zero("model.layers.1", (..., slice(0, 4)))
    merged = lv.merge_ranks(parts(tiny_llama, slice(0, 2), slice(2, 5), interventions=everywhere))
    assert not merged["model.layers.1"][..., :4].any()


def test_what_is_no_trace_is_named() -> None:
    with pytest.raises(lv.TraceMergeError, match="one trace per rank"):
        lv.merge_ranks([])
    with pytest.raises(lv.TraceMergeError, match="not a dict"):
        lv.merge_ranks([{}, {}])  # type: ignore[list-item]
