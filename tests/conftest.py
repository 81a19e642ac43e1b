"""The models that the tests run on, and the one setting that keeps them fast on a small machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from transformers import (
        GPT2LMHeadModel,
        LlamaForCausalLM,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def demo_model() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct and its tokenizer. Shared: a test leaves it as it was."""
    from lensview.demo_model import demo

    return demo()


@pytest.fixture
def tiny_llama() -> LlamaForCausalLM:
    """3 layers, 16 hidden, 4 heads over 2 key-value heads, 101 tokens; random weights, eval."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


@pytest.fixture
def tiny_gpt2() -> GPT2LMHeadModel:
    """GPT-2 at the scale of `tiny_llama`: fused qkv, Conv1D weights, learned positions."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=101, n_embd=16, n_inner=32, n_layer=3, n_head=4, n_positions=64)
    model = GPT2LMHeadModel(config)
    model.eval()
    return model
