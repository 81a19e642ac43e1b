"""Differences and single elements, against Python's own numbers."""

from __future__ import annotations

import math

import pytest
import torch

from lensview.tensors.dense import difference, element

FLOATS = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_element_reads_back_as_itself(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(60), torch.randn(60) * 1e-3, torch.randn(60) * 30]).to(dtype)
    for i in range(len(x)):
        text = element(x, (i,))
        back = torch.tensor(float(text), dtype=torch.float64).to(dtype)
        assert back.to(torch.float64) == x[i].to(torch.float64), text


def test_an_element_is_the_shortest_such_text() -> None:
    assert element(torch.tensor([0.1, 1 / 3]), (0,)) == "0.1"
    assert element(torch.tensor([0.1, 1 / 3]), (1,)) == "0.33333334"
    assert element(torch.tensor(1 / 3, dtype=torch.float64), ()) == "0.3333333333333333"
    assert element(torch.tensor(1 / 3, dtype=torch.bfloat16), ()) == "0.334"
    assert element(torch.tensor(100.0), ()) == "100.0"
    assert element(torch.tensor(-0.0, dtype=torch.bfloat16), ()) == "-0.0"


def test_elements_of_other_dtypes() -> None:
    assert element(torch.tensor([math.nan, math.inf, -math.inf]), (0,)) == "nan"
    assert element(torch.tensor([math.nan, math.inf, -math.inf]), (-1,)) == "-inf"
    assert element(torch.tensor(2**63 - 1), ()) == "9223372036854775807"
    assert element(torch.tensor(2**64 - 1, dtype=torch.uint64), ()) == "18446744073709551615"
    assert element(torch.tensor([True]), (0,)) == "True"
    assert element(torch.tensor([1.5 - 0.1j]), (0,)) == "(1.5-0.1j)"
    assert element(torch.tensor([complex(0, math.nan)]), (0,)) == "(0.0+nanj)"
    assert element(torch.tensor([1.5 - 0.1j]).conj(), (0,)) == "(1.5+0.1j)"
    assert element(torch.tensor([[0.0, 2.5]]).to_sparse(), (0, 1)) == "2.5"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
def test_elements_of_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([torch.ones(4, 3), torch.full((2, 3), 2.0)])
    assert element(nested, (1, 1, 2)) == "2.0"
    with pytest.raises(IndexError, match="Index 2 is out of range for dim 0 of size 2"):
        element(nested, (1, 2, 0))


@pytest.mark.parametrize("index", [(2, 0), (-3, 0), (0, 3), (0,), (0, 0, 0), ()])
def test_elements_out_of_range(index: tuple[int, ...]) -> None:
    with pytest.raises(IndexError, match=r"\(2, 3\)"):
        element(torch.zeros(2, 3), index)


# --- differences -----------------------------------------------------------------------------


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
