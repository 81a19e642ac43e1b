"""Ops of transformers' models against the same values worked out by hand from other records."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
INPUTS = {"input_ids": IDS, "attention_mask": MASK}


@pytest.fixture
def tiny_mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return MixtralForCausalLM(config).eval()


@pytest.fixture
def tiny_mamba() -> nn.Module:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(vocab_size=101, hidden_size=16, num_hidden_layers=2, state_size=4)
    return MambaForCausalLM(config).eval()


def heads(flat: Tensor, count: int) -> Tensor:
    """(B, T, H*d) to (B, H, T, d)."""
    return flat.unflatten(-1, (count, -1)).transpose(1, 2)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of (B, H, T, d)."""
    half = x.shape[-1] // 2
    other = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos[:, None] + other * sin[:, None]


def causal(scores: Tensor) -> Tensor:
    """(B, H, T, T) with the future and the padding of `MASK` at the dtype's minimum."""
    size = scores.shape[-1]
    open_ = torch.ones(size, size, dtype=torch.bool).tril() & MASK.bool()[:, None, None]
    return scores.masked_fill(~open_, torch.finfo(scores.dtype).min)


def test_llama_attention_from_its_projections(tiny_llama: Any) -> None:
    tiny_llama.set_attn_implementation("eager")
    at = "model.layers.1.self_attn"
    asked = [f"{at}.{p}_proj" for p in "qkv"] + ["model.rotary_emb", "model.rotary_emb:output[1]"]
    ops = ["matmul", "matmul:input", "add.2", "softmax", "dropout", "matmul.1", "contiguous"]
    asked += [f"{at}/{op}" for op in ops] + [f"{at}.o_proj:input"]
    trace = lv.trace(tiny_llama, INPUTS, asked)
    assert trace.missed == {}
    cos, sin = trace["model.rotary_emb"], trace["model.rotary_emb:output[1]"]
    q = turned(heads(trace[f"{at}.q_proj"], 4), cos, sin)
    k = turned(heads(trace[f"{at}.k_proj"], 2), cos, sin).repeat_interleave(2, 1)
    v = heads(trace[f"{at}.v_proj"], 2).repeat_interleave(2, 1)
    scores = q @ k.transpose(2, 3)
    weights = torch.softmax(causal(scores * 4**-0.5), -1)
    close = torch.testing.assert_close
    close(trace[f"{at}/matmul:input"], q)
    close(trace[f"{at}/matmul"], scores)
    close(trace[f"{at}/softmax"], weights)
    close(trace[f"{at}/dropout"], weights)
    close(trace[f"{at}/matmul.1"], weights @ v)
    close(trace[f"{at}/contiguous"], (weights @ v).transpose(1, 2))
    assert torch.equal(trace[f"{at}/contiguous"].flatten(2), trace[f"{at}.o_proj:input"])
    assert not trace[f"{at}/softmax"][0].triu(1).any()


def test_sdpa_is_one_op_with_named_arguments(tiny_llama: Any) -> None:
    at = "model.layers.1.self_attn"
    op = f"{at}/scaled_dot_product_attention"
    names = ("query", "key", "value", "attn_mask")
    sides = [f"{op}:input[{n}]" for n in names]
    trace = lv.trace(tiny_llama, INPUTS, [op, *sides, f"{at}/matmul", f"{at}/softmax"])
    assert set(trace.sites) == {op, *sides}
    assert "ran view, transpose" in trace.missed[f"{at}/softmax"]
    q, k, v, mask = (trace[side] for side in sides)
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=4**-0.5, enable_gqa=q.shape[1] != k.shape[1]
    )
    assert torch.equal(trace[op], expected)


