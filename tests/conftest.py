"""The models that the tests run on, and the one setting that keeps them fast on a small machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from transformers import (
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MixtralForCausalLM,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

torch.set_num_threads(2)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


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


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window; one for all tests, as Playwright allows only one."""
    from playwright.sync_api import sync_playwright

    named = [os.environ.get("LENSVIEW_CHROMIUM"), *map(shutil.which, BROWSERS)]
    found = next(filter(None, named), None)
    if found is None:
        pytest.fail(
            "The browser tests need Chromium, and none is installed. `make test` installs it; by "
            "hand: apt-get install chromium, or name it in LENSVIEW_CHROMIUM."
        )
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=BROWSER_FLAGS)
        yield launched
        launched.close()


@pytest.fixture
def tiny_mixtral() -> MixtralForCausalLM:
    """1 layer of 4 experts, 16 hidden, 4 heads over 2 key-value heads; random weights, eval."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=64,
    )
    return MixtralForCausalLM(config).eval()
