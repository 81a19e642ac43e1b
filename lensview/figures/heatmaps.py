"""The heatmap of a record: cells diverging around 0, and layers for what is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..tensors.dense import real
from ..tensors.differences import difference
from ..tensors.planes import plane
from ..tensors.tiles import Tile, tile
from ..traces.tokens import UNUSUAL_ROWS
from .axes import Axis, axis_of, plane_labels
from .style import MUTED, card, finish, interventions

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from torch import Tensor

    from ..traces.trace import Trace

    Cells = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

# The explorer's palette on a light ground: equal steps look equal, blue and red stay apart for
# colour-blind readers, and the centre is the colour of nothing.
SCALE = (
    *("#013b85", "#0756b8", "#2f76db", "#4f96fe", "#8ab9ff", "#c1daff"),
    "#fafafa",
    *("#fecac3", "#fe968b", "#ee665c", "#ca453d", "#a6201f", "#7d0009"),
)
COLOURS = {"NaN": "#ffe23d", "+inf": "#000000", "−inf": "#7a7a7a"}

# Pixels of one row, and of the whole plot.
_ROW_PIXELS, _LOWEST, _HIGHEST = 18, 160, 760


def heatmap(
    trace: Trace,
    site: str,
    *,
    baseline: Trace | None = None,
    index: Sequence[int] = (),
    window: Sequence[int] | None = None,
    max_rows: int = 256,
    max_columns: int = 1024,
    limit: float | None = None,
) -> go.Figure:
    """A record as a heatmap, diverging around 0, with token labels where its rows are tokens.

    A record of more than two dims shows the plane of its last two; large planes are reduced, each
    cell to its value of largest magnitude, and the subtitle says so. NaN and infinities have
    colours and legend entries of their own.

    Args:
        trace: the run.
        site: any spelling of a site that the trace holds.
        baseline: another run of the same shape; then the figure shows ``trace - baseline``.
        index: fixes the leading dims, one int each; missing ones are 0. For (B, T, D) it is the
            batch row.
        window: (row0, row1, column0, column1) of the plane, half open; None is everything.
        max_rows: at most so many rows of cells.
        max_columns: at most so many columns of cells.
        limit: colours run from ``-limit`` to ``limit``; None takes the largest finite magnitude.

    Raises:
        SiteError, NotRecordedError: the trace does not hold the site.
        IndexError: `index` or `window` is out of range.
        ValueError: the baseline's record has another shape, or a limit is below 1 (of cells) or
            not above 0 (of colours).
        TypeError: a kind of tensor that cannot be read.
    """
    if limit is not None and not (limit > 0 and math.isfinite(limit)):
        raise ValueError(f"The colours' limit is a positive number, not {limit}.")
    tensor = trace[site] if baseline is None else difference(trace[site], baseline[site])
    reduced = tile(tensor, window, max_rows, max_columns, index)
    rows, columns = plane_labels(trace, site, tensor, index)
    y = axis_of(reduced.window[:2], reduced.row_step, reduced.rows, rows, "row")
    across = "feature" if rows is not None else "column"
    x = axis_of(reduced.window[2:], reduced.column_step, reduced.columns, columns, across)

    figure = card()
    _add_cells(figure, reduced, (x, y), limit)
    if reduced.nan + reduced.inf:
        _add_odd(figure, reduced, (x, y), real(plane(tensor, index)))
    finish(
        figure,
        f"{site} − baseline" if baseline is not None else site,
        _facts(trace, site, reduced, index),
        min(max(reduced.rows * _ROW_PIXELS, _LOWEST), _HIGHEST),
    )
    figure.update_xaxes(title={"text": x.title, "standoff": 10}, **x.layout)
    figure.update_yaxes(title={"text": y.title, "standoff": 12}, autorange="reversed", **y.layout)
    return figure


def _facts(trace: Trace, site: str, reduced: Tile, index: Sequence[int]) -> list[str]:
    """What a reader must know beside the picture: shape, rows, plane, reduction, interventions."""
    shape = "x".join(map(str, reduced.shape)) or "scalar"
    facts = [f"{shape} {reduced.dtype}"]
    facts += [f"rows: {rows}"] if (rows := trace.rows(site)) in UNUSUAL_ROWS else []
    facts += [note] if (note := trace.placement_note(site)) else []
    leading = max(0, len(reduced.shape) - 2)
    if any(size > 1 for size in reduced.shape[:leading]):
        fixed = [*index, *([0] * leading)][:leading]
        facts.append(f"at [{', '.join(map(str, fixed))}]")
    if reduced.window != (0, reduced.plane[0], 0, reduced.plane[1]):
        row0, row1, column0, column1 = reduced.window
        facts.append(f"rows {row0}:{row1}, columns {column0}:{column1}")
    facts += [n for n in reduced.note.split("; ") if n]
    facts += [] if reduced.plane[0] * reduced.plane[1] else ["empty"]
    return facts + interventions(trace)


def _add_cells(
    figure: go.Figure, reduced: Tile, axes: tuple[Axis, Axis], limit: float | None
) -> None:
    cells = _cells(reduced)
    largest = max(abs(reduced.low or 0.0), abs(reduced.high or 0.0))
    # Colours are drawn in the picture's float32, which clamps what lies beyond it.
    reach = min(limit or largest or 1.0, float(np.finfo(np.float32).max))
    figure.add_heatmap(
        z=np.where(np.isfinite(cells), cells, np.float32(np.nan)),
        x=axes[0].values,
        y=axes[1].values,
        zmin=-reach,
        zmax=reach,
        colorscale=[[i / (len(SCALE) - 1), c] for i, c in enumerate(SCALE)],
        colorbar={"thickness": 12, "outlinewidth": 0, "tickfont": {"color": MUTED}},
        hovertemplate=_hover(axes, reduced, "%{z:.6~g}"),
        hoverongaps=False,
        showlegend=False,
    )


def _add_odd(figure: go.Figure, reduced: Tile, axes: tuple[Axis, Axis], source: Tensor) -> None:
    """NaN and the two infinities: a layer of one colour each, counted over the whole plane."""
    cells = _cells(reduced)
    kinds = {
        "NaN": (np.isnan(cells), reduced.nan),
        "+inf": (np.isposinf(cells), int(source.isposinf().count_nonzero())),
        "−inf": (np.isneginf(cells), int(source.isneginf().count_nonzero())),
    }
    for name, (where, count) in kinds.items():
        if not count:
            continue
        figure.add_heatmap(
            z=np.where(where, np.float32(1), np.float32(np.nan)),
            x=axes[0].values,
            y=axes[1].values,
            zmin=0,
            zmax=1,
            colorscale=[[0, COLOURS[name]], [1, COLOURS[name]]],
            showscale=False,
            name=f"{name} × {count:,}",
            showlegend=True,
            hovertemplate=_hover(axes, reduced, name),
            hoverongaps=False,
        )


def _hover(axes: tuple[Axis, Axis], reduced: Tile, value: str) -> str:
    several = reduced.row_step * reduced.column_step > 1
    lead = f"largest of {reduced.row_step} x {reduced.column_step}: " if several else ""
    return f"{axes[1].hover}<br>{axes[0].hover}<br>{lead}<b>{value}</b><extra></extra>"


def _cells(reduced: Tile) -> Cells:
    return np.frombuffer(reduced.data, "<f4").reshape(reduced.rows, reduced.columns)
