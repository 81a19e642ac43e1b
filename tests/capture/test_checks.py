"""Can a run be believed? Each amber on a real model where the numbers do differ, each green where
they do not."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
MLP = "model.layers.0.mlp"


def of(trace: lv.Trace, name: str) -> Any:
    (found,) = (check for check in trace.checks if check.name == name)
    return found


def said(trace: lv.Trace) -> dict[str, bool | None]:
    return {check.name: check.ok for check in trace.checks}


def test_all_green(tiny_llama: nn.Module, tmp_path: Path) -> None:
    trace = lv.trace(tiny_llama, IDS, "**", check=True)
    names = ("output", "modules", "padding", "mode", "random", "ranks", "finite")
    assert said(trace) == dict.fromkeys(names, True)
    assert all(check.level == "green" and check.reason.endswith(".") for check in trace.checks)
    assert "7 green" not in repr(trace) and "6 green" in repr(trace)  # the records are not read
    trace.save(tmp_path / "a")
    assert lv.load(tmp_path / "a").checks == trace.checks


# --- output -----------------------------------------------------------------------------------


def test_what_was_not_compared_is_amber(tiny_llama: nn.Module) -> None:
    plain = of(lv.trace(tiny_llama, IDS, MLP), "output")
    assert plain.ok is None and plain.level == "amber" and "check=True" in plain.reason
    edited = of(lv.trace(tiny_llama, IDS, MLP, lv.zero(MLP), check=True), "output")
    assert edited.ok is None and "1 intervention(s)" in edited.reason
    stopped = of(lv.trace(tiny_llama, IDS, MLP, stop=True, check=True), "output")
    assert stopped.ok is None and "stopped" in stopped.reason


class Forgetful(nn.Module):
    """Gives another output at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"y": self.inner(x) + self.calls}


def test_an_output_that_differs(tiny_llama: nn.Module) -> None:
    model = Forgetful()
    check = of(lv.trace(model, torch.ones(2, 3), "inner", check=True), "output")
    assert check.ok is False and "output[y] in 6 of 6 elements, by 1 at most" in check.reason
    assert model.calls == 2


