"""Sizes against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lensview.tensors.sizes import difference_size, size

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]
)
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 1, 4, 3, 2)])
def test_rms_equals_numpy(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 9).abs().to(dtype)
    wide = x.double().numpy()
    assert size(x).rms == pytest.approx(float(np.sqrt((wide**2).mean())), rel=1e-6)
    assert size(x).odd == 0


def test_odd_values_are_counted_and_left_out() -> None:
    x = torch.tensor([3.0, NAN, -4.0, INF, -INF])
    assert size(x).rms == pytest.approx(math.sqrt(12.5)) and size(x).odd == 3
    assert size(torch.tensor([NAN, INF])) == (None, 2)
    assert size(torch.empty(0, 3)) == (None, 0)
    assert size(torch.zeros(4)) == (0.0, 0)
    assert size(torch.full((3,), 1e300, dtype=torch.float64)).rms == pytest.approx(1e300)
    assert size(torch.full((3,), 1e-300, dtype=torch.float64)).rms == pytest.approx(1e-300)


def test_bool_and_complex() -> None:
    assert size(torch.tensor([True, False])).rms == pytest.approx(math.sqrt(0.5))
    assert size(torch.tensor([3 + 4j, 0j])).rms == pytest.approx(math.sqrt(12.5))


def test_strided_and_large() -> None:
    x = torch.randn(3000, 3000)
    wide = x.double().numpy()
    assert size(x.T).rms == pytest.approx(float(np.sqrt((wide**2).mean())), rel=1e-9)
    assert size(x[::2, 1::3]).rms == pytest.approx(
        float(np.sqrt((wide[::2, 1::3] ** 2).mean())), rel=1e-9
    )


def test_differences() -> None:
    a, b = torch.tensor([1.0, 2.0, INF]), torch.tensor([1.0, 5.0, INF])
    found = difference_size(a, b)
    assert found is not None and found.rms == pytest.approx(math.sqrt(3)) and found.odd == 0
    assert difference_size(a, b[:2]) is None
