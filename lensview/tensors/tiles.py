"""Tiles: the picture of a tensor that a screen has room for.

Owns the reduction of a plane to a bounded number of cells where the tensor lives, before anything
is copied off its device. Knows nothing of colours, messages or widgets.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .dense import dtype_text, full_shape, is_integral, is_magnitude, piece_elements, real
from .differences import difference
from .elements import element
from .percentiles import magnitude
from .planes import described_plane, plane, ragged_pads

__all__ = ["MAX_TILE_BYTES", "Tile", "difference", "element", "plane", "tile"]

MAX_TILE_BYTES = (1 << 20) - (1 << 16)
"""The most that a tile's cells take: a message of 1 MiB less 64 KiB for its header and labels."""

_CELL_BYTES = 4
_FLOAT32_MAX = torch.finfo(torch.float32).max
_FLOAT32_EXACT = 1 << 24
"""Ints up to this magnitude are exact in float32."""


@dataclass(frozen=True)
class Tile:
    """A window of a plane, reduced to at most so many rows and columns.

    Cell (i, j) stands for the source rows ``window[0] + i * row_step`` up to the next cell's or
    the window's end, columns alike, and holds that one of their values whose magnitude is
    largest, with its sign: NaN before everything, then infinities, then the numbers.

    Attributes:
        data: float32, little-endian, row after row: ``rows * columns * 4`` bytes.
        rows: cells down.
        columns: cells across.
        window: (row0, row1, column0, column1) in source cells, half open.
        row_step: source rows per cell; the last cell may have fewer.
        column_step: source columns per cell; the last cell may have fewer.
        plane: (rows, columns) of the whole plane.
        shape: the whole tensor's shape; of a ragged one, its longest sizes.
        dtype: the tensor's dtype, ``"bfloat16"``.
        low: the smallest finite value of the whole plane, None where it has none.
        high: the largest finite value of the whole plane, None where it has none.
        nan: how many values of the whole plane are NaN.
        inf: how many values of the whole plane are infinite.
        note: what a reader of the picture must know, or "".
        reach: the magnitude that the asked percentage of the plane's finite values do not exceed;
            None where none was asked for, or nothing is finite.
        sampled: whether `reach` is that of a sample of the plane, which is large.
    """

    data: bytes
    rows: int
    columns: int
    window: tuple[int, int, int, int]
    row_step: int
    column_step: int
    plane: tuple[int, int]
    shape: tuple[int, ...]
    dtype: str
    low: float | None
    high: float | None
    nan: int
    inf: int
    note: str
    reach: float | None = None
    sampled: bool = False


def tile(
    tensor: Tensor,
    window: Sequence[int] | None = None,
    max_rows: int = 512,
    max_columns: int = 512,
    index: Sequence[int] = (),
    *,
    rows_dim: int | None = None,
    columns_dim: int | None = None,
    percentile: float | None = None,
) -> Tile:
    """Reduce a window of `plane(tensor, index, …)` to at most `max_rows` x `max_columns` cells.

    Each source cell belongs to exactly one cell of the tile. The work is done on the tensor's
    device; what leaves it is the tile. Where the limits would give more than `MAX_TILE_BYTES`,
    the steps grow until the tile fits.

    Args:
        window: (row0, row1, column0, column1) in source cells, half open; None is the plane.
        index, rows_dim, columns_dim: as `plane` takes them.
        percentile: above 0, up to 100: also find the magnitude that so many of the plane's finite
            values do not exceed.

    Raises:
        IndexError: `index`, `window` or a dim is out of range.
        ValueError: a limit below 1, a window of other than 4 ints, dims or a percentile that make
            no sense.
        TypeError: a kind of tensor that cannot be read.
    """
    if min(max_rows, max_columns) < 1:
        raise ValueError(f"A tile has at least 1 x 1 cells, not {max_rows} x {max_columns}.")
    source, remark = described_plane(tensor, index, rows_dim, columns_dim)
    height, width = source.shape
    bounds = _window(window, height, width)
    row0, row1, column0, column1 = bounds
    row_step, column_step = _steps(row1 - row0, column1 - column0, max_rows, max_columns)
    cells = _pool(source[row0:row1, column0:column1], row_step, column_step)
    low, high, nan, inf = _extremes(source)
    picture, rounded = _float32(cells, source)
    reach, sampled = (None, False) if percentile is None else magnitude(source, percentile)
    notes = (
        remark,
        "magnitudes of complex numbers" if is_magnitude(source) else "",
        _step_note(row_step, column_step),
        rounded,
        "no finite value" if low is None and source.numel() else "",
    )
    return Tile(
        data=_bytes(picture),
        rows=picture.shape[0],
        columns=picture.shape[1],
        window=bounds,
        row_step=row_step,
        column_step=column_step,
        plane=(height, width),
        shape=full_shape(tensor),
        dtype=dtype_text(tensor),
        low=low,
        high=high,
        nan=nan - ragged_pads(tensor),
        inf=inf,
        note="; ".join(n for n in notes if n),
        reach=reach,
        sampled=sampled,
    )


