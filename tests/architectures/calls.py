"""Calls: what the architectures of transformers are called with, and the shape of a row.

Owns the inputs and `Row`. Which architectures there are is `table.py`'s and `decoders.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

IDS = torch.tensor([[5, 17, 3, 9, 44, 12], [8, 8, 11, 90, 12, 33]])
IMAGE = 7
"""The token that stands for one patch of an image, in the multimodal rows."""
ROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
}
"""Positions in time, height and width for heads of size 8."""
SCALED: dict[str, Any] = {
    "width_coefficient": 0.25,
    "depth_coefficient": 0.1,
    "hidden_dim": 320,
    "image_size": 32,
}
"""EfficientNet at a quarter of its width: 320 of the 1280 channels it ends with."""

Inputs = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One architecture: its model type, its ``Auto…`` class, its call, and its family."""

    kind: str
    auto: str
    inputs: Inputs
    group: str
    sizes: dict[str, Any] = field(default_factory=dict)
    fast: bool = False


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def text(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def ids(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS}


def unkept(_config: Any) -> dict[str, Any]:
    """Words, with nothing cached."""
    return {"input_ids": IDS, "use_cache": False}


def both(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}


def size(config: Any) -> int:
    size = getattr(config, "image_size", None)
    return size if isinstance(size, int) else 32


def image(config: Any) -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, size(config), size(config))}


def wave(_config: Any) -> dict[str, Any]:
    return {"input_values": noise(2, 4000)}


def pair(config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, **image(config.vision_config)}


def spectrum(config: Any) -> dict[str, Any]:
    return {"input_values": noise(2, config.max_length, config.num_mel_bins)}


def features(width: str) -> Inputs:
    return lambda config: {"input_features": noise(2, 40, getattr(config, width))}


def whisper(config: Any) -> dict[str, Any]:
    mel = noise(2, config.num_mel_bins, config.max_source_positions * 2)
    return {"input_features": mel, "decoder_input_ids": IDS[:, :3]}


def speech(config: Any) -> dict[str, Any]:
    width = config.input_feat_per_channel * config.input_channels
    return {"input_features": noise(2, 64, width), "decoder_input_ids": IDS[:, :3]}


def moonshine(config: Any) -> dict[str, Any]:
    return {**wave(config), "decoder_input_ids": IDS[:, :3]}


def prompt(patches: int) -> Tensor:
    """Two prompts with a run of image tokens in the middle."""
    return torch.cat([IDS[:, :2], torch.full((2, patches), IMAGE), IDS[:, 2:]], 1)


def seen(patches: int) -> Inputs:
    return lambda config: {"input_ids": prompt(patches), **image(config.vision_config)}


def boxed(_config: Any) -> dict[str, Any]:
    """Words with the boxes they stand in on a page."""
    return {"input_ids": IDS, "bbox": torch.zeros(*IDS.shape, 4, dtype=torch.long)}


def regions(config: Any) -> dict[str, Any]:
    """Words and the regions that an object detector found."""
    feats = noise(2, 3, config.visual_feat_dim)
    return {"input_ids": IDS, "visual_feats": feats, "visual_pos": noise(2, 3, 4)}


def tiles(patches: int, count: int = 1) -> Inputs:
    """A prompt, and for each of its rows an image cut into `count` tiles."""

    def call(config: Any) -> dict[str, Any]:
        side = size(config.vision_config)
        return {"input_ids": prompt(patches), "pixel_values": noise(2, count, 3, side, side)}

    return call


def anyres(config: Any) -> dict[str, Any]:
    """Two tiles an image: the whole and its one crop, of 4 patches each, and 2 newlines."""
    side = size(config.vision_config)
    return {**tiles(10, 2)(config), "image_sizes": torch.tensor([[side, side]] * 2)}


def crossed(config: Any) -> dict[str, Any]:
    """One tile an image, seen through cross-attention."""
    ones, side = torch.ones(2, 1, dtype=torch.long), size(config.vision_config)
    return {
        "input_ids": IDS,
        "pixel_values": noise(2, 1, 1, 3, side, side),
        "aspect_ratio_ids": ones,
        "aspect_ratio_mask": ones[..., None],
        "cross_attention_mask": ones.expand(*IDS.shape)[..., None, None],
    }


def grid(config: Any) -> dict[str, Any]:
    """One image a prompt, flattened into 2 x 2 patches that become one token."""
    vision = config.vision_config
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    return {
        "input_ids": prompt(1),
        "pixel_values": noise(8, width),
        "image_grid_thw": torch.tensor([[1, 2, 2]] * 2),
        "mm_token_type_ids": (prompt(1) == IMAGE).long(),
    }


def rows(
    group: str,
    auto: str,
    kinds: str,
    inputs: Inputs,
    fast: str = "",
    sizes: Mapping[str, Any] | None = None,
) -> Iterator[Row]:
    """Rows that differ in their model type alone."""
    for kind in kinds.split():
        yield Row(kind, auto, inputs, group, dict(sizes or {}), fast=kind in fast.split())


def sized(
    group: str, auto: str, inputs: Inputs, sizes: Mapping[str, dict[str, Any]]
) -> Iterator[Row]:
    """Rows of models that need sizes of their own, by model type."""
    for kind, own in sizes.items():
        yield Row(kind, auto, inputs, group, own)


CAUSAL, BASE, SEQ2SEQ = "AutoModelForCausalLM", "AutoModel", "AutoModelForSeq2SeqLM"
