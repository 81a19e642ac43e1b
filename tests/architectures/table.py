"""Table: the architectures that capture is compared on.

Owns the rows of the models that read text both ways, and the reasons of those left out. The rows
of the others are `decoders.py`'s, `senses.py`'s and `multimodal.py`'s. How a model is made small
is `shrink.py`'s, what it is called with `calls.py`'s.
"""

from __future__ import annotations

from .calls import BASE, ROPE, SEQ2SEQ, Row, both, boxed, rows, sized, text
from .decoders import DECODERS
from .multimodal import MULTIMODAL
from .senses import SENSES

ROWS: tuple[Row, ...] = (
    *DECODERS,
    *rows(
        "encoder",
        BASE,
        "bert roberta albert electra deberta deberta-v2 mpnet distilbert xlm-roberta modernbert "
        "convbert mobilebert squeezebert fnet nystromformer roformer rembert big_bird longformer "
        "layoutlm splinter megatron-bert ibert eurobert ernie nomic_bert bert-generation camembert "
        "data2vec-text roberta-prelayernorm xlm-roberta-xl mra yoso gte clip_text_model dpr tapas "
        "jina_embeddings_v3 visual_bert qwen3_vl_text molmo2_text muse_glimmer_text imagegpt "
        "mistral_large4_text embedding_gemma2_text openai_privacy_filter tipsv2_text_model "
        "ultrabert",
        text,
        fast="deberta-v2 modernbert",
    ),
    *sized(
        "encoder",
        BASE,
        text,
        {
            "canine": {"num_hash_buckets": 64},
            "esm": {"vocab_size": 101, "pad_token_id": 1, "mask_token_id": 4},
            "esmc": {"num_key_value_heads": 4},
            "flaubert": {"emb_dim": 32},
            "glm4v_text": ROPE,
            "glm4v_moe_text": {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [1, 1, 0],
                    "partial_rotary_factor": 0.5,
                }
            },
            "glm_ocr_text": ROPE,
            "layoutlmv3": {"coordinate_size": 8, "shape_size": 0},
            "luke": {"entity_vocab_size": 16, "entity_emb_size": 8},
            "markuplm": {"xpath_unit_hidden_size": 4},
            "qwen2_5_vl_text": ROPE,
            "qwen2_vl_text": ROPE,
            "roc_bert": {
                "pronunciation_vocab_size": 101,
                "pronunciation_embed_dim": 32,
                "shape_vocab_size": 101,
                "shape_embed_dim": 32,
            },
            "xmod": {"default_language": "en_XX"},
        },
    ),
    Row("lilt", BASE, boxed, "encoder", {"hidden_size": 48}),
    Row(
        "funnel",
        "AutoModelForMaskedLM",  # AutoModel has two classes for it and cannot choose
        text,
        "encoder",
        {"block_sizes": [1, 1], "d_head": 8, "d_inner": 48},
    ),
    *rows(
        "encoder-decoder",
        SEQ2SEQ,
        "t5 mt5 umt5 bart mbart pegasus blenderbot marian m2m_100 longt5 switch_transformers "
        "nllb-moe t5gemma t5gemma2 plbart pegasus_x bigbird_pegasus "
        "blenderbot-small mvp prophetnet",
        both,
        fast="bart",
    ),
    Row("fsmt", SEQ2SEQ, both, "encoder-decoder", {"src_vocab_size": 101, "tgt_vocab_size": 101}),
    Row(
        "led",
        SEQ2SEQ,
        both,
        "encoder-decoder",
        {
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
            "attention_window": 8,
        },
    ),
    *SENSES,
    *MULTIMODAL,
)


LEFT_OUT = {
    "dinat": "it needs the natten library.",
    "gemma3n": "its image tower needs Pillow and timm.",
    "musicgen": "AutoModelForCausalLM hands its decoder the whole configuration, and fails.",
    "musicgen_melody": "AutoModelForCausalLM hands its decoder the whole configuration, and fails.",
    "muse_spark_text": "2 million parameters at the sizes tried.",
    "seamless_m4t": "60 million parameters at the sizes tried.",
}
"""Architectures that were tried and do not stand in `ROWS`, each with the reason."""
