"""Tokens: what a run read, and how its predictions are spelt.

Owns ids, mask and labels of one batch. Making labels from a tokenizer is `tensors/labels.py`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


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
        labels: per row, one label for each *real* token; never blank, never markup.
    """

    ids: Tensor
    mask: Tensor
    labels: list[list[str]]

    def positions(self, row: int = 0) -> list[int]:
        """The columns of the real tokens of `row`, in order."""
        positions: list[int] = self.mask[row].nonzero().flatten().tolist()
        return positions
