"""Table: the architectures that capture is compared on, and what each is called with.

Owns the rows and the reasons of those left out. How a model is made small is `shrink.py`'s.
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


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _text(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def _ids(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS}


def _both(_config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}


def _size(config: Any) -> int:
    size = getattr(config, "image_size", None)
    return size if isinstance(size, int) else 32


def _image(config: Any) -> dict[str, Any]:
    return {"pixel_values": _noise(2, 3, _size(config), _size(config))}


def _wave(_config: Any) -> dict[str, Any]:
    return {"input_values": _noise(2, 4000)}


def _pair(config: Any) -> dict[str, Any]:
    return {"input_ids": IDS, **_image(config.vision_config)}


def _spectrum(config: Any) -> dict[str, Any]:
    return {"input_values": _noise(2, config.max_length, config.num_mel_bins)}


def _features(width: str) -> Inputs:
    return lambda config: {"input_features": _noise(2, 40, getattr(config, width))}


def _whisper(config: Any) -> dict[str, Any]:
    mel = _noise(2, config.num_mel_bins, config.max_source_positions * 2)
    return {"input_features": mel, "decoder_input_ids": IDS[:, :3]}


def _speech(config: Any) -> dict[str, Any]:
    width = config.input_feat_per_channel * config.input_channels
    return {"input_features": _noise(2, 64, width), "decoder_input_ids": IDS[:, :3]}


def _moonshine(config: Any) -> dict[str, Any]:
    return {**_wave(config), "decoder_input_ids": IDS[:, :3]}


def _prompt(patches: int) -> Tensor:
    """Two prompts with a run of image tokens in the middle."""
    return torch.cat([IDS[:, :2], torch.full((2, patches), IMAGE), IDS[:, 2:]], 1)


def _seen(patches: int) -> Inputs:
    return lambda config: {"input_ids": _prompt(patches), **_image(config.vision_config)}


def _rows(group: str, auto: str, kinds: str, inputs: Inputs, fast: str = "") -> Iterator[Row]:
    for kind in kinds.split():
        yield Row(kind, auto, inputs, group, fast=kind in fast.split())


CAUSAL, BASE, SEQ2SEQ = "AutoModelForCausalLM", "AutoModel", "AutoModelForSeq2SeqLM"

_STAGES: dict[str, Any] = {"depths": [1] * 4, "hidden_sizes": [16] * 4}

ROWS: tuple[Row, ...] = (
    *_rows(
        "decoder",
        CAUSAL,
        "llama gpt2 gpt_neox gptj opt bloom falcon mistral qwen2 qwen3 gemma gemma2 gemma3_text "
        "phi phi3 olmo2 cohere stablelm starcoder2 codegen biogpt xglm ctrl granite smollm3 "
        "persimmon bitnet diffllama helium glm4 exaone4 ernie4_5 arcee apertus",
        _text,
        fast="gpt2 gemma2",
    ),
    Row("gpt_neo", CAUSAL, _text, "decoder", {"attention_types": [[["global", "local"], 1]]}),
    *_rows(
        "experts",
        CAUSAL,
        "mixtral qwen2_moe qwen3_moe olmoe phimoe gpt_oss granitemoe jetmoe llama4_text",
        _text,
        fast="gpt_oss qwen3_moe",
    ),
    Row("deepseek_v3", CAUSAL, _text, "experts", {"num_key_value_heads": 4}, fast=True),
    *_rows("recurrent", CAUSAL, "mamba falcon_mamba rwkv", _ids, fast="mamba"),
    Row("mamba2", CAUSAL, _ids, "recurrent", {"num_heads": 4, "head_dim": 16, "n_groups": 1}),
    *_rows("hybrid", CAUSAL, "lfm2 minimax", _text),
    Row("jamba", CAUSAL, _text, "hybrid", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    Row("bamba", CAUSAL, _text, "hybrid", {"attn_layer_indices": [1], "mamba_n_groups": 1}),
    Row("recurrent_gemma", CAUSAL, _text, "hybrid", {"num_hidden_layers": 3}),
    Row(
        "qwen3_next",
        CAUSAL,
        _text,
        "hybrid",
        {"layer_types": ["linear_attention", "full_attention"]},
        fast=True,
    ),
    Row("falcon_h1", CAUSAL, _text, "hybrid", {"mamba_d_ssm": 64, "mamba_n_groups": 1}),
    *_rows(
        "encoder",
        BASE,
        "bert roberta albert electra deberta deberta-v2 mpnet distilbert xlm-roberta modernbert "
        "convbert mobilebert squeezebert fnet nystromformer roformer rembert big_bird longformer "
        "layoutlm splinter megatron-bert ibert eurobert ernie nomic_bert",
        _text,
        fast="deberta-v2 modernbert",
    ),
    *_rows(
        "encoder-decoder",
        SEQ2SEQ,
        "t5 mt5 umt5 bart mbart pegasus blenderbot marian m2m_100 led longt5 switch_transformers "
        "nllb-moe t5gemma plbart fsmt pegasus_x bigbird_pegasus",
        _both,
        fast="bart",
    ),
    *_rows(
        "vision",
        BASE,
        "vit deit beit dinov2 dinov3_vit mobilevit segformer ijepa "
        "siglip_vision_model clip_vision_model vit_mae data2vec-vision mobilenet_v2 focalnet "
        "vit_msn dinov2_with_registers bit yolos pixtral swiftformer",
        _image,
        fast="dinov2",
    ),
    Row("resnet", BASE, _image, "vision", {**_STAGES, "embedding_size": 16}),
    Row("regnet", BASE, _image, "vision", {**_STAGES, "groups_width": 16}),
    Row("poolformer", BASE, _image, "vision", _STAGES),
    *_rows(
        "audio",
        BASE,
        "wav2vec2 hubert wavlm unispeech data2vec-audio sew",
        _wave,
        fast="wav2vec2",
    ),
    Row("encodec", BASE, lambda _c: {"input_values": _noise(1, 1, 4000)}, "audio"),
    Row("audio-spectrogram-transformer", BASE, _spectrum, "audio"),
    Row("wav2vec2-bert", BASE, _features("feature_projection_input_dim"), "audio"),
    Row("parakeet_encoder", BASE, _features("num_mel_bins"), "audio"),
    Row("whisper", BASE, _whisper, "audio", {"max_source_positions": 20}, fast=True),
    Row("speech_to_text", BASE, _speech, "audio"),
    Row("moonshine", BASE, _moonshine, "audio"),
    *_rows(
        "multimodal",
        BASE,
        "clip siglip blip chinese_clip owlvit altclip groupvit",
        _pair,
        fast="clip",
    ),
    Row("flava", BASE, lambda c: {"input_ids": IDS, **_image(c.image_config)}, "multimodal"),
    Row("llava", BASE, _seen(4), "multimodal", {"image_token_id": IMAGE}, fast=True),
    Row("paligemma", BASE, _seen(4), "multimodal", {"image_token_id": IMAGE}),
    Row("internvl", BASE, _seen(1), "multimodal", {"image_token_id": IMAGE}),
)

_STAGED = "its stages are sized by lists that the common small sizes do not fit."
_GRID = "it wants images cut up by its own processor, beside the pixels."

LEFT_OUT = {
    "align": _STAGED,
    "clap": "it wants a spectrogram made by its own feature extractor.",
    "convnext": _STAGED,
    "convnextv2": _STAGED,
    "cvt": _STAGED,
    "dbrx": "transformers 5.24 cannot make its attention from a configuration (no rope_theta).",
    "efficientnet": _STAGED,
    "esm": "its configuration has no vocabulary of its own.",
    "funnel": "it is sized by blocks, not by a number of layers.",
    "gemma3": "its pooling needs more patches than a tiny image has.",
    "hiera": _STAGED,
    "idefics2": _GRID,
    "levit": _STAGED,
    "llava_next": _GRID,
    "lxmert": "it wants the regions that an object detector found.",
    "mimi": _STAGED,
    "mllama": _GRID,
    "nemotron": "transformers 5.24 leaves its number of key-value heads empty.",
    "prophetnet": "it is sized by two numbers of layers and refuses the common one.",
    "pvt": _STAGED,
    "qwen2_vl": _GRID,
    "qwen3_vl": _GRID,
    "roc_bert": "13 million parameters at its smallest.",
    "smolvlm": _GRID,
    "swin": _STAGED,
    "swinv2": _STAGED,
    "vilt": "it wants text and pixels packed by its own processor.",
    "xlnet": "transformers gives it no length limit to shrink.",
    "xlstm": "transformers' chunkwise kernel refuses its own state at this size.",
    "zamba2": "its 54 layers' types are a list of their own.",
}
"""Architectures that were tried and do not stand in `ROWS`, each with the reason."""
