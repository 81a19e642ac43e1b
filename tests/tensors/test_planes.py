"""Planes: which 2-D part of a tensor is shown."""

from __future__ import annotations

import pytest
import torch

from lensview.tensors.planes import plane
from lensview.tensors.tiles import tile


def test_planes_of_any_number_of_dims() -> None:
    assert torch.equal(plane(torch.tensor(3.0)), torch.tensor([[3.0]]))
    assert torch.equal(plane(torch.arange(4)), torch.arange(4)[None])
    x = torch.arange(120).reshape(2, 3, 4, 5)
    assert torch.equal(plane(x), x[0, 0])
    assert torch.equal(plane(x, (1,)), x[1, 0])
    assert torch.equal(plane(x, (1, -1)), x[1, 2])
    assert plane(x).data_ptr() == x.data_ptr(), "no copy"
    assert tile(x, index=(1, 2)).shape == (2, 3, 4, 5)


@pytest.mark.parametrize(
    ("shape", "index"),
    [
        ((2, 3, 4), (2,)),
        ((2, 3, 4), (-3,)),
        ((2, 3, 4), (0, 0)),
        ((3, 4), (0,)),
        ((4,), (0,)),
        ((), (0,)),
    ],
)
def test_planes_out_of_range(shape: tuple[int, ...], index: tuple[int, ...]) -> None:
    with pytest.raises(IndexError) as caught:
        tile(torch.zeros(shape), index=index)
    assert str(shape) in str(caught.value)
