"""Multimodal: the rows of the architectures of transformers that read text beside images or sound.

Owns which of them capture is compared on and the sizes each needs besides the common small ones.
"""

from __future__ import annotations

from typing import Any

from .calls import (
    BASE,
    IDS,
    IMAGE,
    ROPE,
    SCALED,
    Row,
    anyres,
    crossed,
    grid,
    image,
    noise,
    pair,
    regions,
    rows,
    seen,
    sized,
    tiles,
)

_SEEN: dict[str, Any] = {"image_token_id": IMAGE}
_DEEPSTACK = {
    **_SEEN,
    "vision_config": {
        "out_hidden_size": 32,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    },
}

MULTIMODAL: tuple[Row, ...] = (
    Row("align", BASE, pair, "multimodal", {"vision_config": SCALED, "projection_dim": 80}),
    *rows(
        "multimodal",
        BASE,
        "clip siglip blip chinese_clip owlvit altclip groupvit owlv2 clipseg metaclip_2",
        pair,
        fast="clip",
    ),
    Row("flava", BASE, lambda c: {"input_ids": IDS, **image(c.image_config)}, "multimodal"),
    Row("llava", BASE, seen(4), "multimodal", _SEEN, fast=True),
    Row("paligemma", BASE, seen(4), "multimodal", _SEEN),
    Row("internvl", BASE, seen(1), "multimodal", _SEEN),
    Row("vipllava", BASE, seen(4), "multimodal", {**_SEEN, "vision_feature_layers": [-1, -2]}),
    Row("gemma3", BASE, seen(4), "multimodal", {**_SEEN, "mm_tokens_per_image": 4}),
    Row("vilt", BASE, lambda c: {"input_ids": IDS, **image(c)}, "multimodal"),
    Row(
        "lxmert",
        BASE,
        regions,
        "multimodal",
        {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
    ),
    Row(
        "clap",
        BASE,
        lambda _c: {"input_ids": IDS, "input_features": noise(2, 1, 32, 16)},
        "multimodal",
        {
            "projection_dim": 16,
            "audio_config": {
                "spec_size": 32,
                "patch_size": 4,
                "depths": [1, 1],
                "num_attention_heads": [2, 2],
                "window_size": 2,
                "patch_embeds_hidden_size": 8,
                "hidden_size": 16,
            },
        },
    ),
    Row(
        "idefics2",
        BASE,
        tiles(4),
        "multimodal",
        {
            **_SEEN,
            "perceiver_config": {
                "resampler_n_latents": 4,
                "resampler_depth": 1,
                "resampler_n_heads": 4,
                "resampler_head_dim": 8,
            },
        },
    ),
    *rows("multimodal", BASE, "idefics3 smolvlm", tiles(4), sizes={**_SEEN, "scale_factor": 1}),
    Row(
        "mllama",
        BASE,
        crossed,
        "multimodal",
        {
            "text_config": {"cross_attention_layers": [1]},
            "vision_config": {
                "num_global_layers": 1,
                "intermediate_layers_indices": [0],
                "vision_output_dim": 64,
                "max_num_tiles": 1,
                "supported_aspect_ratios": [[1, 1]],
            },
        },
    ),
    Row("llava_next", BASE, anyres, "multimodal", {**_SEEN, "image_grid_pinpoints": [[16, 16]]}),
    *sized(
        "multimodal",
        BASE,
        grid,
        {
            "qwen2_vl": {**_SEEN, "text_config": ROPE},
            "qwen2_5_vl": {
                **_SEEN,
                "text_config": ROPE,
                "vision_config": {"out_hidden_size": 32, "fullatt_block_indexes": [1]},
            },
            "qwen3_vl": _DEEPSTACK,
            "qwen3_vl_moe": _DEEPSTACK,
        },
    ),
)
