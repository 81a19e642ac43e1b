"""Table: the model types that are split over ranks, and what each needs to be made small.

Owns the sizes that the common small ones do not fit, and which types stand for the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import nn

from tests.architectures.shrink import tiny


def at_least(*version: int) -> bool:
    """Whether the transformers that runs is of this version or a later one."""
    numbers = re.findall(r"\d+", transformers.__version__)
    return tuple(int(n) for n in numbers[: len(version)]) >= version


MLA: dict[str, Any] = {"num_key_value_heads": 4}
LINEAR: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}

VOCABULARY = 101 if at_least(5, 21) else 102
"""How many tokens the models know; before 5.21 transformers refuses what is not divisible."""

WIDTH = 31 if at_least(5, 21) else 30
"""Of an mlp, uneven over ranks; older transformers run that without a gradient only."""

SIZES: dict[str, Mapping[str, Any]] = {
    "deepseek_v3": MLA,
    "deepseek_v2": {**MLA, "num_experts_per_tok": 2},
    "deepseek_v32": MLA,
    "axk1": MLA,
    "axk2": MLA,
    "glm4_moe_lite": MLA,
    "glm_moe_dsa": MLA,
    "longcat_flash": MLA,
    "minicpm3": MLA,
    "sarvam_mla": MLA,
    "youtu": MLA,
    "qwen3_next": LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
}

FAST = (
    "llama qwen3 mixtral llama4_text deepseek_v3 gpt_oss gemma2 phi3 qwen2 granite_swa cohere "
    "longcat_flash starcoder2"
).split()
"""A covering dozen: biases, norms per head, experts, packed weights, latent attention, sinks."""


LABELLED = {"mixtral, by experts": 8, "longcat_flash": 6 if at_least(5, 20) else 4}
"""How many leaves of a row are rank-local: the insides of experts that each rank has of its own,
and of experts that loop over what the routing chose."""

UNFIT: set[str] = set() if at_least(5, 23) else {"granite_swa"}
"""Model types that do not run in transformers itself when it splits them."""

if not at_least(5, 20):
    # Experts that each rank has of its own come under FSDP2 there, which a capture refuses.
    UNFIT.add("mixtral, by experts")

DIFFERENT = {"hrm_text"}
"""Model types that transformers itself computes differently when it splits them."""


def planned() -> list[str]:
    """Every model type of transformers whose configuration has a plan."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found = []
    for kind in CONFIG_MAPPING:
        try:
            factory = CONFIG_MAPPING[kind]
        except Exception:
            continue
        if getattr(factory, "base_model_tp_plan", None):
            found.append(kind)
    return found


@dataclass(frozen=True)
class Case:
    """One row: a model type, how it is loaded and split, and which part of it is looked at."""

    kind: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    part: str = ""


CASES = {
    "llama, eager": Case("llama", load={"attn_implementation": "eager"}),
    "llama, uneven": Case("llama", {"vocab_size": VOCABULARY + 2, "intermediate_size": 49}),
    "mixtral, batched": Case("mixtral", load={"experts_implementation": "batched_mm"}),
    "mixtral, eager": Case("mixtral", load={"experts_implementation": "eager"}),
    "mixtral, by experts": Case("mixtral", split={"ep_size": 2}),
    "phi3, packed": Case(
        "phi3",
        split={
            "tp_plan": {
                "model.layers.*.mlp.gate_up_proj": "packed_colwise",
                "model.layers.*.mlp.down_proj": "rowwise",
            }
        },
    ),
    "llama, thirds": Case(
        "llama",
        {
            "hidden_size": 36,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 4,
            "intermediate_size": 50,
        },
    ),
    "llama, a part": Case("llama", part="model"),
    "mixtral, a part": Case("mixtral", part="model"),
}
"""Rows beside those of the plain model types."""

PRECISE = {"gemma4_text": Case("gemma4_text", load={"dtype": torch.float64})}
"""Types whose rounding in float32 is above 1e-5: attention scores that are not scaled."""


def make(case: Case) -> nn.Module:
    """A tiny model, with no weight, bias or norm left at its neutral value."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    auto = "AutoModelForCausalLM" if case.kind in names else "AutoModel"
    sizes = {"vocab_size": VOCABULARY, **SIZES.get(case.kind, {}), **case.sizes}
    model = tiny(case.kind, auto, sizes)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model
