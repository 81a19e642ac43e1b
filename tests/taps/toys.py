"""A small model with every way to call an op, and its values by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def modes() -> list[Any]:
    return list(torch.overrides._get_current_function_mode_stack())


class Child(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 3 + 1).softmax(-1)


@torch.no_grad()
def helper(x: Tensor) -> Tensor:
    return F.softmax(x * 0.5, dim=-1)


class Toy(nn.Module):
    """Functions, methods, operators, a helper, a submodule, a nested one called past its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Child()
        self.owner = nn.ModuleDict({"inner": Child()})

    def forward(self, x: Tensor) -> Tensor:
        a = x + 1
        assert a.shape[0] == 3 and a.dim() == 2 and a.dtype == x.dtype
        b = self.child(a)
        c = torch.add(a, b)
        d = c.mul(2) * x
        e = helper(d)
        left, _ = e.chunk(2, dim=-1)
        return self.owner["inner"](left.matmul(left.T) @ x) - d


def toy_by_hand(x: Tensor) -> dict[str, Tensor]:
    child = Child()
    a = x + 1
    b = child(a)
    c = a + b
    d0 = c * 2
    d = d0 * x
    h = d * 0.5
    e = torch.softmax(h, -1)
    left = e[:, :2]
    m0 = left @ left.T
    m1 = m0 @ x
    return {
        "/add": a,
        "/add.1": c,
        "/mul": d0,
        "/mul.1": d,
        "/mul.2": h,
        "/softmax": e,
        "/chunk": left,
        "/matmul": m0,
        "/matmul.1": m1,
        "/sub": child(m1) - d,
    }
