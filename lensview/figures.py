"""Plotly figures of a trace, for papers, slides and static notebooks.

Owns two figures: a heatmap of a record and the next-token bars. What is drawn is reduced by
`tensors/tiles.py`, so a figure stays small however large the record is. The live pictures are the
explorer's. Plotly is imported when a figure is made.

Plotly reads a subset of HTML, entities and TeX in every text it draws; all that a model or a user
wrote goes through `text`, which makes it literal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .tensors.dense import real
from .tensors.labels import render
from .tensors.tiles import Tile, difference, plane, tile

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from torch import Tensor

    from .traces.trace import Trace

    Cells = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

# The explorer's palette on a light ground: equal steps look equal, blue and red stay apart for
# colour-blind readers, and the centre is the colour of nothing.
SCALE = (
    *("#013b85", "#0756b8", "#2f76db", "#4f96fe", "#8ab9ff", "#c1daff"),
    "#fafafa",
    *("#fecac3", "#fe968b", "#ee665c", "#ca453d", "#a6201f", "#7d0009"),
)
COLOURS = {"NaN": "#ffe23d", "+inf": "#000000", "−inf": "#7a7a7a"}
_BAR, _BASELINE = "#0756b8", "#b9bec9"
_INK, _MUTED, _PAPER, _GRID = "#1f2430", "#5b6270", "#ffffff", "#e3e6ec"
_SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# Pixels, at 12 px a character.
_ROW_PIXELS, _BAR_PIXELS = 18, 20
_LOWEST, _HIGHEST = 160, 760
_TOP, _BOTTOM, _LINE_PIXELS = 64, 62, 18
_LABEL_CHARACTERS, _LINE_CHARACTERS = 24, 100
_PROMPT_TOKENS = 8
_TICKS = 9
_SMALL = 0.001
_ENTITIES = {ord(c): f"&#{ord(c)};" for c in "&<>$%"}


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
    rows, columns = _plane_labels(trace, site, tensor, index)
    y = _axis(reduced.window[:2], reduced.row_step, reduced.rows, rows, "row")
    across = "feature" if rows is not None else "column"
    x = _axis(reduced.window[2:], reduced.column_step, reduced.columns, columns, across)

    figure = _figure()
    _add_cells(figure, reduced, (x, y), limit)
    if reduced.nan + reduced.inf:
        _add_odd(figure, reduced, (x, y), real(plane(tensor, index)))
    _finish(
        figure,
        f"{site} − baseline" if baseline is not None else site,
        _facts(trace, reduced, tensor, index),
        min(max(reduced.rows * _ROW_PIXELS, _LOWEST), _HIGHEST),
    )
    figure.update_xaxes(title={"text": x.title, "standoff": 10}, **x.layout)
    figure.update_yaxes(title={"text": y.title, "standoff": 12}, autorange="reversed", **y.layout)
    return figure


def top_tokens(trace: Trace, k: int = 10, row: int = 0, baseline: Trace | None = None) -> go.Figure:
    """The `k` most probable next tokens as horizontal bars.

    Args:
        trace: a run of a model with logits.
        k: how many tokens.
        row: the batch row.
        baseline: another run, drawn beside it; then the tokens are the `k` most probable in
            either.

    Raises:
        ValueError: a run has no logits, `row` is out of range, or `k` is below 1.
    """
    runs = [trace] if baseline is None else [trace, baseline]
    best: dict[int, float] = {}
    for run in runs:
        for token in run.top(k, row):
            best[token.id] = max(best.get(token.id, 0.0), token.probability)
    ids = sorted(best, key=lambda i: (-best[i], i))[:k]
    names = _token_names(trace, ids)

    figure = _figure()
    bars = [(trace, "this run" if baseline is not None else "", _BAR)]
    if baseline is not None:
        bars.append((baseline, "baseline", _BASELINE))
    for run, name, colour in bars:
        _add_bars(figure, run, row, (ids, names), name, colour)
    _finish(figure, "Next token", _prompt_end(trace, row), len(ids) * _BAR_PIXELS * len(runs))
    # Room at the right for the text of a bar that reaches 100%.
    figure.update_layout(barmode="group", bargap=0.25, margin_r=64)
    figure.update_xaxes(
        title={"text": "probability", "standoff": 10},
        tickformat=".0%",
        rangemode="tozero",
        showgrid=True,
        gridcolor=_GRID,
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(ids))),
        ticktext=names,
        tickfont={"family": _MONO, "color": _INK},
    )
    return figure


def text(literal: str) -> str:
    """`literal` so that plotly draws it as it stands: no tags, entities, TeX or templates."""
    return literal.translate(_ENTITIES)


# --- what the rows and columns are -----------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """Where the cells of one direction lie, and how that is told."""

    values: list[str] | list[int]
    title: str
    layout: dict[str, Any]
    hover: str


def _plane_labels(
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
        labels[position] = text(_cut(label))
    return labels


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL_CHARACTERS else f"{label[: _LABEL_CHARACTERS - 1]}…"


def _axis(
    bounds: Sequence[int], step: int, cells: int, labels: list[str] | None, what: str
) -> _Axis:
    first, end = bounds
    if not cells:
        return _Axis([], what, {"showticklabels": False}, "")
    if labels is None and step == 1:
        layout: dict[str, Any] = {"dtick": 1} if cells <= _TICKS else {}
        return _Axis(list(range(first, end)), what, layout, f"{what} %{{{_of(what)}}}")
    # Categories, since the name of a cell is what its hover shows. The position in each keeps
    # two equal tokens from becoming one row.
    spans = [(start, min(start + step, end)) for start in range(first, end, step)]
    names = [_span_name(span, labels) for span in spans]
    layout = {"type": "category", "categoryorder": "array", "categoryarray": names}
    if labels is not None:
        layout["tickfont"] = {"family": _MONO, "color": _INK}
        return _Axis(names, "token", layout, f"token %{{{_of(what)}}}")
    ticks = list(_round_numbers(first, end))
    layout["tickvals"] = [names[(n - first) // step] for n in ticks]
    layout["ticktext"] = [str(n) for n in ticks]
    return _Axis(names, what, layout, f"{what}s %{{{_of(what)}}}")


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


# --- the parts of a figure -------------------------------------------------------------------


def _figure() -> go.Figure:
    import plotly.graph_objects as go

    axis = {
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "linecolor": _GRID,
        "tickfont": {"color": _MUTED},
    }
    figure = go.Figure()
    # Ink and paper are set together, so that a dark page shows a light card, never dark on dark.
    figure.update_layout(
        template="none",
        font={"family": _SANS, "size": 12, "color": _INK},
        paper_bgcolor=_PAPER,
        plot_bgcolor=_PAPER,
        xaxis=axis,
        yaxis=axis,
        hoverlabel={
            "bgcolor": _PAPER,
            "bordercolor": _MUTED,
            "align": "left",
            "font": {"family": _MONO, "color": _INK},
        },
    )
    return figure


def _finish(figure: go.Figure, heading: str, facts: list[str], plot_pixels: int) -> None:
    """Title, subtitle in as many lines as it takes, height, legend."""
    lines = [""]
    for fact in facts:
        if lines[-1] and len(lines[-1]) + len(fact) > _LINE_CHARACTERS:
            lines.append("")
        lines[-1] += f" · {fact}" if lines[-1] else fact
    top = _TOP + _LINE_PIXELS * len(lines)
    bottom = _BOTTOM + (_LINE_PIXELS if any(t.showlegend for t in figure.data) else 0)
    figure.update_layout(
        title={
            "text": text(heading),
            "x": 0,
            "xref": "paper",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 28},
            "font": {"size": 16, "color": _INK},
            "subtitle": {
                "text": "<br>".join(map(text, lines)),
                "font": {"size": 12, "color": _MUTED},
            },
        },
        height=plot_pixels + top + bottom,
        margin={"l": 60, "r": 20, "t": top, "b": bottom},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
        },
    )


def _facts(trace: Trace, reduced: Tile, tensor: Tensor, index: Sequence[int]) -> list[str]:
    """What a reader must know beside the picture: shape, plane, reduction, interventions."""
    shape = "x".join(map(str, reduced.shape)) or "scalar"
    facts = [f"{shape} {reduced.dtype}"]
    leading = max(0, len(reduced.shape) - 2)
    if any(size > 1 for size in reduced.shape[:leading]):
        fixed = [*index, *([0] * leading)][:leading]
        facts.append(f"at [{', '.join(map(str, fixed))}]")
    if reduced.window != (0, reduced.plane[0], 0, reduced.plane[1]):
        row0, row1, column0, column1 = reduced.window
        facts.append(f"rows {row0}:{row1}, columns {column0}:{column1}")
    facts += [n for n in reduced.note.split("; ") if n]
    facts += [] if reduced.plane[0] * reduced.plane[1] else ["empty"]
    return facts + _interventions(trace)


def _interventions(trace: Trace) -> list[str]:
    count = len(trace.interventions)
    return [f"{count} intervention{'s' if count > 1 else ''}"] if count else []


def _add_cells(
    figure: go.Figure, reduced: Tile, axes: tuple[_Axis, _Axis], limit: float | None
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
        colorbar={"thickness": 12, "outlinewidth": 0, "tickfont": {"color": _MUTED}},
        hovertemplate=_hover(axes, reduced, "%{z:.6~g}"),
        hoverongaps=False,
        showlegend=False,
    )


def _add_odd(figure: go.Figure, reduced: Tile, axes: tuple[_Axis, _Axis], source: Tensor) -> None:
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


def _hover(axes: tuple[_Axis, _Axis], reduced: Tile, value: str) -> str:
    several = reduced.row_step * reduced.column_step > 1
    lead = f"largest of {reduced.row_step} x {reduced.column_step}: " if several else ""
    return f"{axes[1].hover}<br>{axes[0].hover}<br>{lead}<b>{value}</b><extra></extra>"


def _cells(reduced: Tile) -> Cells:
    return np.frombuffer(reduced.data, "<f4").reshape(reduced.rows, reduced.columns)


# --- next tokens -----------------------------------------------------------------------------


def _token_names(trace: Trace, ids: list[int]) -> list[str]:
    """What each token is called: its text made visible, with its id where that is not enough."""
    spelt = [trace.spelling(i) for i in ids]
    shown = [render(s) for s in spelt]
    return [
        text(_cut(label) + ("" if _tells(label, s, shown) else f" #{i}"))
        for i, s, label in zip(ids, spelt, shown, strict=True)
    ]


def _tells(label: str, spelling: str, others: list[str]) -> bool:
    whole = label and "\ufffd" not in spelling and len(label) <= _LABEL_CHARACTERS
    return bool(whole) and others.count(label) == 1


def _prompt_end(trace: Trace, row: int) -> list[str]:
    if trace.tokens is None or not trace.tokens.labels[row]:
        return _interventions(trace)
    labels = trace.tokens.labels[row]
    tail = labels[-_PROMPT_TOKENS:]
    more = "… " if len(labels) > len(tail) else ""
    return [f"after {more}{' '.join(map(_cut, tail))}", *_interventions(trace)]


def _add_bars(
    figure: go.Figure,
    run: Trace,
    row: int,
    tokens: tuple[list[int], list[str]],
    name: str,
    colour: str,
) -> None:
    assert run.logits is not None
    ids, names = tokens
    probabilities = torch.softmax(run.logits[row].float(), -1)[ids].tolist()
    figure.add_bar(
        x=probabilities,
        y=list(range(len(ids))),
        orientation="h",
        name=name,
        showlegend=bool(name),
        marker={"color": colour},
        text=[_percent(p) for p in probabilities],
        textposition="outside",
        cliponaxis=False,
        customdata=list(zip(names, ids, strict=True)),
        hovertemplate="%{customdata[0]}<br>id %{customdata[1]}<br><b>%{x:.6~g}</b><extra>"
        f"{name}</extra>",
    )


def _percent(probability: float) -> str:
    if math.isnan(probability):
        return "NaN"
    return f"{probability:.1%}" if probability >= _SMALL else f"{100 * probability:.1g}%"
