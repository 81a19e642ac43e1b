"""The next-token bars: the most probable tokens of one run, or of two side by side."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..tensors.notation import render
from .style import GRID, INK, LABEL_CHARACTERS, MONO, card, cut, finish, interventions, text

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..traces.trace import Trace

_BAR, _BASELINE = "#0756b8", "#b9bec9"
_BAR_PIXELS = 20
_PROMPT_TOKENS = 8
_SMALL = 0.001


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

    figure = card()
    bars = [(trace, "this run" if baseline is not None else "", _BAR)]
    if baseline is not None:
        bars.append((baseline, "baseline", _BASELINE))
    for run, name, colour in bars:
        _add_bars(figure, run, row, (ids, names), name, colour)
    finish(figure, "Next token", _prompt_end(trace, row), len(ids) * _BAR_PIXELS * len(runs))
    # Room at the right for the text of a bar that reaches 100%.
    figure.update_layout(barmode="group", bargap=0.25, margin_r=64)
    figure.update_xaxes(
        title={"text": "probability", "standoff": 10},
        tickformat=".0%",
        rangemode="tozero",
        showgrid=True,
        gridcolor=GRID,
    )
    figure.update_yaxes(
        autorange="reversed",
        tickvals=list(range(len(ids))),
        ticktext=names,
        tickfont={"family": MONO, "color": INK},
    )
    return figure


def _token_names(trace: Trace, ids: list[int]) -> list[str]:
    """What each token is called: its text made visible, with its id where that is not enough."""
    spelt = [trace.spelling(i) for i in ids]
    shown = [render(s) for s in spelt]
    return [
        text(cut(label) + ("" if _tells(label, s, shown) else f" #{i}"))
        for i, s, label in zip(ids, spelt, shown, strict=True)
    ]


def _tells(label: str, spelling: str, others: list[str]) -> bool:
    whole = label and "\ufffd" not in spelling and len(label) <= LABEL_CHARACTERS
    return bool(whole) and others.count(label) == 1


def _prompt_end(trace: Trace, row: int) -> list[str]:
    if trace.tokens is None or not trace.tokens.labels[row]:
        return interventions(trace)
    labels = trace.tokens.labels[row]
    tail = labels[-_PROMPT_TOKENS:]
    more = "… " if len(labels) > len(tail) else ""
    return [f"after {more}{' '.join(map(cut, tail))}", *interventions(trace)]


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
