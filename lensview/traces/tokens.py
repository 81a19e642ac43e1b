"""Tokens: what a run read, and how its predictions are spelt.

Owns ids, mask and labels of one batch. Making labels from a tokenizer is `tensors/labels.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..sites import Site, split_path
from ..tensors.labels import token_labels

Rows = Literal["tokens", "flattened tokens", "no token order", ""]
"""What a value's rows are to the run's tokens: dims 0 and 1 are its batch and tokens; dim 0 is all
of the batch's tokens, padding included, row after row; rows are sorted by expert; "" is neither."""
UNUSUAL_ROWS: tuple[Rows, ...] = ("flattened tokens", "no token order")
"""Those that a reader must be told of, since they look like others."""


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

    def cover(self, site: Site) -> bool:
        """Whether a value at `site` can hold these tokens in their order."""
        path, scope = site.path, self.scope
        inside = not scope or path == scope or path.startswith(f"{scope}.")
        return inside and not sorted_by_expert(site)

    def rows(self, site: Site, shape: Sequence[int]) -> Rows:
        """What the rows of a whole value of `shape` at `site` are, by their number.

        Not "tokens" where dim 2 could be the tokens too (attention by heads).
        """
        if sorted_by_expert(site):
            return "no token order"
        if not self.cover(site):
            return ""
        either = len(shape) > 3 and shape[1] == shape[2]
        if tuple(shape[:2]) == tuple(self.ids.shape):
            return "" if either else "tokens"
        flat = len(shape) == 2 and shape[0] == self.ids.numel()
        return "flattened tokens" if flat else ""

    def positions(self, row: int = 0) -> list[int]:
        """The columns of the real tokens of `row`, in order."""
        positions: list[int] = self.mask[row].nonzero().flatten().tolist()
        return positions


def sorted_by_expert(site: Site) -> bool:
    """Whether `site` is inside a mixture of experts (by transformers' name for it), where each row
    is a token's turn at one expert. What enters and leaves the mixture itself is in token order."""
    names = split_path(site.path)
    return "experts" in (names if site.op is not None else names[:-1])


def holds_tokens(tokens: Tokens | None, site: Site) -> bool:
    """Whether a value at `site` can hold a run's tokens in their order; None covers all sites."""
    return not sorted_by_expert(site) if tokens is None else tokens.cover(site)


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
