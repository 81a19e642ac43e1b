"""The card that every figure is: colours, title, margins, and texts made literal.

Plotly reads a subset of HTML, entities and TeX in every text it draws; all that a model or a user
wrote goes through `text`, which makes it literal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..traces.trace import Trace

INK, MUTED, PAPER, GRID = "#1f2430", "#5b6270", "#ffffff", "#e3e6ec"
_SANS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# Pixels, at 12 px a character.
_TOP, _BOTTOM, _LINE_PIXELS = 64, 62, 18
LABEL_CHARACTERS, _LINE_CHARACTERS = 24, 100
_ENTITIES = {ord(c): f"&#{ord(c)};" for c in "&<>$%"}


def text(literal: str) -> str:
    """`literal` so that plotly draws it as it stands: no tags, entities, TeX or templates."""
    return literal.translate(_ENTITIES)


def cut(label: str) -> str:
    """`label` at a length that leaves room for the picture."""
    return label if len(label) <= LABEL_CHARACTERS else f"{label[: LABEL_CHARACTERS - 1]}…"


def card() -> go.Figure:
    """An empty figure in lensview's colours and fonts."""
    import plotly.graph_objects as go

    axis = {
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "linecolor": GRID,
        "tickfont": {"color": MUTED},
    }
    figure = go.Figure()
    # Ink and paper are set together, so that a dark page shows a light card, never dark on dark.
    figure.update_layout(
        template="none",
        font={"family": _SANS, "size": 12, "color": INK},
        paper_bgcolor=PAPER,
        plot_bgcolor=PAPER,
        xaxis=axis,
        yaxis=axis,
        hoverlabel={
            "bgcolor": PAPER,
            "bordercolor": MUTED,
            "align": "left",
            "font": {"family": MONO, "color": INK},
        },
    )
    return figure


def finish(figure: go.Figure, heading: str, facts: list[str], plot_pixels: int) -> None:
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
            "font": {"size": 16, "color": INK},
            "subtitle": {
                "text": "<br>".join(map(text, lines)),
                "font": {"size": 12, "color": MUTED},
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


def interventions(trace: Trace) -> list[str]:
    """A fact for the subtitle where the run was edited."""
    count = len(trace.interventions)
    return [f"{count} intervention{'s' if count > 1 else ''}"] if count else []
