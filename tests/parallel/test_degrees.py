"""Degrees: what a config can be split over, before a reshape finds out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from transformers import (
    AutoConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    Phi3Config,
    Qwen3MoeConfig,
)

from lensview.errors import DegreeError
from lensview.parallel.degrees import check_degree, unplanned


def llama(heads: int, kv: int, **more: Any) -> LlamaConfig:
    return LlamaConfig(num_attention_heads=heads, num_key_value_heads=kv, hidden_size=360, **more)


@pytest.mark.parametrize(
    ("config", "works"),
    [
        (llama(9, 9), {1, 3, 9}),
        (llama(9, 3), {1, 3}),
        (llama(8, 8, head_dim=32), {1, 2, 4, 8}),
        (llama(8, 2, head_dim=32), {1, 2}),
        (llama(8, 8, head_dim=32, intermediate_size=7, vocab_size=101), {1, 2, 4, 8}),
        # All heads' keys come of one latent.
        (DeepseekV2Config(num_attention_heads=4, num_key_value_heads=1), {1, 2, 4}),
        # Their queries, keys and values are gathered, or not split at all.
        (Phi3Config(num_attention_heads=9, num_key_value_heads=9), set(range(1, 10))),
        (DeepseekV3Config(num_attention_heads=4), set(range(1, 10))),
        (GPT2Config(), set(range(1, 10))),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_heads_divide(config: Any, works: set[int]) -> None:
    for ranks in range(1, 10):
        if ranks in works:
            check_degree(config, ranks)
        else:
            with pytest.raises(DegreeError, match="heads") as told:
                check_degree(config, ranks)
            listed = str(told.value).rpartition("Degrees that work: ")[2].rstrip(".")
            assert {int(n) for n in listed.split(", ")} - {*range(10, 1000)} == works


def test_the_text_part_of_a_config_counts() -> None:
    config = AutoConfig.for_model("llava", text_config=llama(9, 3).to_dict())
    check_degree(config, 3)
    with pytest.raises(DegreeError, match="llava cannot be split over 2 ranks: 9 attention heads"):
        check_degree(config, 2)


def test_experts_divide_where_they_are_dealt_out() -> None:
    config = Qwen3MoeConfig(num_experts=6, num_attention_heads=8, num_key_value_heads=8)
    check_degree(config, 4)
    config.distributed_config = SimpleNamespace(tp_size=4, ep_size=4)
    with pytest.raises(DegreeError, match=r"6 experts\. Degrees that work: 1, 2\."):
        check_degree(config, 4)
    check_degree(config, 2)


def test_a_model_that_would_be_copied_is_told() -> None:
    model: Any = nn.Linear(2, 2)
    assert unplanned(model) is None
    model._tp_size = 2
    told = unplanned(model)
    assert told is not None and "tp_size=2" in told and "copy" in told