def test_a_fused_encoder_differs_by_little_and_says_so() -> None:
    """O04: with hooks inside, PyTorch leaves its fused kernel."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 9, 32)
    trace = lv.trace(model, x, "**", check=True, keep_output=True)
    with torch.no_grad():
        plain = model(x)
    assert trace.output is not None
    equal = torch.equal(trace.output, plain)
    assert of(trace, "output").ok is equal
    assert of(trace, "modules").ok is False and "fused" in of(trace, "modules").reason
    assert "fused" not in of(lv.trace(model, x, "**", grad=True), "modules").reason


def test_a_comparison_changes_nothing(tiny_llama: Any) -> None:
    """Random state, cache and mode are what one plain call leaves."""
    from transformers import DynamicCache

    tiny_llama.train()
    tiny_llama.config.attention_dropout = 0.3
    for layer in tiny_llama.model.layers:
        layer.self_attn.attention_dropout = 0.3
    torch.manual_seed(3)
    with torch.no_grad():
        tiny_llama(IDS, past_key_values=DynamicCache(config=tiny_llama.config))
    state = torch.get_rng_state()
    cache = DynamicCache(config=tiny_llama.config)
    torch.manual_seed(3)
    trace = lv.trace(tiny_llama, {"input_ids": IDS, "past_key_values": cache}, MLP, check=True)
    assert torch.equal(torch.get_rng_state(), state) and cache.get_seq_length() == 4
    assert of(trace, "output").ok is True
    assert of(trace, "random").ok is False and of(trace, "mode").ok is False


def test_a_second_call_that_would_change_the_model() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(model)
    check = of(lv.trace(model, torch.randn(4, 3), "**", check=True), "output")
    assert check.ok is None and "running statistics" in check.reason
    counts = [m.get_buffer("1.num_batches_tracked").item() for m in (before, model)]
    assert counts == [0, 1]


# --- modules ----------------------------------------------------------------------------------


def test_compiled_modules(tiny_llama: Any) -> None:
    tiny_llama.model.layers[1].mlp.compile(backend="eager")
    check = of(lv.trace(tiny_llama, IDS, MLP), "modules")
    assert check.ok is False and "model.layers.1.mlp is compiled" in check.reason


def test_bypassed_modules() -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.ones(1, 3, 8)
    trace = lv.trace(attention, (x, x, x), ["out_proj", ":output"], grad=True)
    check = of(trace, "modules")
    assert check.ok is False and "out_proj is never called" in check.reason


def test_hooks_of_others(tiny_llama: Any) -> None:
    handle = tiny_llama.model.norm.register_forward_hook(lambda *_: None)
    check = of(lv.trace(tiny_llama, IDS, MLP), "modules")
    assert check.ok is False and "model.norm is hooked by others" in check.reason
    handle.remove()
    assert of(lv.trace(tiny_llama, IDS, MLP), "modules").ok is True


# --- mode and random numbers ------------------------------------------------------------------


def test_dropout_in_train_mode(tiny_gpt2: Any) -> None:
    tiny_gpt2.transformer.drop.train()
    trace = lv.trace(tiny_gpt2, IDS, "transformer.h.0")
    again = lv.trace(tiny_gpt2, IDS, "transformer.h.0")
    assert not torch.equal(trace["transformer.h.0"], again["transformer.h.0"])
    assert (
        of(trace, "mode").ok is False and "transformer.drop is in train" in of(trace, "mode").reason
    )
    assert of(trace, "random").ok is False
    tiny_gpt2.train()
    assert "dropout layers" in of(lv.trace(tiny_gpt2, IDS, "transformer.h.0"), "mode").reason


# --- padding ----------------------------------------------------------------------------------

TEXTS = torch.tensor([[5, 17, 3, 9], [8, 90, 0, 0]])
RIGHT = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def own_run(model: nn.Module, site: str) -> Tensor:
    """The short row alone, by a hook."""
    with torch.no_grad():
        return lv.extract(model, TEXTS[1:, :2], [site])[site][0]


def test_right_padding_with_a_mask_is_green_and_equal(tiny_gpt2: nn.Module) -> None:
    site = "transformer.h.2"
    trace = lv.trace(tiny_gpt2, {"input_ids": TEXTS, "attention_mask": RIGHT}, site)
    assert of(trace, "padding").ok is True and "right" in of(trace, "padding").reason
    torch.testing.assert_close(trace[site][1, :2], own_run(tiny_gpt2, site))


def test_left_padding_needs_positions(tiny_gpt2: nn.Module) -> None:
    """GPT-2's positions are learned: counted from the pads on, they are other ones."""
    site = "transformer.h.2"
    inputs = {"input_ids": TEXTS.roll(2, 1), "attention_mask": RIGHT.roll(2, 1)}
    inputs["input_ids"][0], inputs["attention_mask"][0] = TEXTS[0], RIGHT[0]
    amber = lv.trace(tiny_gpt2, inputs, site)
    check = of(amber, "padding")
    assert check.ok is False and "row 1 is padded on the left without position_ids" in check.reason
    alone = own_run(tiny_gpt2, site)
    assert float((amber[site][1, 2:] - alone).abs().max()) > 1e-3
    places = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    green = lv.trace(tiny_gpt2, {**inputs, "position_ids": places}, site)
    assert of(green, "padding").ok is True
    torch.testing.assert_close(green[site][1, 2:], alone)
    shifted = lv.trace(tiny_gpt2, {**inputs, "position_ids": places * 2}, site)
    assert "do not rise by one" in of(shifted, "padding").reason


def test_pads_without_a_mask(tiny_llama: Any) -> None:
    tiny_llama.config.pad_token_id = 0
    site = "model.layers.2"
    left = TEXTS.clone()
    left[1] = TEXTS[1].roll(2)
    trace = lv.trace(tiny_llama, left, site)
    check = of(trace, "padding")
    assert check.ok is False and "row 1 is in pad tokens" not in check.reason
    assert "row 1 begins or ends in pad tokens" in check.reason
    assert float((trace[site][1, 2:] - own_run(tiny_llama, site)).abs().max()) > 1e-3


