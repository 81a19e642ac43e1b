"""A tiny llama on disk, for ranks to load."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = "the a cat dog sat ran on mat big red fox and".split()


def save_llama(path: Path) -> Path:
    """Save one there, its widths uneven over two ranks, and a tokenizer of a few words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_bias=True,
        mlp_bias=True,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    words = {word: i + 3 for i, word in enumerate(WORDS)}
    tokens = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "</s>": 2, **words}, "<unk>"))
    tokens.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(path)
    return path
