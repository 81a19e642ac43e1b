"""Statistics against numpy in float64, and against exact arithmetic where numpy overflows."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from lensview.tensors.stats import Stats, stats

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
]


def check(
    found: Stats,
    numbers: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    tolerance: float = 1e-12,
) -> None:
    finite = numbers[np.isfinite(numbers)]
    assert found.count == numbers.size
    assert found.finite == finite.size
    assert found.nan == np.isnan(numbers).sum()
    assert found.posinf == np.isposinf(numbers).sum()
    assert found.neginf == np.isneginf(numbers).sum()
    assert found.zeros == (numbers == 0).sum()
    expected = {
        "mean": finite.mean(),
        "std": finite.std(),
        "min": finite.min(),
        "max": finite.max(),
        "absmax": np.abs(finite).max(),
        "rms": np.sqrt((finite**2).mean()),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=tolerance, abs=1e-13), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_against_numpy(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1)) * 9).abs().to(dtype)
    check(stats(x), x.to(torch.float64).numpy())
    assert stats(x).shape == (3, 5, 64)
    assert stats(x).dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_finite_is_counted_apart(dtype: torch.dtype) -> None:
    x = torch.randn(50, 7).to(dtype)
    x[3, 3] = math.nan
    x[:2, 1] = math.inf
    x[5, :3] = -math.inf
    x[9] = 0
    check(stats(x), x.to(torch.float64).numpy())


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_large_and_scattered_tensors_in_pieces(
    monkeypatch: pytest.MonkeyPatch, offset: float
) -> None:
    monkeypatch.setattr("lensview.tensors.dense.CACHED_ELEMENTS", 100)
    x = torch.randn(23, 31, dtype=torch.float64) + offset
    x[4, 4] = math.nan
    for view in (x, x.t(), x[::2, 1::3], x.expand(3, 23, 31)):
        check(stats(view), view.numpy(), tolerance=1e-12 + offset * 1e-16)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e-160, 1e170])
def test_squares_neither_overflow_nor_vanish(scale: float) -> None:
    numbers = [scale * v for v in (1.0, -1.5, 0.25, 0.75)]
    found = stats(torch.tensor(numbers, dtype=torch.float64))
    exact = [Fraction(v) for v in numbers]
    mean = sum(exact) / 4
    variance = sum((v - mean) ** 2 for v in exact) / 4
    assert found.mean == pytest.approx(float(mean), rel=1e-12)
    unit = Fraction(scale)
    assert found.std == pytest.approx(math.sqrt(variance / unit**2) * scale, rel=1e-12)
    square = sum(v**2 for v in exact) / 4
    assert found.rms == pytest.approx(math.sqrt(square / unit**2) * scale, rel=1e-12)


def test_the_largest_and_smallest_doubles() -> None:
    largest = torch.finfo(torch.float64).max
    found = stats(torch.tensor([largest, -largest, largest], dtype=torch.float64))
    assert found.max == largest
    assert found.rms == pytest.approx(largest)
    tiny = stats(torch.full((3,), 5e-324, dtype=torch.float64))
    assert (tiny.mean, tiny.max, tiny.std) == (5e-324, 5e-324, 0.0)


def test_a_float32_sum_would_be_wrong_here() -> None:
    x = torch.full((2**21,), 0.1) + 1000
    assert stats(x).mean == pytest.approx(float(x[0]), rel=1e-12)
    assert stats(x).std == pytest.approx(0, abs=1e-9)


def test_complex_numbers_by_magnitude() -> None:
    found = stats(torch.tensor([3 + 4j, 0j, complex(math.nan, 0)]))
    assert (found.max, found.mean, found.nan, found.zeros) == (5.0, 2.5, 1, 1)
    assert "magnitudes" in found.line()


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 2)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    found = stats(torch.zeros(shape))
    assert (found.count, found.mean, found.min, found.rms) == (0, None, None, None)
    assert found.line() == f"{'x'.join(map(str, shape))} float32 · empty"


def test_nothing_finite() -> None:
    found = stats(torch.tensor([math.nan, math.nan, math.inf]))
    assert (found.mean, found.std, found.max, found.absmax) == (None, None, None, None)
    assert found.line() == "3 float32 · no finite value · 2 NaN · 1 inf"


def test_the_line() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, math.nan, -math.inf]])
    assert stats(x).line() == ("1x5 float32 · mean 2 · std 0.8165 · min 1 · max 3 · 1 NaN · 1 -inf")
    assert stats(torch.tensor(7)).line().startswith("scalar int64 · mean 7")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_count_what_is_there(layout: torch.layout) -> None:
    parts = [torch.randn(4, 3), torch.randn(2, 3)]
    found = stats(torch.nested.nested_tensor(parts, layout=layout))
    check(found, torch.cat(parts).double().numpy())
    assert (found.count, found.shape) == (18, (2, 4, 3))


def test_sparse_and_refused_tensors() -> None:
    check(stats(torch.eye(4).to_sparse()), np.eye(4))
    with pytest.raises(TypeError, match="meta device"):
        stats(torch.empty(3, device="meta"))
    with pytest.raises(TypeError, match="bits8"):
        stats(torch.empty(3, dtype=torch.bits8))


def test_the_tensor_is_left_alone() -> None:
    x = torch.randn(9, requires_grad=True)
    before = x.detach().clone()
    stats(x)
    assert torch.equal(x.detach(), before)