def _window(window: Sequence[int] | None, height: int, width: int) -> tuple[int, int, int, int]:
    if window is None:
        return 0, height, 0, width
    try:
        row0, row1, column0, column1 = window
    except ValueError as error:
        raise ValueError(
            f"A window is (row0, row1, column0, column1), not {tuple(window)}."
        ) from error
    if not (0 <= row0 <= row1 <= height and 0 <= column0 <= column1 <= width):
        raise IndexError(
            f"The window rows {row0}:{row1}, columns {column0}:{column1} does not lie in a plane "
            f"of {height} x {width}. Windows are never clipped."
        )
    return row0, row1, column0, column1


def _steps(height: int, width: int, max_rows: int, max_columns: int) -> tuple[int, int]:
    """The smallest steps within both limits, enlarged evenly until the cells fit a message."""

    def cells(size: int, step: int) -> int:
        return math.ceil(size / step)

    row_step = max(1, cells(height, max_rows))
    column_step = max(1, cells(width, max_columns))
    while cells(height, row_step) * cells(width, column_step) * _CELL_BYTES > MAX_TILE_BYTES:
        if cells(height, row_step) >= cells(width, column_step):
            row_step += 1
        else:
            column_step += 1
    return row_step, column_step


def _step_note(row_step: int, column_step: int) -> str:
    if row_step == column_step == 1:
        return ""
    return f"each cell is the largest of {row_step} x {column_step} by magnitude"


def _pool(source: Tensor, row_step: int, column_step: int) -> Tensor:
    if 0 in source.shape:
        rows = math.ceil(source.shape[0] / row_step)
        columns = math.ceil(source.shape[1] / column_step)
        return real(source.new_zeros((rows, columns)))
    if row_step == column_step == 1:
        return real(source)
    return torch.cat([_pool_group(g, row_step, column_step) for g in _groups(source, row_step)])


def _pool_group(group: Tensor, row_step: int, column_step: int) -> Tensor:
    values = real(group).contiguous()
    # max_pool2d takes NaN before everything and says where a maximum came from, which brings the
    # sign back; its ceil_mode gives the ragged last blocks a cell of their own.
    window = (min(row_step, group.shape[0]), min(column_step, group.shape[1]))
    _, where = F.max_pool2d_with_indices(values.abs()[None, None], window, ceil_mode=True)
    return values.flatten()[where[0, 0]]


def _groups(source: Tensor, row_step: int) -> Iterator[Tensor]:
    """`source` in pieces of whole blocks of rows, each small enough to be converted."""
    blocks = max(1, piece_elements(source) // max(1, row_step * source.shape[1]))
    yield from torch.split(source, blocks * row_step)


def _extremes(source: Tensor) -> tuple[float | None, float | None, int, int]:
    """(smallest finite, largest finite, how many NaN, how many infinities)."""
    low, high, nan, inf = math.inf, -math.inf, 0, 0
    for group in _groups(source, 1):
        if not group.numel():
            continue
        values = real(group)
        smallest, largest = (x.item() for x in values.aminmax())
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            nan += int(values.isnan().count_nonzero())
            inf += int(values.isinf().count_nonzero())
            finite = values.isfinite()
            smallest = values.where(finite, math.inf).amin().item()
            largest = values.where(finite, -math.inf).amax().item()
        low, high = min(low, smallest), max(high, largest)
    return (None, None, nan, inf) if low > high else (low, high, nan, inf)


def _float32(cells: Tensor, source: Tensor) -> tuple[Tensor, str]:
    """The cells in float32, and what that did to them."""
    notes = []
    if is_integral(source) and bool((cells.abs() > _FLOAT32_EXACT).any()):
        notes.append("ints beyond 2^24 are rounded in the picture")
    picture = cells.to(torch.float32)
    overflown = picture.isinf() & cells.isfinite()
    if bool(overflown.any()):
        picture = torch.where(overflown, cells.sign().to(torch.float32) * _FLOAT32_MAX, picture)
        notes.append(f"values beyond float32 are shown as {_FLOAT32_MAX:.1e}")
    if bool(((picture == 0) & (cells != 0)).any()):
        notes.append("values too small for float32 are shown as 0")
    return picture, "; ".join(notes)


def _bytes(picture: Tensor) -> bytes:
    array = picture.cpu().contiguous().numpy()
    return (array if sys.byteorder == "little" else array.byteswap()).tobytes()