def test_gpt2_attention_from_its_projection(tiny_gpt2: Any) -> None:
    tiny_gpt2.set_attn_implementation("eager")
    at = "transformer.h.1.attn"
    asked = [f"{at}.c_attn", f"{at}/softmax", f"{at}/matmul.1", f"{at}/split", f"{at}/split[2]"]
    trace = lv.trace(tiny_gpt2, INPUTS, asked)
    q, k, v = (heads(part, 4) for part in trace[f"{at}.c_attn"].split(16, -1))
    weights = torch.softmax(causal(q @ k.transpose(2, 3) * 4**-0.5), -1)
    torch.testing.assert_close(trace[f"{at}/softmax"], weights)
    torch.testing.assert_close(trace[f"{at}/matmul.1"], weights @ v)
    assert torch.equal(trace[f"{at}/split"], trace[f"{at}.c_attn"][..., :16])
    assert torch.equal(trace[f"{at}/split[2]"], trace[f"{at}.c_attn"][..., 32:])


def test_mixtral_router_and_experts(tiny_mixtral: nn.Module) -> None:
    at = "model.layers.1.mlp"
    asked = [f"{at}:input", f"{at}.gate/*", f"{at}.gate/topk[1]", f"{at}.gate/sum:input"]
    trace = lv.trace(tiny_mixtral, INPUTS, [*asked, f"{at}.experts/*", f"{at}.experts"])
    weight = tiny_mixtral.get_parameter(f"{at}.gate.weight")
    logits = F.linear(trace[f"{at}:input"].reshape(-1, 16), weight)
    assert torch.equal(trace[f"{at}.gate/linear"], logits)
    probabilities = torch.softmax(logits, -1)
    best, which = probabilities.topk(2)
    assert torch.equal(trace[f"{at}.gate/softmax"], probabilities)
    assert torch.equal(trace[f"{at}.gate/topk"], best)
    assert torch.equal(trace[f"{at}.gate/topk[1]"], which)
    # Divided in place afterwards: each record is of its own moment.
    assert torch.equal(trace[f"{at}.gate/sum:input"], best)
    assert torch.equal(trace[f"{at}.gate/div_"], best / best.sum(-1, keepdim=True))
    # The class's decorator runs another implementation than the forward that is written there.
    experts = trace.select(f"{at}.experts/*")
    assert torch.equal(list(experts.values())[-1].flatten(), trace[f"{at}.experts"].flatten())


