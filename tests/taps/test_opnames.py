"""One name for one op, however it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lensview as lv
from lensview.taps.opnames import op_name

X = torch.arange(1.0, 5.0).reshape(2, 2)

WRITTEN: dict[str, list[Any]] = {
    "matmul": [lambda x: x @ x, lambda x: x.matmul(x), lambda x: torch.matmul(x, x)],
    "add": [lambda x: x + 1, lambda x: 1 + x, lambda x: x.add(1), lambda x: torch.add(x, 1)],
    "mul": [lambda x: x * 2, lambda x: 2 * x, lambda x: x.mul(2), lambda x: torch.mul(x, 2)],
    "div": [lambda x: x / 2, lambda x: torch.div(x, 2)],
    "rdiv": [lambda x: 1 / x],
    "sub": [lambda x: x - 1, lambda x: torch.sub(x, 1)],
    "rsub": [lambda x: 1 - x, lambda x: torch.rsub(x, 1)],
    "pow": [lambda x: x**2, lambda x: torch.pow(x, 2)],
    "rpow": [lambda x: 2**x],
    "neg": [lambda x: -x, torch.neg],
    "floor_divide": [lambda x: x // 2, lambda x: torch.floor_divide(x, 2)],
    "remainder": [lambda x: x % 2, lambda x: torch.remainder(x, 2)],
    "gt": [lambda x: x > 1, lambda x: torch.gt(x, 1)],
    "abs": [abs, lambda x: x.abs()],
    "getitem": [lambda x: x[0], lambda x: x[..., None]],
    "softmax": [
        lambda x: x.softmax(-1),
        lambda x: F.softmax(x, -1),
        lambda x: torch.softmax(x, -1),
    ],
    "silu": [F.silu],
    "linear": [lambda x: F.linear(x, x)],
    "dropout": [lambda x: F.dropout(x, 0.1)],
    "add_": [lambda x: x.clone().add_(1), lambda x: _iadd(x.clone())],
    "split": [lambda x: x.split(1), lambda x: torch.split(x, 1)],
    "bitwise_not": [lambda x: ~(x > 1)],
    "bitwise_or": [lambda x: (x > 1) | (x < 1)],
    "to": [lambda x: x.to(torch.float64)],
}
"""By name, ways to write the op. Ops beside it (a comparison to make a mask) may run before."""


def _iadd(x: Tensor) -> Tensor:
    x += 1
    return x


class Written(nn.Module):
    def __init__(self, way: Any) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: Tensor) -> Any:
        return self.way(x)


@pytest.mark.parametrize("name", list(WRITTEN))
def test_every_way_to_write_an_op_has_its_name(name: str) -> None:
    for way in WRITTEN[name]:
        trace = lv.trace(Written(way), (X,), [f"/{name}", "/*"])
        others = {"/clone", "/gt", "/lt"} - {f"/{name}"}
        assert set(trace.sites) - others == {f"/{name}"}
        result = way(X)
        if name != "dropout":
            first = result[0] if isinstance(result, tuple) else result
            assert torch.equal(trace[f"/{name}"], first)


@pytest.mark.parametrize(
    "way",
    [
        lambda x: x.shape,
        lambda x: (x.dtype, x.device, x.is_cuda, x.T.shape, x.grad_fn),
        lambda x: (x.size(), x.dim(), x.numel(), len(x), x.stride(), x.data_ptr()),
        lambda x: (x.tolist(), x.is_contiguous(), torch.is_floating_point(x), torch.equal(x, x)),
        lambda x: f"{x} {x!r}",
    ],
)
def test_questions_are_no_ops(way: Any) -> None:
    trace = lv.trace(Written(lambda x: (way(x), x)[1]), (X,), "/*")
    assert trace.sites == ()


def test_registered_ops_and_thin_names() -> None:
    assert op_name(torch.ops.aten.add.Tensor) == "add"
    assert op_name(torch.ops.aten.add) == "add"
    assert op_name(torch._grouped_mm) == "grouped_mm"
