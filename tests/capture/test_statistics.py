"""Statistics in place of values, and what other ways of keeping would need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lensview as lv
from lensview.plan import Plan
from lensview.tensors.stats import stats

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
MLP = "model.layers.0.mlp"


def test_statistics_are_those_of_the_values(tiny_llama: nn.Module, tmp_path: Path) -> None:
    whole = lv.trace(tiny_llama, IDS, "**", lv.scale(MLP, 3))
    trace = lv.trace(tiny_llama, IDS, "**", lv.scale(MLP, 3), keep="statistics")
    assert len(trace) == 0 and set(trace.statistics) == set(whole.sites) and not trace.missed
    assert all(trace.stats(site) == stats(whole[site]) == whole.stats(site) for site in whole)
    assert torch.equal(trace.logits, whole.logits)  # type: ignore[arg-type]
    assert trace.stats(MLP).rms == pytest.approx(np.sqrt((whole[MLP].double().numpy() ** 2).mean()))
    assert f"statistics only of {len(whole)}" in repr(trace)
    with pytest.raises(lv.NotRecordedError, match=r"kept as statistics only: trace\.stats"):
        _ = trace[MLP]
    trace.save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert again.statistics == trace.statistics and again.plan.keep == trace.plan.keep
    assert (tmp_path / "a").stat().st_size < 40_000
    assert trace.to_pandas().loc[MLP, "rms"] == trace.stats(MLP).rms
    assert whole.to_pandas().equals(trace.to_pandas().loc[list(whole.sites)])


def test_some_sites_only_and_part_of_a_value(tiny_llama: nn.Module) -> None:
    keep = {"**.mlp": "statistics", MLP: lv.at(token=-1)}
    trace = lv.trace(tiny_llama, IDS, ["**.mlp", "model.norm"], keep=keep)
    whole = lv.trace(tiny_llama, IDS, MLP)
    assert trace.sites == ("model.norm",) and len(trace.statistics) == 3
    assert trace.stats(MLP) == stats(whole[MLP][:, -1:])
    assert Plan.from_json(*trace.plan.to_json()) == trace.plan


def test_checks_and_limits_of_statistics(tiny_llama: Any) -> None:
    assert lv.trace(tiny_llama, IDS, "**", keep="statistics", max_bytes=10).missed == {}
    tiny_llama.model.layers[1].mlp.down_proj.weight.data[0] = float("nan")
    trace = lv.trace(tiny_llama, IDS, "**", keep="statistics")
    (check,) = (c for c in trace.checks if c.name == "finite")
    assert check.ok is False and "first at model.layers.1.mlp.down_proj" in check.reason
    assert trace.stats("model.layers.1.mlp").nan == IDS.numel()


def test_an_index_with_a_dtype(tiny_llama: nn.Module) -> None:
    whole = lv.trace(tiny_llama, IDS, MLP)[MLP]
    for keep in ((lv.at(token=-1), torch.bfloat16), (slice(None), [3], torch.bfloat16)):
        trace = lv.trace(tiny_llama, IDS, MLP, keep=keep)
        assert torch.equal(trace[MLP], whole[:, -1:].bfloat16())
    with pytest.raises(lv.InputError, match="Did you mean 'statistics'"):
        lv.trace(tiny_llama, IDS, MLP, keep="statistic")


def test_complex_values_keep_both_halves_under_a_dtype() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    trace = lv.trace(nn.Identity(), x, ":output", keep=torch.bfloat16)
    assert torch.equal(trace[":output"], x)


# --- choices ----------------------------------------------------------------------------------


def held(model: nn.Module, inputs: Any, keep: Any) -> int:
    """What a run really keeps, each tensor once."""
    trace = lv.trace(model, inputs, "**", keep=keep)
    return sum({t.data_ptr(): t.nbytes for t in trace.values()}.values())


def test_choices_are_what_such_runs_keep(tiny_llama: nn.Module) -> None:
    inputs = {"input_ids": IDS, "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
    guess = lv.estimate(tiny_llama, inputs, "**")
    names = [c.name for c in guess.choices]
    assert names == [
        *("all tokens", "one token", "half precision", "one token, half precision"),
        "statistics only",
    ]
    for choice in guess.choices[:-1]:
        assert choice.total == held(tiny_llama, inputs, choice.keep), choice
    left = lv.trace(tiny_llama, inputs, "**", keep=guess.choices[1].keep).missed
    assert set(guess.choices[1].left_out) == set(left)
    statistics = guess.choices[-1]
    assert len(lv.trace(tiny_llama, inputs, "**", keep=statistics.keep).statistics) == len(
        guess.sites
    )
    assert statistics.total == 112 * len(guess.sites) and statistics.left_out == ()
    assert guess.total == guess.choices[0].total > guess.choices[1].total


def test_choices_do_not_depend_on_what_was_asked_for(tiny_llama: nn.Module) -> None:
    plain = lv.estimate(tiny_llama, IDS, "**")
    less = lv.estimate(tiny_llama, IDS, "**", keep=lv.at(token=0))
    assert less.choices == plain.choices and less.total < plain.total
    said = lv.estimate(tiny_llama, IDS, "**", keep="statistics")
    assert said.total == said.choices[-1].total


def test_groups_fold_layers(tiny_llama: nn.Module) -> None:
    guess = lv.estimate(tiny_llama, IDS, ["**.mlp", "**.mlp:input", "lm_head"])
    assert guess.groups == {
        "model.layers.*.mlp": 3 * 8 * 16 * 4,
        "model.layers.*.mlp:input": 3 * 8 * 16 * 4,
        "lm_head": 8 * 101 * 4,
    }
    assert sum(guess.groups.values()) == sum(guess.sites.values())


def test_an_unknown_estimate_has_no_choices(tiny_llama: nn.Module) -> None:
    guess = lv.estimate(tiny_llama, IDS, "model.layers.0.self_attn/matmul.0")
    assert guess.unknown and guess.choices == () and guess.groups == {}
