"""The logit lens against norm and head applied by hand, on many architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.capture.unembed import LensUnsupportedError

SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
_GPT = {"n_embd": 32, "n_head": 4, "n_layer": 3}
WAYS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {}, "model.norm → lm_head"),
    ("qwen3", {"head_dim": 8}, "model.norm → lm_head"),
    ("mixtral", {"num_local_experts": 4}, "model.norm → lm_head"),
    ("gpt_oss", {"head_dim": 8, "num_local_experts": 4}, "model.norm → lm_head"),
    ("gpt2", _GPT, "transformer.ln_f → lm_head"),
    ("gpt_neox", {}, "gpt_neox.final_layer_norm → lm_head"),
    (
        "opt",
        {"ffn_dim": 48, "word_embed_proj_dim": 32},
        "model.decoder.final_layer_norm → lm_head",
    ),
    (
        "opt",
        {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
        "model.decoder.project_out → lm_head",
    ),
    ("openai-gpt", _GPT, "lm_head"),
    ("bloom", {}, "transformer.ln_f → lm_head"),
    ("falcon", {}, "transformer.ln_f → lm_head"),
    ("phi", {}, "model.final_layernorm → lm_head"),
    ("mamba", {"state_size": 4}, "backbone.norm_f → lm_head"),
    (
        "gemma2",
        {"head_dim": 8, "final_logit_softcapping": 0.5},
        "model.norm → lm_head → tanh(logits / 0.5) × 0.5 (config.final_logit_softcapping)",
    ),
    ("cohere", {}, "model.norm → lm_head → × 0.0625 (config.logit_scale)"),
    ("granite", {"logits_scaling": 3.0}, "model.norm → lm_head → ÷ 3 (config.logits_scaling)"),
]


def built(kind: str, **more: Any) -> nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **more})
    model: nn.Module = AutoModelForCausalLM.from_config(config).eval()
    return model


def batch() -> dict[str, Tensor]:
    ids = torch.randint(3, 101, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    ("kind", "more", "way"), WAYS, ids=[f"{k}-{i}" for i, (k, _, _) in enumerate(WAYS)]
)
def test_the_last_layer_says_what_the_model_says(kind: str, more: dict[str, Any], way: str) -> None:
    model, inputs = built(kind, **more), batch()
    lens = lv.logit_lens(lv.trace(model, inputs), model, row=1, k=3)
    with torch.no_grad():
        plain = model(**inputs).logits[1, :5].float().softmax(-1)
    assert lens.way == way
    assert lens.difference == 0.0
    assert lens.positions == (0, 1, 2, 3, 4) and lens.ids.shape == (3, 5, 3)
    torch.testing.assert_close(lens.probabilities[-1], plain.topk(3).values, rtol=1e-5, atol=1e-7)
    assert torch.equal(lens.ids[-1, :, 0], plain.argmax(-1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    model, inputs = built("gemma2", head_dim=8).to(dtype), batch()
    lens = lv.logit_lens(lv.trace(model, inputs), model)
    with torch.no_grad():
        plain = model(**inputs).logits[0].float().softmax(-1)
    assert lens.difference == 0.0 and "softcapping" in lens.way
    torch.testing.assert_close(lens.probabilities[-1, :, 0], plain.amax(-1), rtol=2e-2, atol=0)


def test_each_layer_by_a_hook_of_ones_own(tiny_llama: Any) -> None:
    ids = torch.tensor([[5, 17, 3, 42]])
    kept: list[Tensor] = []
    handles = [
        layer.register_forward_hook(lambda module, given, out: kept.append(out.clone()))
        for layer in tiny_llama.model.layers
    ]
    with torch.no_grad():
        tiny_llama(ids)
        for handle in handles:
            handle.remove()
        by_hand = [tiny_llama.lm_head(tiny_llama.model.norm(h))[0].softmax(-1) for h in kept]
    lens = lv.logit_lens(lv.trace(tiny_llama, ids), tiny_llama)
    for layer, chances in enumerate(by_hand):
        best = chances.topk(5)
        assert torch.equal(lens.ids[layer], best.indices)
        torch.testing.assert_close(lens.probabilities[layer], best.values)
    assert lens.top(1, 2)[0].id == int(by_hand[1][2].argmax())


def test_an_edited_run_beside_its_baseline(tiny_llama: Any) -> None:
    ids = torch.tensor([[5, 17, 3, 42]])
    plain = lv.trace(tiny_llama, ids)
    edited = lv.trace(tiny_llama, ids, interventions=lv.scale("model.layers.1.mlp", 5.0))
    lens = lv.logit_lens(edited, tiny_llama, against=plain)
    alone = lv.logit_lens(plain, tiny_llama, k=101)
    assert lens.before is not None and not torch.equal(lens.before, lens.probabilities)
    for layer in range(3):
        for token in range(4):
            known = {t.id: t.probability for t in alone.top(layer, token)}
            ids_here = lens.ids[layer, token].tolist()
            assert lens.before[layer, token].tolist() == pytest.approx([known[i] for i in ids_here])


def test_an_intervention_after_the_last_layer_is_told(tiny_llama: Any) -> None:
    ids = torch.tensor([[5, 17, 3, 42]])
    plain = lv.trace(tiny_llama, ids)
    edited = lv.trace(tiny_llama, ids, interventions=lv.scale("model.norm", 3.0))
    with pytest.raises(LensUnsupportedError, match="stands at the final norm"):
        lv.logit_lens(edited, tiny_llama, against=plain)


def test_weights_that_changed_are_told(tiny_llama: Any) -> None:
    seen = lv.trace(tiny_llama, torch.tensor([[5, 17, 3]]))
    with torch.no_grad():
        tiny_llama.lm_head.weight.mul_(1.5)
    with pytest.raises(LensUnsupportedError, match="weights have changed"):
        lv.logit_lens(seen, tiny_llama)


def test_what_no_lens_passes_through() -> None:
    from transformers import AutoModel, BertConfig, BertLMHeadModel, T5Config
    from transformers import T5ForConditionalGeneration as T5

    small: dict[str, Any] = {
        "decoder_start_token_id": 0,
        "num_layers": 1,
        "d_model": 16,
        "d_ff": 16,
        "num_heads": 2,
        "d_kv": 8,
    }
    t5 = T5(T5Config(vocab_size=101, **small)).eval()
    ids = torch.tensor([[5, 17, 3]])
    with pytest.raises(LensUnsupportedError, match="encoder-decoder"):
        lv.logit_lens(lv.trace(t5, {"input_ids": ids, "decoder_input_ids": ids}), t5)
    bert = BertConfig(
        vocab_size=101,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
    )
    # Its head has a dense layer and an activation of its own before the decoder.
    transformed = BertLMHeadModel(bert).eval()
    with pytest.raises(LensUnsupportedError, match="does something else"):
        lv.logit_lens(lv.trace(transformed, ids), transformed)
    encoder = AutoModel.from_config(bert).eval()
    with pytest.raises(LensUnsupportedError, match="no output head"):
        lv.logit_lens(lv.trace(encoder, ids), encoder)
    plain = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(LensUnsupportedError, match="no list of layers"):
        lv.logit_lens(lv.trace(plain, torch.zeros(1, 4)), plain)


def test_on_the_real_model(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    seen = lv.trace(model, "The capital of France is", tokenizer=tokenizer)
    lens = lv.logit_lens(seen, lv.LocalSession(model, tokenizer))
    assert lens.difference == 0.0
    said, own = lens.top(-1, -1)[0], seen.top(1)[0]
    assert said.id == own.id and said.probability == pytest.approx(own.probability, rel=1e-5)
    assert "' Paris':0.77" in str(lens)
