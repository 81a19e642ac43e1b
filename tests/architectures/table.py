"""Table: the architectures that capture is compared on.

Owns the rows other than the decoders', and the reasons of those left out. How a model is made
small is `shrink.py`'s, what it is called with `calls.py`'s.
"""

from __future__ import annotations

from typing import Any

from .calls import (
    BASE,
    IDS,
    IMAGE,
    SEQ2SEQ,
    Row,
    both,
    features,
    image,
    moonshine,
    noise,
    pair,
    rows,
    seen,
    spectrum,
    speech,
    text,
    wave,
    whisper,
)
from .decoders import DECODERS

_STAGES: dict[str, Any] = {"depths": [1] * 4, "hidden_sizes": [16] * 4}

ROWS: tuple[Row, ...] = (
    *DECODERS,
    *rows(
        "encoder",
        BASE,
        "bert roberta albert electra deberta deberta-v2 mpnet distilbert xlm-roberta modernbert "
        "convbert mobilebert squeezebert fnet nystromformer roformer rembert big_bird longformer "
        "layoutlm splinter megatron-bert ibert eurobert ernie nomic_bert",
        text,
        fast="deberta-v2 modernbert",
    ),
    *rows(
        "encoder-decoder",
        SEQ2SEQ,
        "t5 mt5 umt5 bart mbart pegasus blenderbot marian m2m_100 led longt5 switch_transformers "
        "nllb-moe t5gemma plbart fsmt pegasus_x bigbird_pegasus",
        both,
        fast="bart",
    ),
    *rows(
        "vision",
        BASE,
        "vit deit beit dinov2 dinov3_vit mobilevit segformer ijepa "
        "siglip_vision_model clip_vision_model vit_mae data2vec-vision mobilenet_v2 focalnet "
        "vit_msn dinov2_with_registers bit yolos pixtral swiftformer",
        image,
        fast="dinov2",
    ),
    Row("resnet", BASE, image, "vision", {**_STAGES, "embedding_size": 16}),
    Row("regnet", BASE, image, "vision", {**_STAGES, "groups_width": 16}),
    Row("poolformer", BASE, image, "vision", _STAGES),
    *rows(
        "audio",
        BASE,
        "wav2vec2 hubert wavlm unispeech data2vec-audio sew",
        wave,
        fast="wav2vec2",
    ),
    Row("encodec", BASE, lambda _c: {"input_values": noise(1, 1, 4000)}, "audio"),
    Row("audio-spectrogram-transformer", BASE, spectrum, "audio"),
    Row("wav2vec2-bert", BASE, features("feature_projection_input_dim"), "audio"),
    Row("parakeet_encoder", BASE, features("num_mel_bins"), "audio"),
    Row("whisper", BASE, whisper, "audio", {"max_source_positions": 20}, fast=True),
    Row("speech_to_text", BASE, speech, "audio"),
    Row("moonshine", BASE, moonshine, "audio"),
    *rows(
        "multimodal",
        BASE,
        "clip siglip blip chinese_clip owlvit altclip groupvit",
        pair,
        fast="clip",
    ),
    Row("flava", BASE, lambda c: {"input_ids": IDS, **image(c.image_config)}, "multimodal"),
    Row("llava", BASE, seen(4), "multimodal", {"image_token_id": IMAGE}, fast=True),
    Row("paligemma", BASE, seen(4), "multimodal", {"image_token_id": IMAGE}),
    Row("internvl", BASE, seen(1), "multimodal", {"image_token_id": IMAGE}),
)

_STAGED = "its stages are sized by lists that the common small sizes do not fit."
_GRID = "it wants images cut up by its own processor, beside the pixels."

LEFT_OUT = {
    "align": _STAGED,
    "clap": "it wants a spectrogram made by its own feature extractor.",
    "convnext": _STAGED,
    "convnextv2": _STAGED,
    "cvt": _STAGED,
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
    "prophetnet": "it is sized by two numbers of layers and refuses the common one.",
    "pvt": _STAGED,
    "qwen2_vl": _GRID,
    "qwen3_vl": _GRID,
    "roc_bert": "13 million parameters at its smallest.",
    "smolvlm": _GRID,
    "swin": _STAGED,
    "swinv2": _STAGED,
    "vilt": "it wants text and pixels packed by its own processor.",
    "xlstm": "transformers' chunkwise kernel refuses its own state at this size.",
}
"""Architectures that were tried and do not stand in `ROWS`, each with the reason."""
