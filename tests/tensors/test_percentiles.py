"""Percentiles of magnitudes against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lensview.tensors.percentiles import MAX_EXACT, magnitude, sample
from lensview.tensors.tiles import tile


@pytest.mark.parametrize("percentile", [0.001, 1, 50, 95, 99, 99.9, 100])
@pytest.mark.parametrize("shape", [(1, 1), (7, 13), (300, 200)])
def test_exact_ones_equal_numpy(percentile: float, shape: tuple[int, int]) -> None:
    torch.manual_seed(1)
    x = torch.randn(shape)
    # A hair less, so that the product with the count rounds to neither side.
    wanted = np.percentile(x.abs().numpy(), percentile - 1e-9, method="inverted_cdf")
    assert magnitude(x, percentile) == (float(wanted), False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_dtypes(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = (torch.randn(40, 50) * 3).to(dtype)
    wanted = np.percentile(np.abs(x.double().numpy()), 90, method="inverted_cdf")
    assert magnitude(x, 90)[0] == float(wanted)


def test_only_what_is_finite_counts() -> None:
    x = torch.tensor([[math.nan, math.inf, -2.0], [1.0, -math.inf, 3.0]])
    assert magnitude(x, 100) == (3.0, False)
    assert magnitude(x, 60) == (2.0, False)
    assert magnitude(torch.full((2, 2), math.nan), 50) == (None, False)
    assert magnitude(torch.empty(0, 4), 50) == (None, False)


@pytest.mark.parametrize(
    "shape", [(4096, 4096), (1, 3 * MAX_EXACT), (3 * MAX_EXACT, 1), (7, 400_000), (400_000, 7)]
)
def test_large_planes_are_sampled_and_say_so(shape: tuple[int, int]) -> None:
    torch.manual_seed(3)
    x = torch.randn(shape)
    part = sample(x)
    assert MAX_EXACT / 8 < part.numel() <= MAX_EXACT
    found, sampled = magnitude(x, 99)
    assert sampled
    true = float(np.percentile(x.abs().numpy(), 99))
    assert found == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize("percentile", [0, -1, 100.5, math.nan])
def test_percentages_that_are_none(percentile: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        magnitude(torch.zeros(2, 2), percentile)


def test_a_tile_has_it_over_the_whole_plane() -> None:
    x = torch.arange(100.0).reshape(10, 10)
    made = tile(x, window=(0, 2, 0, 2), percentile=50)
    assert (made.reach, made.sampled) == (49.0, False)
    assert tile(x).reach is None
