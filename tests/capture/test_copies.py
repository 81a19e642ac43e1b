"""Records of a forward that writes to its own values, in every way that PyTorch offers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.capture.copies import _CAN_SHARE


class Writes(nn.Module):
    """Shows `seen` a value, writes to it, and shows it again."""

    def __init__(self, write: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.before, self.after = nn.Identity(), nn.Identity()
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        self.before(y)
        self.write(y)
        self.after(y)
        return y + 0


def by_index(y: Tensor) -> None:
    y[0] = 7


def by_view(y: Tensor) -> None:
    y.view(-1)[:3].mul_(-1)


def by_data(y: Tensor) -> None:
    y.data.add_(1)


def by_out(y: Tensor) -> None:
    torch.mul(y, 3, out=y)


def by_pointer(y: Tensor) -> None:
    y.numpy()[:] += 5


def by_storage(y: Tensor) -> None:
    y.untyped_storage().fill_(0)  # type: ignore[attr-defined]


def by_set(y: Tensor) -> None:
    y.set_(torch.full_like(y, 4.0))  # type: ignore[call-overload]


def by_resize(y: Tensor) -> None:
    y.resize_(2, 2).fill_(9)


WAYS = [by_index, by_view, by_data, by_out, by_pointer, by_storage, by_set, by_resize]


@pytest.mark.parametrize("write", WAYS)
def test_a_record_is_what_passed_however_it_is_written_to(
    write: Callable[[Tensor], object],
) -> None:
    model, x = Writes(write), torch.randn(4, 5)
    before = x * 2
    after = x * 2
    write(after)
    trace = lv.trace(model, x)
    assert torch.equal(trace["before"], before)
    assert torch.equal(trace["after"], after)
    assert torch.equal(trace[":output"], after)


@pytest.mark.parametrize("write", WAYS)
def test_the_model_computes_what_it_does_alone(write: Callable[[Tensor], object]) -> None:
    model, x = Writes(write), torch.randn(4, 5)
    with torch.no_grad():
        plain = model(x)
    trace = lv.trace(model, x, keep_output=True)
    assert isinstance(trace.output, Tensor) and torch.equal(trace.output, plain)


class Keeps(nn.Module):
    """Keeps a value, as a cache does, and gives back its own parameter and buffer."""

    kept: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.register_buffer("table", torch.randn(3, 4))
        self.own, self.fixed, self.last = nn.Identity(), nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        self.own(self.weight)
        self.fixed(self.table)
        self.kept = x + 1
        result: Tensor = self.last(self.kept)
        return result


def test_nothing_is_shared_after_the_run() -> None:
    model, x = Keeps(), torch.randn(3, 4)
    weight, table, given = model.weight.data_ptr(), model.table.data_ptr(), x.data_ptr()
    trace = lv.trace(model, x, ["**", "**:input"])
    last, own, fixed = (trace[s].clone() for s in ("last", "own", "fixed"))
    first = trace[":input"].clone()
    assert not any(torch._C._is_cow_tensor(trace[s]) for s in trace.sites)  # type: ignore[attr-defined]
    with torch.no_grad():
        model.kept.numpy()[:] = 0
        model.weight.zero_()
        model.table.numpy()[:] = 0
        x.numpy()[:] = 0
    assert torch.equal(trace["last"], last) and last.any()
    assert torch.equal(trace["own"], own) and torch.equal(trace["fixed"], fixed)
    assert torch.equal(trace[":input"], first) and first.any()
    # Who held a bare pointer to the model's memory still holds the right one.
    assert model.weight.data_ptr() == weight and model.table.data_ptr() == table
    assert x.data_ptr() == given
    trace["last"].numpy()[:] = 5
    assert not model.kept.any()


def test_memory_that_is_not_pytorchs_own_is_copied() -> None:
    array = np.ones((2, 3), dtype=np.float32)
    trace = lv.trace(nn.Sequential(nn.Identity()), torch.from_numpy(array), ["0", "0:input"])
    array[:] = 0
    assert trace["0"].all() and trace["0:input"].all()


class Slices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slice = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.slice((x + 1)[:1])
        return result


def test_a_slice_does_not_hold_the_whole() -> None:
    record = lv.trace(Slices(), torch.randn(1000, 10), "slice")["slice"]
    assert record.untyped_storage().nbytes() == 40


@pytest.mark.skipif(not _CAN_SHARE, reason="this PyTorch has no copies on write")
def test_what_the_model_lets_go_is_not_copied() -> None:
    addresses = []

    class Tells(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            addresses.append(torch._C._data_address(y))  # type: ignore[attr-defined]
            return y

    trace = lv.trace(nn.Sequential(Tells(), nn.ReLU()), torch.randn(5, 5), "0")
    assert trace["0"].data_ptr() == addresses[-1]