def test_mamba_scan(tiny_mamba: Any) -> None:
    at = "backbone.layers.1.mixer"
    mixer = tiny_mamba.get_submodule(at)
    ops = ["exp", "neg", "chunk", "chunk[1]", "softplus", "softplus:input"]
    asked = [f"{at}.in_proj", f"{at}.x_proj", *(f"{at}/{op}" for op in ops)]
    trace = lv.trace(tiny_mamba, IDS, asked)
    assert torch.equal(trace[f"{at}/exp"], mixer.A_log.exp())
    assert torch.equal(trace[f"{at}/neg"], -mixer.A_log.exp())
    hidden, gate = trace[f"{at}.in_proj"].transpose(1, 2).chunk(2, 1)
    assert torch.equal(trace[f"{at}/chunk"], hidden)
    assert torch.equal(trace[f"{at}/chunk[1]"], gate)
    steps = trace[f"{at}.x_proj"][..., : mixer.time_step_rank] @ mixer.dt_proj.weight.T
    steps = (steps + mixer.dt_proj.bias).transpose(1, 2)
    torch.testing.assert_close(trace[f"{at}/softplus:input"], steps)
    torch.testing.assert_close(trace[f"{at}/softplus"], F.softplus(steps))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "mamba"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_looking_at_every_op_changes_no_bit(
    kind: str, attention: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(f"tiny_{kind}")
    if kind != "mamba":
        model.set_attn_implementation(attention)
    with torch.no_grad():
        expected = model(**INPUTS).logits
    trace = lv.trace(model, INPUTS, ["**/*", "**/*:input", "**"], keep_output=True)
    assert torch.equal(trace.output.logits, expected)
    assert len(trace) > 200
    for site in ("model.norm/mul.1", "backbone.norm_f/mul.1", "transformer.ln_f/layer_norm"):
        if site in trace:
            assert torch.equal(trace[site], trace[site.partition("/")[0]])
    with torch.no_grad():
        assert torch.equal(model(**INPUTS).logits, expected)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_an_edit_of_softmax_is_a_forward_written_anew(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    model = request.getfixturevalue(f"tiny_{kind}")
    model.set_attn_implementation("eager")
    layer = "model.layers" if kind == "llama" else "transformer.h"
    attn = "self_attn" if kind == "llama" else "attn"
    edits = [lv.zero(f"{layer}.*.{attn}/softmax", (slice(None), 1)), lv.scale("**/softmax", 0.5)]
    edited = lv.trace(model, INPUTS, f"{layer}.1.{attn}/softmax", edits, keep_output=True)
    assert [r.calls for r in edited.reports] == [3, 3]

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        weights = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5 + mask
        weights = torch.softmax(weights, -1)
        weights[:, 1] = 0
        return torch.matmul(weights * 0.5, value).transpose(1, 2).contiguous(), None

    code = importlib.import_module(type(model).__module__)
    monkeypatch.setattr(code, "eager_attention_forward", attention)
    with torch.no_grad():
        by_hand = model(**INPUTS).logits
    torch.testing.assert_close(edited.output.logits, by_hand)


# --- the source ----------------------------------------------------------------------------------


def test_the_source_names_the_ops_of_each_line(tiny_llama: Any) -> None:
    tiny_llama.set_attn_implementation("eager")
    at = "model.layers.1.self_attn"
    source = lv.source(tiny_llama, at, INPUTS)
    by_text = {line.text.strip(): line for line in source.lines}
    line = by_text[
        "attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32)"
        ".to(query.dtype)"
    ]
    assert line.function == "eager_attention_forward"
    assert [(op.site, op.shape, op.dtype) for op in line.ops] == [
        (f"{at}/softmax", (2, 4, 6, 6), "float32"),
        (f"{at}/to", (2, 4, 6, 6), "float32"),
    ]
    with open(line.file, encoding="utf-8") as file:
        assert file.read().splitlines()[line.number - 1] == line.text
    assert source.lines[0].function == "LlamaAttention.forward"
    trace = lv.trace(tiny_llama, INPUTS, f"{at}/*")
    assert sorted(source.sites) == sorted(trace.sites)
    for one in source.lines:
        for op in one.ops:
            assert op.shape == tuple(trace[op.site].shape)
    shown = str(source)
    assert "softmax float32[2, 4, 6, 6]" in shown and os.linesep not in shown.splitlines()[0]


def test_the_source_without_inputs_runs_nothing(tiny_llama: Any) -> None:
    tiny_llama.register_forward_pre_hook(lambda m, a: pytest.fail("it ran"))
    source = lv.source(tiny_llama, "model.norm")
    assert source.calls == 0 and source.sites == ()
    assert "hidden_states.pow(2).mean(-1, keepdim=True)" in str(source)
    with pytest.raises(lv.SiteError, match=r"model\.norm"):
        lv.source(tiny_llama, "model.nrom")


def test_the_source_of_a_module_called_twice_and_of_one_without_a_file() -> None:
    space: dict[str, Any] = {"nn": nn}
    exec("class Made(nn.Module):\n    def forward(self, x):\n        return x.exp().log()\n", space)
    made = space["Made"]()
    model = nn.Sequential(made, made, nn.Linear(4, 2))
    source = lv.source(model, "0", torch.ones(1, 4))
    assert source.calls == 2
    assert [(line.number, line.text) for line in source.lines] == [
        (3, "(its source is not on file)")
    ]
    assert source.sites == ("0/exp@0", "0/log@0", "0/exp@1", "0/log@1")
    linear = lv.source(model, "2", torch.ones(1, 4))
    assert linear.sites == ("2/linear",)
    assert "return F.linear(input, self.weight, self.bias)" in str(linear)
