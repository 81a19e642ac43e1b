"""Tokens: what a run read, and how its predictions are spelt.

Owns ids, mask and labels of one batch. Making labels from a tokenizer is `tensors/labels.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..tensors.labels import token_labels


class Token(NamedTuple):
    """One predicted token: its text as the tokenizer decodes it, its id, its probability."""

    text: str
    id: int
    probability: float


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of one batch.

    Attributes:
        ids: int64 (B, T), on the CPU, padding included.
        mask: bool (B, T), on the CPU, True at real tokens.
        labels: per row, one label for each *real* token; never blank, never markup, and never the
            same for two ids.
        scope: the site path of the module inside which these are the tokens: the encoder of an
            encoder-decoder, whose decoder reads others. "" is everywhere.
    """

    ids: Tensor
    mask: Tensor
    labels: list[list[str]]
    scope: str = ""

    def cover(self, path: str) -> bool:
        """Whether the module at site path `path` works on these tokens."""
        return not self.scope or path == self.scope or path.startswith(f"{self.scope}.")

    def positions(self, row: int = 0) -> list[int]:
        """The columns of the real tokens of `row`, in order."""
        positions: list[int] = self.mask[row].nonzero().flatten().tolist()
        return positions


def likeliest(logits: Tensor, k: int, spell: Callable[[int], str]) -> list[Token]:
    """The `k` most probable tokens of one row of logits (V,), by a softmax in float32."""
    likely = torch.softmax(logits.float(), -1).topk(min(k, logits.shape[-1]))
    return [
        Token(spell(i), i, p)
        for i, p in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]


def speller(tokenizer: Any) -> Callable[[int], str] | None:
    """How `tokenizer` spells one id; a piece of a character, which decodes to a replacement mark,
    is spelt by its label, which shows the bytes. None without a tokenizer."""
    if tokenizer is None:
        return None

    def spell(token: int) -> str:
        text: str = tokenizer.decode([token])
        return text if text and "\ufffd" not in text else token_labels(tokenizer, [token])[0]

    return spell
