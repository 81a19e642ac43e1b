"""Single elements: each text reads back as the value it was made from."""

from __future__ import annotations

import math

import pytest
import torch

from lensview.tensors.elements import element

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
