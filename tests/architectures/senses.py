"""Senses: the rows of the architectures of transformers that see or hear.

Owns which of them capture is compared on and the sizes each needs besides the common small ones.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .calls import (
    BASE,
    SCALED,
    Inputs,
    Row,
    features,
    image,
    moonshine,
    noise,
    rows,
    sized,
    spectrum,
    speech,
    wave,
    whisper,
)

_STAGES: dict[str, Any] = {"depths": [1] * 4, "hidden_sizes": [16] * 4}

_CONVNEXT = {**_STAGES, "image_size": 32, "patch_size": 4}
_SWIN = {
    "image_size": 32,
    "patch_size": 4,
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [2, 2],
    "window_size": 2,
}
_PVT = {**_STAGES, "image_size": 32, "num_attention_heads": [2] * 4}
_PYRAMID = {**_STAGES, "num_attention_heads": [2] * 4, "decoder_hidden_size": 8}


def _square(side: int) -> Inputs:
    return lambda _config: {"pixel_values": noise(2, 3, side, side)}


def _sound(_config: Any) -> dict[str, Tensor]:
    return {"input_values": noise(1, 1, 4000)}


SENSES: tuple[Row, ...] = (
    *rows(
        "vision",
        BASE,
        "vit deit beit dinov2 dinov3_vit ijepa "
        "siglip_vision_model clip_vision_model vit_mae data2vec-vision "
        "vit_msn dinov2_with_registers yolos pixtral mlcd_vision_model pixio "
        "vitdet aimv2_vision_model chinese_clip_vision_model sam_vision_model dpt internvl_vision "
        "tipsv2_vision_model",
        image,
        fast="dinov2",
    ),
    Row("resnet", BASE, image, "vision", {**_STAGES, "embedding_size": 16}),
    Row("regnet", BASE, image, "vision", {**_STAGES, "groups_width": 16}),
    Row("poolformer", BASE, image, "vision", _STAGES),
    Row(
        "dinov3_convnext", BASE, lambda _c: {"pixel_values": noise(2, 3, 32, 32)}, "vision", _STAGES
    ),
    *rows("vision", BASE, "convnext convnextv2", image, sizes=_CONVNEXT),
    *rows("vision", BASE, "swin swinv2 donut-swin maskformer-swin", image, sizes=_SWIN),
    *rows("vision", BASE, "pvt pvt_v2", image, sizes=_PVT),
    *sized(
        "vision",
        BASE,
        image,
        {
            "mobilevit": {"hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 7},
            "mobilenet_v1": {"depth_multiplier": 0.1},
            "mobilenet_v2": {"depth_multiplier": 0.1},
            "swiftformer": {"depths": [1] * 4, "embed_dims": [8] * 4},
            "glpn": _PYRAMID,
            "radio": {"max_img_size": 32},
            "bit": {**_STAGES, "embedding_size": 16, "num_groups": 4},
            "focalnet": {"embed_dim": 8, "depths": [1] * 4},
            "segformer": _PYRAMID,
            "cvt": {"embed_dim": [8, 16, 16], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
            "efficientnet": SCALED,
            "levit": {
                "image_size": 64,
                "patch_size": 16,
                "hidden_sizes": [16, 24, 32],
                "num_attention_heads": [2, 3, 4],
                "depths": [1] * 3,
                "key_dim": [8] * 3,
            },
        },
    ),
    *rows(
        "audio",
        BASE,
        "wav2vec2 hubert wavlm unispeech data2vec-audio unispeech-sat wav2vec2-conformer",
        wave,
        fast="wav2vec2",
        sizes={"conv_dim": [16] * 7},
    ),
    *rows("audio", BASE, "sew sew-d", wave, sizes={"conv_dim": [16] * 13}),
    Row(
        "dac",
        BASE,
        _sound,
        "audio",
        {
            "encoder_hidden_size": 8,
            "decoder_hidden_size": 32,
            "downsampling_ratios": [2, 4],
            "n_codebooks": 2,
            "codebook_size": 16,
            "codebook_dim": 8,
        },
    ),
    Row(
        "mimi",
        BASE,
        _sound,
        "audio",
        {
            "num_filters": 4,
            "upsampling_ratios": [4, 2],
            "codebook_size": 16,
            "codebook_dim": 8,
            "num_quantizers": 4,
            "vector_quantization_hidden_dimension": 8,
            "upsample_groups": 32,
        },
    ),
    Row("encodec", BASE, _sound, "audio", {"num_filters": 4, "codebook_size": 16}),
    Row("audio-spectrogram-transformer", BASE, spectrum, "audio"),
    Row("wav2vec2-bert", BASE, features("feature_projection_input_dim"), "audio"),
    Row("parakeet_encoder", BASE, features("num_mel_bins"), "audio"),
    Row("whisper", BASE, whisper, "audio", {"max_source_positions": 20}, fast=True),
    Row("speech_to_text", BASE, speech, "audio"),
    Row("moonshine", BASE, moonshine, "audio"),
)
