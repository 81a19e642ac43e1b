"""Calls: what the architectures of transformers are called with, and the shape of a row.

Owns the inputs and `Row`. Which architectures there are is `table.py`'s and `decoders.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

IDS = torch.tensor([[5, 17, 3, 9, 44, 12], [8, 8, 11, 90, 12, 33]])
IMAGE = 7
"""The token that stands for one patch of an image, in the multimodal rows."""

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


def rows(group: str, auto: str, kinds: str, inputs: Inputs, fast: str = "") -> Iterator[Row]:
    for kind in kinds.split():
        yield Row(kind, auto, inputs, group, fast=kind in fast.split())


CAUSAL, BASE, SEQ2SEQ = "AutoModelForCausalLM", "AutoModel", "AutoModelForSeq2SeqLM"
