"""Distributions and norms against numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lensview.tensors.distribution import QUANTILES, distribution
from lensview.tensors.norms import row_norms, token_norms

INF, NAN = float("inf"), float("nan")


def test_counts_and_quantiles_as_numpy_has_them() -> None:
    values = torch.randn(7, 333, generator=torch.Generator().manual_seed(0))
    found = distribution(values, bins=40)
    counts, edges = np.histogram(values.double().numpy(), bins=40)
    assert abs(np.array(found.counts) - counts).sum() <= 2  # a value at an edge may round over it
    assert sum(found.counts) == values.numel() == found.finite and found.outside == 0
    assert (found.low, found.high) == pytest.approx((edges[0], edges[-1]))
    shares, numbers = zip(*found.quantiles, strict=True)
    expected = np.quantile(values.numpy(), QUANTILES, method="inverted_cdf")
    assert shares == QUANTILES and numbers == pytest.approx(expected.tolist())


def test_what_is_not_finite_is_counted_apart() -> None:
    found = distribution(torch.tensor([1.0, NAN, INF, -INF, 3.0, 2.0, NAN]), bins=2)
    assert (found.finite, found.nan, found.inf) == (3, 2, 2)
    assert found.counts == (1, 2) and (found.low, found.high) == (1.0, 3.0)


def test_given_edges_leave_the_rest_outside() -> None:
    found = distribution(torch.arange(10.0), bins=5, edges=(2.0, 7.0))
    assert sum(found.counts) == 6 and found.outside == 4


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(-4, 5),
        torch.tensor([True, False, True]),
        torch.randn(3, 4).bfloat16(),
        torch.zeros(5),
        torch.tensor([3.0]),
        torch.tensor([-3e38, 3e38]),
        torch.tensor([1 + 2j, 3 - 1j]),
    ],
)
def test_odd_tensors(values: torch.Tensor) -> None:
    found = distribution(values, bins=8)
    assert sum(found.counts) == values.numel() == found.finite


def test_nothing_finite() -> None:
    for values in (torch.tensor([NAN, INF]), torch.zeros(0, 4)):
        found = distribution(values, bins=3)
        assert found.counts == (0, 0, 0) and found.quantiles == ()
    with pytest.raises(ValueError, match="1 bin"):
        distribution(torch.zeros(2), bins=0)
    with pytest.raises(ValueError, match="in order"):
        distribution(torch.zeros(2), edges=(1.0, NAN))


def test_norms_of_tokens_and_rows() -> None:
    values = torch.randn(2, 5, 3, 4)
    tokens = token_norms(values, 1)
    expected = np.linalg.norm(values[1].double().numpy().reshape(5, 12), axis=-1)
    assert tokens.norm == pytest.approx(expected.tolist()) and tokens.width == 12
    assert tokens.rms == pytest.approx((expected / 12**0.5).tolist())
    rows = row_norms(values, (1, 2))
    assert rows.norm == pytest.approx(values[1, 2].norm(dim=-1).tolist()) and rows.width == 4
    large = row_norms(torch.full((1, 4), 6e4, dtype=torch.float16))
    assert large.norm[0] == pytest.approx(float(torch.tensor(6e4).half()) * 2)
    with pytest.raises(IndexError):
        token_norms(values, 2)
