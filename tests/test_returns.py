"""What a forward's text says of its return."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from lensview.returns import tuple_returned


class Named(nn.Module):
    """Returns a name that is bound to a tuple."""

    def forward(self, x: Tensor, more: bool = False) -> Any:
        outputs = (x, None)
        if more:
            outputs = (*outputs, x)  # type: ignore[assignment]
        return outputs


class Added(nn.Module):
    """Returns a sum of tuples, and has a function with another return inside."""

    def forward(self, x: Tensor) -> Any:
        def inner() -> Tensor:
            return x

        rest = [inner()]
        return (x,) + tuple(rest)  # noqa: RUF005


class Either(nn.Module):
    """Returns one or the other."""

    def forward(self, x: Tensor, both: bool = False) -> Any:
        if both:
            return x, x
        return x


class Annotated(nn.Module):
    """Tells by its annotation alone."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.made(x)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Named, True),
        (Added, True),
        (Annotated, True),
        (Either, False),
        (nn.MultiheadAttention, True),
        (nn.Linear, False),
        (nn.TransformerEncoderLayer, False),
        (nn.ReLU, False),
    ],
)
def test_classes(kind: type[nn.Module], expected: bool) -> None:
    assert tuple_returned(kind.__new__(kind)) is expected


def noted(found: list[tuple[str, bool, bool]]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        found.append((type(module).__name__, type(output) is tuple, tuple_returned(module)))

    return hook


def test_classes_of_transformers() -> None:
    """Against what each really returns in a run."""
    import torch
    import transformers as tf

    ids = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
    small: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 32,
    }
    mixtral = tf.MixtralConfig(
        **small, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    )
    t5 = tf.T5Config(vocab_size=101, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4)
    models: list[tuple[nn.Module, dict[str, Tensor]]] = [
        (tf.LlamaForCausalLM(tf.LlamaConfig(**small)), {}),
        (tf.MixtralForCausalLM(mixtral), {}),
        (tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=101, n_embd=16, n_layer=1, n_head=4)), {}),
        (tf.BertForMaskedLM(tf.BertConfig(**small)), {}),
        (tf.T5ForConditionalGeneration(t5), {"decoder_input_ids": ids}),
        (tf.MambaForCausalLM(tf.MambaConfig(**small, state_size=4)), {}),
    ]
    checked = 0
    for model, more in models:
        found: list[tuple[str, bool, bool]] = []
        for module in model.modules():
            module.register_forward_hook(noted(found))
        with torch.no_grad():
            model.eval()(input_ids=ids, **more)
        wrong = {name for name, really, said in found if really is not said}
        assert wrong == set(), wrong
        checked += len(found)
    assert checked > 60
