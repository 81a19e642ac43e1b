"""Tiles against brute-force loops: every source cell counted once, extremes and NaN kept."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from lensview.tensors.planes import plane
from lensview.tensors.tiles import MAX_TILE_BYTES, Tile, tile

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
FLOAT32_MAX = torch.finfo(torch.float32).max


def cells(t: Tile) -> list[list[float]]:
    flat = struct.unpack(f"<{t.rows * t.columns}f", t.data)
    return [list(flat[r * t.columns : (r + 1) * t.columns]) for r in range(t.rows)]


def ranked(value: float) -> float:
    """A number that sorts NaN above infinities above finite magnitudes."""
    return math.inf if math.isnan(value) else 1e300 if math.isinf(value) else abs(value)


def brute(
    source: list[list[float]], window: tuple[int, int, int, int], steps: tuple[int, int]
) -> list[list[float]]:
    """Pooling as a person would write it."""
    row0, row1, column0, column1 = window
    return [
        [
            max(
                (
                    source[i][j]
                    for i in range(r, min(r + steps[0], row1))
                    for j in range(c, min(c + steps[1], column1))
                ),
                key=ranked,
            )
            for c in range(column0, column1, steps[1])
        ]
        for r in range(row0, row1, steps[0])
    ]


def same(a: list[list[float]], b: list[list[float]]) -> bool:
    return [[repr(x) for x in row] for row in a] == [[repr(x) for x in row] for row in b]


@pytest.mark.parametrize("shape", [(1, 1), (1, 37), (29, 1), (16, 16), (17, 31), (40, 9)])
@pytest.mark.parametrize("limits", [(1, 1), (3, 5), (8, 8), (16, 16), (64, 64)])
def test_a_tile_is_brute_force_pooling(shape: tuple[int, int], limits: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(shape[0] * 100 + limits[0])
    x = torch.randn(shape, generator=generator)
    x[torch.rand(shape, generator=generator) < 0.02] = math.nan
    x[torch.rand(shape, generator=generator) < 0.05] = -math.inf
    t = tile(x, max_rows=limits[0], max_columns=limits[1])
    assert (t.row_step, t.column_step) == (-(-shape[0] // limits[0]), -(-shape[1] // limits[1]))
    assert t.rows <= limits[0] and t.columns <= limits[1]
    expected = brute(x.tolist(), (0, shape[0], 0, shape[1]), (t.row_step, t.column_step))
    assert same(cells(t), expected)
    assert t.nan == sum(math.isnan(v) for row in x.tolist() for v in row)
    assert t.inf == sum(math.isinf(v) for row in x.tolist() for v in row)
    finite = [v for row in x.tolist() for v in row if math.isfinite(v)]
    assert (t.low, t.high) == (min(finite, default=None), max(finite, default=None))


def test_every_source_cell_decides_exactly_one_cell() -> None:
    for row in range(11):
        for column in range(7):
            x = torch.zeros(11, 7)
            x[row, column] = -2.0
            found = cells(tile(x, max_rows=4, max_columns=3))
            assert sum(v == -2.0 for line in found for v in line) == 1
            assert found[row // 3][column // 3] == -2.0


def test_windows_are_cut_in_source_cells() -> None:
    x = torch.arange(200.0).reshape(10, 20) - 77
    t = tile(x, window=(2, 9, 3, 20), max_rows=3, max_columns=4)
    assert t.window == (2, 9, 3, 20)
    assert (t.row_step, t.column_step, t.rows, t.columns) == (3, 5, 3, 4)
    assert same(cells(t), brute(x.tolist(), t.window, (3, 5)))
    assert (t.low, t.high, t.plane) == (-77.0, 122.0, (10, 20))  # of the plane, not the window


@pytest.mark.parametrize(
    "window", [(0, 11, 0, 20), (0, 10, 5, 21), (-1, 10, 0, 20), (5, 4, 0, 20), (0, 10, 9, 8)]
)
def test_windows_out_of_the_plane_are_refused(window: tuple[int, int, int, int]) -> None:
    with pytest.raises(IndexError, match=r"plane of 10 x 20"):
        tile(torch.zeros(10, 20), window=window)


def test_bad_limits_and_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="0 x 4"):
        tile(torch.zeros(2, 2), max_rows=0, max_columns=4)
    with pytest.raises(ValueError, match="row0, row1"):
        tile(torch.zeros(2, 2), window=(0, 1))


@pytest.mark.parametrize(
    "shape", [(2048, 2048), (1, 5_000_000), (5_000_000, 1), (700, 3000), (512, 512)]
)
def test_no_tile_outgrows_a_message(shape: tuple[int, int]) -> None:
    x = torch.zeros(shape)
    x[-1, -1] = 7.0
    t = tile(x, max_rows=10**9, max_columns=10**9)
    assert len(t.data) == t.rows * t.columns * 4 <= MAX_TILE_BYTES
    assert len(t.data) > MAX_TILE_BYTES // 3, "and it wastes no more than it must"
    assert (t.rows, t.columns) == (
        -(-shape[0] // t.row_step),
        -(-shape[1] // t.column_step),
    )
    assert cells(t)[-1][-1] == 7.0


def test_large_planes_are_reduced_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(53, 41)
    whole = tile(x, max_rows=10, max_columns=10)
    monkeypatch.setattr("lensview.tensors.dense.CACHED_ELEMENTS", 300)
    assert tile(x, max_rows=10, max_columns=10) == whole


# --- dtypes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, *FLOAT8])
def test_floats_of_any_width(dtype: torch.dtype) -> None:
    x = torch.randn(9, 13).exp().to(dtype)
    t = tile(x, max_rows=4, max_columns=4)
    expected = brute(x.to(torch.float32).tolist(), t.window, (t.row_step, t.column_step))
    assert same(cells(t), expected)
    assert t.dtype == str(dtype).removeprefix("torch.")
    assert t.low == x.to(torch.float64).min().item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FLOAT8])
def test_nan_of_small_floats_is_seen(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, math.nan, 2.0, 0.5]]).to(dtype)
    t = tile(x, max_columns=2)
    assert math.isnan(cells(t)[0][0]) and cells(t)[0][1] == 2.0
    assert t.nan == 1


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.uint16,
        torch.int32,
        torch.uint32,
        torch.int64,
        torch.uint64,
    ],
)
def test_ints(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    low = max(info.min, -(2**62))
    x = torch.tensor([[low, 3, 1, 0], [2, min(info.max, 2**62), 0, 1]], dtype=dtype)
    t = tile(x, max_rows=1, max_columns=4)
    reference = [max(c, key=abs) for c in zip(*x.tolist(), strict=True)]
    assert cells(t) == [[struct.unpack("<f", struct.pack("<f", v))[0] for v in reference]]
    assert (t.low, t.high) == (float(low), float(min(info.max, 2**62)))
    assert ("rounded" in t.note) == (info.max > 2**24)


def test_the_most_negative_int_is_the_largest_magnitude() -> None:
    x = torch.tensor([[-(2**63), 2**63 - 1, 5]])
    assert cells(tile(x))[0][0] == -float(2**63)
    assert cells(tile(x[:, [0, 2]], max_columns=1)) == [[-float(2**63)]]


def test_small_ints_are_not_called_rounded() -> None:
    assert tile(torch.tensor([[2**24, -(2**24)]])).note == ""


def test_bools() -> None:
    t = tile(torch.tensor([[True, False], [False, False]]), max_rows=1)
    assert cells(t) == [[1.0, 0.0]]
    assert (t.low, t.high, t.dtype) == (0.0, 1.0, "bool")


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_complex_numbers_show_magnitudes_and_say_so(dtype: torch.dtype) -> None:
    x = torch.tensor([[3 + 4j, -1j, 0]]).to(dtype)
    t = tile(x)
    assert cells(t) == [[5.0, 1.0, 0.0]]
    assert "magnitudes of complex" in t.note
    assert (t.low, t.high) == (0.0, 5.0)


def test_float64_beyond_float32_is_clamped_and_said() -> None:
    t = tile(torch.tensor([[1e300, -1e300, 1.0, math.inf]], dtype=torch.float64))
    assert cells(t) == [[FLOAT32_MAX, -FLOAT32_MAX, 1.0, math.inf]]
    assert "beyond float32" in t.note
    assert (t.low, t.high, t.inf) == (-1e300, 1e300, 1)
    small = tile(torch.tensor([[1e-300, 0.0]], dtype=torch.float64))
    assert "too small for float32" in small.note
    assert small.high == 1e-300


def test_quantized_tensors_are_dequantized() -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        x = torch.quantize_per_tensor(torch.tensor([[0.5, -2.0]]), 0.5, 0, torch.qint8)
    t = tile(x)
    assert cells(t) == [[0.5, -2.0]]
    assert (t.dtype, t.note) == ("qint8", "dequantized from qint8")


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_tensors_are_written_out() -> None:
    x = torch.tensor([[0.0, -3.0], [1.0, 0.0]])
    for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
        t = tile(sparse)
        assert cells(t) == x.tolist()
        assert "written out" in t.note
    huge = torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (10**6, 10**6))
    with pytest.raises(ValueError, match="too large to be written out"):
        tile(huge)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    parts = [torch.randn(4, 3), torch.randn(2, 3)]
    nested = torch.nested.nested_tensor(parts, layout=layout)
    assert torch.equal(plane(nested), parts[0])
    t = tile(nested, index=(1,))
    assert same(cells(t), parts[1].tolist())
    assert (t.plane, t.shape) == ((2, 3), (2, 4, 3))
    assert t.note == "component 1 of a nested tensor of lengths 4, 2"
    with pytest.raises(IndexError, match="Index 2 is out of range"):
        tile(nested, index=(2,))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
def test_ragged_vectors_end_in_nan_that_is_not_counted() -> None:
    nested = torch.nested.nested_tensor([torch.tensor([1.0, math.nan, 3.0]), torch.ones(1)])
    t = tile(nested)
    assert t.plane == (2, 3)
    assert t.nan == 1
    assert [math.isnan(v) for v in cells(t)[1]] == [False, True, True]


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.empty(2, 2, device="meta"), "meta device"),
        (torch.empty(2, 2, dtype=torch.bits8), "bits8"),
        (torch.empty(2, 2, dtype=torch.bits4x2), "bits4x2"),
        (torch.empty(2, 2, dtype=torch.float4_e2m1fn_x2), "float4_e2m1fn_x2"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(tensor: torch.Tensor, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        tile(tensor)


# --- edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "plane_shape"),
    [((0,), (1, 0)), ((0, 5), (0, 5)), ((5, 0), (5, 0)), ((0, 4, 5), (0, 5)), ((3, 0, 5), (0, 5))],
)
def test_empty_tensors_give_empty_tiles(
    shape: tuple[int, ...], plane_shape: tuple[int, int]
) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        t = tile(torch.zeros(shape, dtype=dtype))
        assert (t.plane, t.data) == (plane_shape, b"")
        assert (t.low, t.high, t.nan, t.inf) == (None, None, 0, 0)
        assert t.rows * t.columns == 0


def test_an_empty_window_gives_an_empty_tile() -> None:
    t = tile(torch.ones(3, 3), window=(1, 1, 0, 3))
    assert (t.rows, t.columns, t.data, t.low) == (0, 3, b"", 1.0)


def test_nothing_finite() -> None:
    t = tile(torch.full((3, 3), math.nan))
    assert (t.low, t.high, t.nan) == (None, None, 9)
    assert "no finite value" in t.note


def test_a_tile_owns_its_bytes_and_leaves_the_tensor_alone() -> None:
    x = torch.randn(6, 6, requires_grad=True)
    before = x.detach().clone()
    t = tile(x.t(), max_rows=3)
    data = bytes(t.data)
    with torch.no_grad():
        assert torch.equal(x, before)
        x.fill_(5)
    assert t.data == data


def test_tensors_of_other_modes_and_strides() -> None:
    x = torch.randn(8, 8)
    with torch.inference_mode():
        inferred = x.clone()
    assert tile(inferred).data == tile(x).data
    strided = torch.zeros(16, 24)[::2, ::3]
    strided.copy_(x)
    assert tile(strided, max_rows=3).data == tile(x, max_rows=3).data
    assert cells(tile(torch.tensor([[1j]]).conj().imag)) == [[-1.0]]
