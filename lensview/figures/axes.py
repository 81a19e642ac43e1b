"""Axes: where a picture's cells lie, and what its rows and columns are called.

Rows are labelled with tokens only where they are the run's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .style import INK, MONO, cut, text

if TYPE_CHECKING:
    from torch import Tensor

    from ..traces.trace import Trace

_TICKS = 9


@dataclass(frozen=True)
class Axis:
    """Where the cells of one direction lie, and how that is told.

    Attributes:
        values: plotly's coordinate of each cell: a number, or a name.
        title: the axis title.
        layout: further attributes of plotly's axis.
        hover: the part of a hover template that names the place.
    """

    values: list[str] | list[int]
    title: str
    layout: dict[str, Any]
    hover: str


def plane_labels(
    trace: Trace, site: str, tensor: Tensor, index: Sequence[int]
) -> tuple[list[str] | None, list[str] | None]:
    """Token labels of the plane's rows and columns, None where these are not the run's tokens."""
    if trace.tokens is None or tensor.is_nested or not trace.aligned(site):
        return None, None
    if tensor.dim() == 3:
        return _row_labels(trace, index[0] if index else 0), None
    if tensor.dim() == 2 and tensor.shape[0] == 1:
        return None, _row_labels(trace, 0)
    return None, None


def _row_labels(trace: Trace, row: int) -> list[str]:
    """One label per column of the batch row `row`, padding marked by type, not by a word."""
    assert trace.tokens is not None
    labels = ["<i>padding</i>"] * trace.tokens.ids.shape[1]
    real_labels = trace.tokens.labels[row]
    for position, label in zip(trace.tokens.positions(row), real_labels, strict=True):
        labels[position] = text(cut(label))
    return labels


def axis_of(
    bounds: Sequence[int], step: int, cells: int, labels: list[str] | None, what: str
) -> Axis:
    """The axis of `cells` cells over the source cells in `bounds`, `step` to a cell.

    Args:
        labels: plotly texts, one per source cell of the whole plane, or None for numbers.
        what: what one source cell is: "row" lies on y, everything else on x.
    """
    first, end = bounds
    if not cells:
        return Axis([], what, {"showticklabels": False}, "")
    if labels is None and step == 1:
        layout: dict[str, Any] = {"dtick": 1} if cells <= _TICKS else {}
        return Axis(list(range(first, end)), what, layout, f"{what} %{{{_of(what)}}}")
    # Categories, since the name of a cell is what its hover shows. The position in each keeps
    # two equal tokens from becoming one row.
    spans = [(start, min(start + step, end)) for start in range(first, end, step)]
    names = [_span_name(span, labels) for span in spans]
    layout = {"type": "category", "categoryorder": "array", "categoryarray": names}
    if labels is not None:
        layout["tickfont"] = {"family": MONO, "color": INK}
        return Axis(names, "token", layout, f"token %{{{_of(what)}}}")
    ticks = list(_round_numbers(first, end))
    layout["tickvals"] = [names[(n - first) // step] for n in ticks]
    layout["ticktext"] = [str(n) for n in ticks]
    return Axis(names, what, layout, f"{what}s %{{{_of(what)}}}")


def _of(what: str) -> str:
    return "y" if what == "row" else "x"


def _span_name(span: tuple[int, int], labels: list[str] | None) -> str:
    first, last = span[0], span[1] - 1
    where = str(first) if first == last else f"{first}–{last}"
    if labels is None:
        return where
    if first == last:
        return f"{where}  {labels[first]}"
    return f"{where}  {labels[first]} … {labels[last]}"


def _round_numbers(first: int, end: int) -> Iterator[int]:
    """Multiples of 1, 2 or 5 times a power of ten in [first, end), about `_TICKS` of them."""
    rough = max(1.0, (end - first) / _TICKS)
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    yield from range(-(-first // step) * step, end, step)
