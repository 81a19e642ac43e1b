"""Planes: which 2-D part of a tensor is shown."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize(
    ("rows", "columns", "index", "wanted"),
    [
        (0, 4, (1, 2, 3), "x[:, 1, 2, 3, :]"),
        (4, 0, (1, 2, 3), "x[:, 1, 2, 3, :].T"),
        (3, 1, (1,), "x[1, :, 0, :, 0].T"),
        (1, 2, (), "x[0, :, :, 0, 0]"),
        (-1, -2, (1, 0, 2), "x[1, 0, 2].T"),
        (2, 4, (-1, -1, -1), "x[-1, -1, :, -1, :]"),
    ],
)
def test_any_two_dims(
    dtype: torch.dtype, rows: int, columns: int, index: tuple[int, ...], wanted: str
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(2, 3, 4, 5, 6) * 4).to(dtype)
    # numpy has no bfloat16; float32 holds all of it.
    plain = x.float().numpy() if dtype == torch.bfloat16 else x.numpy()
    expected = eval(wanted, {"x": plain})
    found = plane(x, index, rows, columns)
    assert (
        found.float() if dtype == torch.bfloat16 else found
    ).numpy().tolist() == expected.tolist()
    cells = tile(x, index=index, rows_dim=rows, columns_dim=columns)
    shown = np.frombuffer(cells.data, "<f4").reshape(cells.rows, cells.columns)
    assert np.array_equal(shown, expected.astype(np.float32))
    assert cells.shape == (2, 3, 4, 5, 6) and cells.plane == expected.shape


def test_pooled_planes_of_other_dims_keep_extremes() -> None:
    x = torch.zeros(3, 40, 2, 50)
    x[1, 33, 1, 7] = -9.0
    x[1, 2, 1, 3] = torch.nan
    cells = tile(x, None, 4, 5, (1, 1), rows_dim=3, columns_dim=1)
    shown = np.frombuffer(cells.data, "<f4").reshape(cells.rows, cells.columns)
    assert cells.plane == (50, 40)
    assert shown[7 // cells.row_step, 33 // cells.column_step] == -9.0
    assert np.isnan(shown[0, 0]) and cells.nan == 1


def test_a_vector_down_or_across() -> None:
    x = torch.arange(4)
    assert plane(x, (), 0).tolist() == [[0], [1], [2], [3]]
    assert plane(x, (), None, 0).tolist() == [[0, 1, 2, 3]]
    assert plane(torch.tensor(1j)).shape == (1, 1)
    assert plane(torch.zeros(0, 3, 2), (), 2, 1).shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "dims", "error"),
    [
        ((2, 3), (0, 0), ValueError),
        ((2, 3), (0, None), ValueError),
        ((2, 3), (2, 0), IndexError),
        ((2, 3), (1, -1), ValueError),
        ((3,), (1, None), IndexError),
        ((), (0, None), IndexError),
    ],
)
def test_dims_that_make_no_plane(
    shape: tuple[int, ...], dims: tuple[int | None, int | None], error: type[Exception]
) -> None:
    with pytest.raises(error):
        plane(torch.zeros(shape), (), *dims)
