"""Strings: prompts as the arguments of a forward, so that every row equals its own single run.

Owns padding on either side, the chat template, and the checks of length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError


def tokenized(
    model: nn.Module, texts: list[str], tokenizer: Any, chat: bool, left: bool
) -> dict[str, Tensor]:
    """The prompts as int64 matrices (B, T) by name, ``attention_mask`` among them.

    Each prompt is read by a call of its own, and padded on the `left` or the right. With `chat` it
    is a user's message in the tokenizer's template.

    Raises:
        InputError: no tokenizer, no template, an empty prompt, or one beyond the context.
    """
    if tokenizer is None:
        raise InputError(
            f"{texts[0]!r:.60} is a string, and there is no tokenizer to read it: pass "
            "tokenizer=…, or give the token ids as a tensor."
        )
    rows = [read_one(tokenizer, text, chat) for text in texts]
    for i, row in enumerate(rows):
        which = f"Prompt {i}" if len(rows) > 1 else "The prompt"
        if not len(row["input_ids"]):
            raise InputError(f"{which} is empty: {texts[i]!r} has no tokens. Write at least one.")
        _fits_context(model, which, len(row["input_ids"]))
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": padding_id(tokenizer)}
    names = [n for n in rows[0] if all(n in row for row in rows)]
    names = [n for n in names if n != "attention_mask"]

    def padded(cells: Sequence[int], pad: int) -> list[int]:
        padding = [pad] * (longest - len(cells))
        return [*padding, *cells] if left else [*cells, *padding]

    batch = {
        n: torch.tensor([padded(row[n], fill.get(n, 0)) for row in rows], dtype=torch.int64)
        for n in names
    }
    batch["attention_mask"] = torch.tensor([padded([1] * len(r["input_ids"]), 0) for r in rows])
    return batch


def read_one(
    tokenizer: Any, text: str, chat: bool = False, **options: Any
) -> Mapping[str, Sequence[int]]:
    """One text by a call of its own, or with `chat` as a user's message in the template: lists of
    ints by name, ``input_ids`` among them. `options` go to the tokenizer."""
    row: Mapping[str, Sequence[int]]
    row = _templated(tokenizer, text, options) if chat else tokenizer(text, **options)
    return row


def padding_id(tokenizer: Any) -> int:
    """The id that rows are padded with; under a mask it means nothing."""
    pad: int | None = getattr(tokenizer, "pad_token_id", None)
    return pad or getattr(tokenizer, "eos_token_id", None) or 0


def _templated(
    tokenizer: Any, text: str, options: Mapping[str, Any]
) -> Mapping[str, Sequence[int]]:
    """One user's message in the tokenizer's chat template, with the prompt for an answer."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"chat=True: the {type(tokenizer).__name__} has no chat template. Leave chat out, or "
            "set tokenizer.chat_template."
        )
    message = [{"role": "user", "content": text}]
    made = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, tokenize=True, return_dict=True, **options
    )
    return {"input_ids": list(made["input_ids"])}


def _fits_context(model: nn.Module, which: str, length: int) -> None:
    limit = context_length(model)
    if limit is not None and length > limit:
        raise InputError(
            f"{which} has {length} tokens, but the model's context is {limit}. Shorten it by "
            f"{length - limit} tokens; lensview does not cut it for you."
        )


def context_length(model: nn.Module) -> int | None:
    """How many tokens the model's configuration allows, or None where it does not say."""
    config = _text_config(model)
    for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length"):
        limit = getattr(config, name, None)
        if isinstance(limit, int) and limit > 0:
            return limit
    return None


def _text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    get = getattr(config, "get_text_config", None)
    return get() if callable(get) else config
