"""A model that starts fast, for processes that are killed: no transformers, a causal mix of tokens.

Owns the model, its tokenizer and the texts of these tests; `item_by_hand` is the reference, by
plain hooks on a run of one item.
"""

from __future__ import annotations

import random
import time
from typing import Any

import torch
from torch import Tensor, nn

SITES = ["layers.0", "layers.1"]


class Layer(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        past = self.mix(x).cumsum(1) / steps[None, :, None]
        return x + torch.tanh(self.out(past))


class Toy(nn.Module):
    """2 layers over 101 tokens, causal, so that padding on the right changes no real token."""

    def __init__(self, hidden: int = 16, pause: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, hidden)
        self.layers = nn.ModuleList(Layer(hidden) for _ in range(2))
        self.pause = pause

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        time.sleep(self.pause)
        x: Tensor = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return x


def toy(seed: int = 0, **options: Any) -> Toy:
    torch.manual_seed(seed)
    return Toy(**options).eval()


class Letters:
    """A letter is a token; no padding token, no special tokens."""

    eos_token_id = 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 101 for c in text]}


def texts(count: int, seed: int = 0, longest: int = 24) -> list[str]:
    """Texts of 1 to `longest` letters, some of them equal."""
    draw = random.Random(seed)
    made = ["".join(draw.choices("abcdefgh ", k=draw.randint(1, longest))) for _ in range(count)]
    return [made[i // 7] if i % 7 == 3 else text for i, text in enumerate(made)]


def item_by_hand(model: nn.Module, ids: list[int], sites: list[str]) -> dict[str, Tensor]:
    """(T, …) at each site, from a plain run of one item with hooks by hand."""
    kept: dict[str, Tensor] = {}
    modules = dict(model.named_modules())

    def keep(site: str) -> Any:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            kept[site] = (output if isinstance(output, Tensor) else output[0])[0].clone()

        return hook

    handles = [modules[site].register_forward_hook(keep(site)) for site in sites]
    with torch.no_grad():
        model(torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return kept
