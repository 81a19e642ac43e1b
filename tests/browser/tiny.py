"""Small models for notebooks of the browser tests: they need no download and no transformers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

EVIL = "<img src=x onerror=lensviewWasHere=1>"


class Words:
    """A tokenizer: one id a word."""

    def __init__(self) -> None:
        self.words: list[str] = ["<pad>"]

    def __call__(self, text: str) -> dict[str, list[int]]:
        ids = []
        for word in text.split():
            if word not in self.words:
                self.words.append(word)
            ids.append(self.words.index(word))
        return {"input_ids": ids, "attention_mask": [1] * len(ids)}

    def decode(self, ids: Any, **options: Any) -> str:
        known = dict(enumerate(self.words))
        return " ".join(known.get(int(i), f"word{int(i)}") for i in ids)


class Block(nn.Module):
    """One layer, which can be made to take its time."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.mlp = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x + torch.tanh(self.mlp(x))


class Tiny(nn.Module):
    """A language model in name: embedding, layers, head."""

    def __init__(self, layers: int = 4, seconds: float = 0.0, evil: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 24)
        self.layers = nn.ModuleList([Block(24, seconds) for _ in range(layers)])
        self.head = nn.Linear(24, 50)
        if evil:
            self.add_module(EVIL, nn.Linear(24, 24))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if hasattr(self, EVIL):
            x = getattr(self, EVIL)(x)
        return {"logits": self.head(x)}
