"""Large models for notebooks of the browser tests and benchmarks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Layer(nn.Module):
    """A layer of a given number of modules, itself included; most are never called."""

    def __init__(self, modules: int) -> None:
        super().__init__()
        self.mlp = nn.Linear(8, 8)
        self.act = nn.Tanh()
        self.spare = nn.ModuleList([nn.Identity() for _ in range(modules - 4)])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.mlp(x))


class Big(nn.Module):
    """10,000 modules: 400 layers, alike but for the one in the middle."""

    def __init__(self, layers: int = 400, modules: int = 24) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 8)
        self.layers = nn.ModuleList([Layer(modules) for _ in range(layers)])
        self.layers[layers // 2] = Layer(modules + 1)
        rest = 10_000 - sum(1 for _ in self.modules()) - 1
        self.tail = nn.Sequential(*[nn.Identity() for _ in range(max(0, rest - 1))])
        self.head = nn.Linear(8, 50)

    def forward(self, input_ids: Tensor, attention_mask: Any = None) -> dict[str, Tensor]:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(self.tail(x))}


class Wide(nn.Module):
    """One activation of a given size, with an outlier, NaN and an infinity."""

    def __init__(self, rows: int = 4096, columns: int = 4096, odd: bool = True) -> None:
        super().__init__()
        self.plane: Tensor
        self.inner = nn.Identity()
        torch.manual_seed(0)
        plane = torch.randn(rows, columns)
        if odd:
            plane[rows // 3, columns // 2] = 80.0
            plane[7, 9] = torch.nan
            plane[8, 11] = torch.inf
        self.register_buffer("plane", plane)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.inner(self.plane + x.sum() * 0)
        return shown