def test_padding_that_cannot_be_told(tiny_llama: nn.Module) -> None:
    holes = {"input_ids": IDS, "attention_mask": torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]])}
    assert of(lv.trace(tiny_llama, holes, MLP), "padding").ok is None
    four = {"input_ids": IDS, "attention_mask": torch.zeros(2, 1, 4, 4)}
    assert of(lv.trace(tiny_llama, four, MLP), "padding").ok is None
    embedded = {"inputs_embeds": torch.randn(1, 3, 16)}
    assert of(lv.trace(tiny_llama, embedded, MLP), "padding").ok is None
    assert of(lv.trace(tiny_llama, IDS, MLP), "padding").ok is True


# --- finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_among_many(dtype: torch.dtype, bad: float) -> None:
    model = nn.Identity()
    x = torch.full((3, 4000), 60_000.0).to(dtype)  # a sum in float16 would overflow
    assert of(lv.trace(model, x, ":output"), "finite").ok is True
    x[2, 17] = bad
    check = of(lv.trace(model, x, ":output"), "finite")
    assert check.ok is False and ":output" in check.reason


def test_a_sum_that_overflows_is_no_alarm() -> None:
    x = torch.full((3, 4000), 3e38)
    trace = lv.trace(nn.Identity(), x, ":output")
    assert not bool(x.sum().isfinite()) and of(trace, "finite").ok is True
    odd = torch.tensor([1.0, 2]).to(torch.float8_e4m3fn)
    assert of(lv.trace(nn.Identity(), odd, ":output"), "finite").ok is True


def test_values_of_other_layouts_are_looked_at_and_unreadable_ones_are_not_green() -> None:
    from tests.traces.test_storage import made_of

    nan = torch.tensor([[0, float("nan")], [0, 1]])
    huge = torch.sparse_coo_tensor(torch.tensor([[5], [7]]), torch.ones(1), (1 << 20, 1 << 20))
    jagged = torch.nested.nested_tensor([nan[0], nan[1, :1]], layout=torch.jagged)
    for bad in (nan.to_sparse(), nan.to_sparse_csr(), nan.to_sparse_bsc((1, 1)), jagged):
        assert of(made_of({"a": torch.ones(2), "b": bad}), "finite").reason.endswith("first at b.")
    assert of(made_of({"a": huge}), "finite").ok is True
    unread = of(made_of({"a": torch.ones(2), "b": torch.ones(2, device="meta")}), "finite")
    assert unread.ok is None and "1 cannot be read, the first b" in unread.reason
    assert of(made_of({}), "finite").ok is None


def test_a_fully_masked_row(tiny_llama: Any) -> None:
    """O23: attention over nothing gives NaN, and the run says where it began."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 3, 8)
    masked = torch.tensor([[False] * 3, [True] * 3])
    trace = lv.trace(attention, lv.Args(x, x, x, key_padding_mask=masked), ":output", grad=True)
    assert of(trace, "finite").ok is False and bool(trace[":output"][1].isnan().all())


# --- elsewhere --------------------------------------------------------------------------------


def test_steps_of_a_generation_have_checks(tiny_llama: nn.Module) -> None:
    steps = lv.generate(tiny_llama, IDS[:1], MLP, max_new_tokens=3)
    for i in range(3):
        assert said(steps.step(i)) == dict.fromkeys(("modules", "mode", "ranks", "finite"), True)


def test_merged_checks_are_the_worst(tiny_llama: nn.Module) -> None:
    one = lv.trace(tiny_llama, IDS[:1], MLP, check=True)
    tiny_llama.get_submodule("model.layers.0.self_attn.q_proj").register_forward_hook(
        lambda *_: None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = lv.trace(tiny_llama, IDS[1:], MLP)
    merged = lv.merge_ranks([one, other])
    assert of(merged, "output").ok is None and of(merged, "modules").ok is False
    assert of(merged, "mode").ok is True


def test_a_fragment_is_not_the_whole(tiny_llama: nn.Module) -> None:
    trace = lv.trace(tiny_llama, IDS, MLP)
    assert of(trace, "ranks").reason == "the model is whole in one process."
