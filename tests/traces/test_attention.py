"""Attention patterns against what the models' own eager attention returns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lensview as lv
from lensview.traces.attention import AttentionUnknownError
from tests.capture.test_lens import batch, built

_GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2}
MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "sdpa", {}),
    ("llama", "eager", {}),
    ("qwen3", "sdpa", {"head_dim": 8}),
    ("mistral", "sdpa", {"sliding_window": 3}),
    ("gemma2", "eager", {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 0.1}),
    ("mixtral", "sdpa", {"num_local_experts": 4}),
    ("gpt_oss", "eager", {"head_dim": 8, "num_local_experts": 4, "sliding_window": 4}),
    ("gpt2", "sdpa", _GPT),
    ("gpt2", "eager", _GPT),
    ("opt", "sdpa", {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    ("bloom", "eager", {}),
    ("gpt_neox", "sdpa", {}),
    ("phi", "sdpa", {}),
    ("cohere", "sdpa", {}),
    ("granite", "sdpa", {}),
]


def attention_of(model: nn.Module) -> str:
    """The path of the first layer's attention."""
    named = [p for p, m in model.named_modules() if "attention" in type(m).__name__.lower()]
    return next(p for p in named if not any(q.startswith(f"{p}.") for q in named))


@pytest.mark.parametrize(("kind", "kernel", "more"), MODELS, ids=[f"{k}-{s}" for k, s, _ in MODELS])
def test_against_what_the_model_returns(kind: str, kernel: str, more: dict[str, Any]) -> None:
    model, inputs = built(kind, **more), batch()
    path = attention_of(model)
    model.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.no_grad():
        own = model(**inputs, output_attentions=True).attentions[0]
    model.set_attn_implementation(kernel)  # type: ignore[operator]
    found = lv.attention(lv.trace(model, inputs, lv.attention_sites(path)), path)
    # Of padding as a query nobody asks; what masks leave there differs between kernels.
    real = inputs["attention_mask"].bool()
    for row in range(2):
        count = int(real[row].sum())
        torch.testing.assert_close(
            found.weights[row, :, :count], own[row, :, :count].float(), atol=1e-6, rtol=1e-5
        )
    assert found.heads == 4 and found.path == path
    assert found.difference <= 1e-5 * found.largest
    assert ("scaled_dot_product_attention" in found.source) == (kernel == "sdpa")
    assert ("sinks" in found.source) == (kind == "gpt_oss")
    assert model.config._attn_implementation == kernel  # type: ignore[union-attr]


class Attention(nn.Module):
    """Calls the kernel with whatever it is made with."""

    def __init__(self, times: int = 1, **options: Any) -> None:
        super().__init__()
        self.times, self.options = times, options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for _ in range(self.times):
            out = F.scaled_dot_product_attention(q, k, v, **self.options)
        return out


def qkv(heads: int = 4, shared: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, heads, 5, 8), torch.randn(2, shared, 5, 8), torch.randn(2, shared, 5, 8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.2},
        {"attn_mask": torch.randn(5, 5)},
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).tril(-1)},
    ],
)
def test_arguments_of_the_kernel(options: dict[str, Any]) -> None:
    """With the identity as values the kernel's result is its pattern."""
    q, k, _ = qkv()
    v = torch.eye(5).expand(2, 4, 5, 5)
    holder = nn.ModuleDict({"attention": Attention(**options)})

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = holder["attention"]

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.inner(q, k, v)

    model = Outer()
    found = lv.attention(lv.trace(model, (q, k, v), lv.attention_sites("inner")), "inner")
    own = F.scaled_dot_product_attention(q, k, v, **options).nan_to_num()
    torch.testing.assert_close(found.weights, own, atol=1e-6, rtol=1e-5)


def test_heads_that_share_keys() -> None:
    q, k, v = qkv(shared=2)
    model = Attention(enable_gqa=True)
    found = lv.attention(lv.trace(model, (q, k, v), lv.attention_sites("")), "")
    again = found.weights @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(again, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


def test_what_cannot_be_known_is_refused() -> None:
    twice = Attention(times=2)
    with pytest.raises(AttentionUnknownError, match="more than once"):
        lv.attention(lv.trace(twice, qkv(), lv.attention_sites("")), "")
    dropping = Attention(dropout_p=0.5)
    with pytest.raises(AttentionUnknownError, match=r"dropout 0\.5"):
        lv.attention(lv.trace(dropping, qkv(), lv.attention_sites("")), "")
    other = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(AttentionUnknownError, match="neither scaled_dot_product_attention nor"):
        lv.attention(lv.trace(other, torch.zeros(1, 8), lv.attention_sites("0")), "0")
    with pytest.raises(AttentionUnknownError, match="was recorded in this run"):
        lv.attention(lv.trace(other, torch.zeros(1, 8)), "0")
    with pytest.raises(lv.SiteError, match="one attention module"):
        lv.attention_sites("model.layers.*.self_attn")


def test_a_pattern_that_does_not_give_the_result_is_refused(tiny_llama: Any) -> None:
    path = "model.layers.0.self_attn"
    edit = lv.scale(f"{path}/scaled_dot_product_attention", 1.5)
    seen = lv.trace(tiny_llama, torch.tensor([[5, 17, 3]]), lv.attention_sites(path), edit)
    with pytest.raises(AttentionUnknownError, match="differ by"):
        lv.attention(seen, path)
