"""Shrink: a tiny model of any architecture of transformers, with random weights.

Owns the small sizes and how they are put into a configuration, into the nested ones too. Which
architectures there are, and what they are called with, is `table.py`'s and its neighbours'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_WIDTHS = {
    32: "hidden_size d_model n_embd dim embed_dim embedding_size word_embed_proj_dim "
    "projection_dim lru_width",
    48: "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim hidden_dim",
    16: "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
    "mamba_d_head image_size num_mel_bins qk_head_dim",
    8: "head_dim d_kv global_head_dim patch_size state_size mamba_d_state qk_rope_head_dim "
    "qk_nope_head_dim v_head_dim linear_key_head_dim linear_value_head_dim attention_window_size "
    "hidden_size_per_layer_input",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads attention_heads "
    "decoder_attention_heads num_local_experts num_experts n_routed_experts mamba_n_heads "
    "rotary_dim linear_num_value_heads",
    2: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth "
    "num_decoder_layers num_encoder_layers num_key_value_heads num_experts_per_tok moe_topk "
    "top_k_experts mamba_expand linear_num_key_heads eos_token_id",
    1: "n_group topk_group first_k_dense_replace bos_token_id decoder_start_token_id",
    0: "pad_token_id",
    64: "max_position_embeddings n_positions",
    101: "vocab_size vocab_size_per_layer_input",
}
SMALL = {name: size for size, names in _WIDTHS.items() for name in names.split()}


def tiny(kind: str, auto: str, sizes: Mapping[str, Any]) -> nn.Module:
    """A model in eval mode, made by transformers' class `auto` from a shrunken configuration.

    Args:
        kind: transformers' model type.
        auto: the name of an ``Auto…`` class.
        sizes: what this architecture needs besides, or instead of, the common small sizes; a
            mapping under the name of a nested configuration goes into that one.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    factory = CONFIG_MAPPING[kind]
    config = factory(**_merged(_small(factory()), sizes))
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, auto).from_config(config)
    return model.eval()


def _small(config: Any) -> dict[str, Any]:
    """The small sizes that this configuration knows, by its own names."""
    kind = type(config)
    own = vars(config)  # read past the property that refuses a size that differs between layers
    found: dict[str, Any] = {
        name: size
        for name, size in SMALL.items()
        if isinstance(own.get(name), int)
        and name not in kind.attribute_map
        and not isinstance(getattr(kind, name, None), property)
    }
    if "kv_lora_rank" in found and "num_key_value_heads" in found:
        found["num_key_value_heads"] = found[
            "num_attention_heads"
        ]  # latent attention has no groups
    for name in getattr(kind, "sub_configs", None) or {}:
        inner = getattr(config, name, None)
        if inner is not None:
            found[name] = {**_small(inner), "model_type": inner.model_type}
    return found


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(below)
    for name, value in above.items():
        inner = result.get(name)
        result[name] = (
            _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
        )
    return result
