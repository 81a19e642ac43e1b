"""Differences against Python's own numbers."""

from __future__ import annotations

import math

import pytest
import torch

from lensview.tensors.differences import difference


def test_small_floats_are_subtracted_in_float32() -> None:
    a = torch.tensor([1.0, 256.0], dtype=torch.bfloat16)
    b = torch.tensor([2.0**-8, 1.0], dtype=torch.bfloat16)
    assert difference(a, b).dtype == torch.float32
    assert difference(a, b).tolist() == [1 - 2.0**-8, 255.0]


def test_float64_stays() -> None:
    a = torch.tensor([1.0], dtype=torch.float64)
    assert difference(a, torch.tensor([1e-12])).item() == 1 - float(torch.tensor(1e-12))


def test_ints_are_exact() -> None:
    a, b = torch.tensor([2**60 + 1, 0, 3]), torch.tensor([2**60, 255, -4])
    assert difference(a, b).tolist() == [1, -255, 7]
    small = difference(torch.tensor([0], dtype=torch.uint8), torch.tensor([255], dtype=torch.uint8))
    assert small.tolist() == [-255]
    assert difference(torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])).item() == 2.0**64
    assert (
        difference(torch.tensor([2**64 - 1], dtype=torch.uint64), torch.tensor([1])).item()
        == 2.0**64
    )


def test_bools_and_complex() -> None:
    assert difference(torch.tensor([False]), torch.tensor([True])).tolist() == [-1.0]
    assert difference(torch.tensor([1 + 2j]), torch.tensor([1.0])).tolist() == [2j]


def test_equal_infinities_differ_by_nothing_and_nan_by_nan() -> None:
    a = torch.tensor([math.inf, -math.inf, math.inf, math.nan, math.nan])
    b = torch.tensor([math.inf, -math.inf, -math.inf, 1.0, math.nan])
    found = difference(a, b).tolist()
    assert found[:3] == [0.0, 0.0, math.inf]
    assert all(math.isnan(v) for v in found[3:])


def test_other_shapes_have_no_difference() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(1, 3\)"):
        difference(torch.zeros(2, 3), torch.zeros(1, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_differences(layout: torch.layout) -> None:
    parts = [torch.randn(4, 3), torch.randn(2, 3)]
    a = torch.nested.nested_tensor(parts, layout=layout)
    b = torch.nested.nested_tensor([p * 3 for p in parts], layout=layout)
    for found, p in zip(difference(a, b).unbind(), parts, strict=True):
        assert torch.equal(found, p - p * 3)
    with pytest.raises(ValueError, match=r"\(2, 4, 3\) and \(2, 4, 3\)|ragged"):
        difference(a, torch.zeros(2, 4, 3))


def test_inputs_are_left_alone() -> None:
    a, b = torch.randn(3, 3), torch.randn(3, 3)
    kept = a.clone(), b.clone()
    difference(a, b).zero_()
    assert torch.equal(a, kept[0]) and torch.equal(b, kept[1])
