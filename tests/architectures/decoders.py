"""Decoders: the rows of the causal language models of transformers.

Owns which of them capture is compared on and the sizes that each needs besides the common small
ones. What a tensor-parallel run needs of a tiny model stands here too: nearly every model type
with a plan of its own has a row.
"""

from __future__ import annotations

from typing import Any

from .calls import CAUSAL, Row, ids, rows, sized, text, unkept

_LINEAR: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
_CONV: dict[str, Any] = {"layer_types": ["conv", "full_attention"]}
_HEAD = {"head_dim": 8}
_GROUPS = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2}
_DELTA = {
    **_LINEAR,
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
}
_INKLING = {
    "rel_extent": 16,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "unpadded_vocab_size": 101,
}
_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
    "hc_lowrank": 8,
}
_INDEX = {"index_n_heads": 2, "index_head_dim": 8, "index_topk": 2}

_PART = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "head_dim": 8,
}
_BYTES = {
    "encoder_hash_byte_group_vocab": 64,
    "encoder_hash_byte_group_size": [3, 4],
    "patcher_config": _PART,
    "encoder_config": {**_PART, "hidden_size_global": 32},
    "decoder_config": {**_PART, "hidden_size_global": 32},
    "global_config": _PART,
}

DECODERS: tuple[Row, ...] = (
    *rows(
        "decoder",
        CAUSAL,
        "llama gpt2 gpt_neox gptj opt bloom falcon mistral qwen2 qwen3 gemma gemma2 gemma3_text "
        "phi phi3 olmo2 cohere stablelm starcoder2 codegen biogpt xglm granite smollm3 "
        "persimmon bitnet diffllama helium glm4 exaone4 ernie4_5 arcee apertus apertus1p5_text "
        "beam cohere2 cwm doge dory emu3 exaone flint fuyu git glm gpt-sw3 gpt_bigcode "
        "gpt_neox_japanese granite_swa hrm_text hyperclovax internlm3 iquestcoder jais2 minicpm3 "
        "ministral3 modernbert-decoder moshi moss_transcribe_diarize mpt nanochat olmo "
        "olmo3 openai-gpt seed_oss trocr vaultgemma youtu gemma4 gemma4_text gemma4_unified "
        "gemma4_unified_text",
        text,
        fast="gpt2 gemma2",
    ),
    *sized(
        "decoder",
        CAUSAL,
        text,
        {
            "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
            "ctrl": {"dff": 48},
            "cohere_compass_text": {
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "default",
                        "rope_theta": 10000.0,
                        "mrope_section": [2, 1, 1],
                    }
                }
            },
            "gemma3n_text": {
                "num_kv_shared_layers": 0,
                "laurel_rank": 8,
                "intermediate_size": 48,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            "hunyuan_v1_dense": _HEAD,
            "ministral": _HEAD,
            "nemotron": {**_HEAD, "num_key_value_heads": 2},
            "phi4_multimodal": {
                "vision_config": {"crop_size": 16},
                "audio_config": {
                    "num_blocks": 1,
                    "ext_pw_out_channel": 32,
                    "depthwise_separable_out_channel": 32,
                    "nemo_conv_channels": 8,
                    "input_size": 16,
                    "bias_max_distance": 8,
                },
            },
            "reformer": {
                "is_decoder": True,
                "axial_pos_shape": [2, 3],
                "axial_pos_embds_dim": [16, 16],
                "attention_head_size": 8,
                "feed_forward_size": 48,
                "lsh_attn_chunk_length": 2,
                "local_attn_chunk_length": 2,
                "num_buckets": 2,
            },
            "xlm": {"emb_dim": 32},
            "xlnet": {"n_head": 4, "d_inner": 48, "d_head": 8},
        },
    ),
    Row("blt", CAUSAL, unkept, "decoder", _BYTES),
    Row("cpmant", CAUSAL, ids, "decoder", {"dim_head": 8, "dim_ff": 48}),
    *rows(
        "experts",
        CAUSAL,
        "mixtral qwen2_moe qwen3_moe olmoe phimoe gpt_oss granitemoe jetmoe llama4_text afmoe "
        "aria_text axk1 axk2 cohere2_moe ernie4_5_moe exaone_moe flex_olmo glm4_moe glm4_moe_lite "
        "granitemoe_swa granitemoeshared hy_v3 hy_v4 kolibri1 laguna llama4 mellum mimo_v2_flash "
        "minimax_m2 sarvam_mla sarvam_moe solar_open deepseek_v3",
        text,
        fast="gpt_oss qwen3_moe deepseek_v3",
    ),
    *sized(
        "experts",
        CAUSAL,
        text,
        {
            "dbrx": {
                "attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
                "ffn_config": {"ffn_hidden_size": 48},
            },
            "deepseek_v2": _GROUPS,
            "deepseek_v32": _INDEX,
            "deepseek_v4": {**_INDEX, "o_lora_rank": 8, "o_groups": 2},
            "dots1": {**_GROUPS, "n_routed_experts": 4, "n_shared_experts": 1},
            "dots3_note_text": _INDEX,
            "glm_moe_dsa": _INDEX,
            "hunyuan_v1_moe": _HEAD,
            "longcat_flash": {
                "ffn_hidden_size": 48,
                "expert_ffn_hidden_size": 16,
                "zero_expert_num": 2,
            },
            "minimax_m3_vl_text": {
                "index_n_heads": 2,
                "index_head_dim": 8,
                "index_block_size": 2,
                "index_topk_blocks": 2,
                "dense_intermediate_size": 48,
                "shared_intermediate_size": 16,
            },
            "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
        },
    ),
    *rows("recurrent", CAUSAL, "mamba falcon_mamba rwkv", ids, fast="mamba"),
    Row("mamba2", CAUSAL, ids, "recurrent", {"num_heads": 4, "head_dim": 16, "n_groups": 1}),
    Row("xlstm", CAUSAL, ids, "recurrent", {"hidden_size": 128}),  # narrower heads do not fit
    *rows("hybrid", CAUSAL, "lfm2 minimax lara_mini olmo_hybrid", text),
    Row("qwen3_next", CAUSAL, text, "hybrid", _LINEAR, fast=True),
    *sized(
        "hybrid",
        CAUSAL,
        text,
        {
            "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
            "bamba": {"attn_layer_indices": [1], "mamba_n_groups": 1},
            "recurrent_gemma": {"num_hidden_layers": 3},
            "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_groups": 1},
            "bailing_hybrid": _DELTA,
            "kimi_linear": _DELTA,
            "granitemoehybrid": _LINEAR,
            "inkling_text": _INKLING,
            "inkling2_text": _INKLING,
            "inkling2_loop_text": _INKLING,
            "lfm2_moe": _CONV,
            "lfm3": _CONV,
            "nemotron_h": {
                "layers_block_type": ["mamba", "attention", "moe", "mlp"],
                "mamba_num_heads": 4,
                "mamba_head_dim": 16,
                "ssm_state_size": 8,
                "n_groups": 1,
                "moe_shared_expert_intermediate_size": 16,
            },
            "qwen3_5": {"text_config": _LINEAR},
            "qwen3_5_moe": {"text_config": _LINEAR},
            "qwen3_5_text": _LINEAR,
            "qwen3_5_moe_text": _LINEAR,
            "qwen4_exp": {"text_config": {**_LINEAR, **_INDEXER}},
            "qwen4_exp_text": {**_LINEAR, **_INDEXER},
            "zamba": {
                "num_hidden_layers": 4,
                "num_key_value_heads": 4,
                "layers_block_type": ["linear_attention", "hybrid"] * 2,
            },
            "zamba2": {
                "layers_block_type": ["linear_attention", "hybrid"],
                "n_mamba_heads": 4,
                "adapter_rank": 8,
            },
        },
    ),
)
