"""Snapshot: an explorer as plain HTML, for notebooks that are read without a kernel.

Owns two sizes of one page: the fallback that every shown explorer carries (under 20 kB), and the
snapshot that `Explorer.snapshot` displays (under 100 kB). No script, no network, no style sheet:
colours stand in the elements, text colour and background together, since hosts set either. All
text is escaped; names and tokens come from models and users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ..errors import LensError
from ..tensors.tiles import Tile
from .picture import css_colour, data_url, limit_of
from .protocol import InterventionRow, NextToken, State, TileParams
from .replies import clip, state_of, tile_reply
from .runs import Runs

_BOX = (
    "background:#ffffff;color:#1b1f24;border:1px solid #c8ccd1;border-radius:6px;padding:10px 14px;"
    "font:13px/1.5 system-ui,sans-serif;max-width:900px;overflow:auto"
)
_CELL = (
    "font-size:13px;padding:1px 12px 1px 0;text-align:left;border:none;"
    "background:#ffffff;color:#1b1f24"
)
_QUIET = "color:#57606a"
_MONO = "font-family:ui-monospace,monospace;white-space:pre"


@dataclass(frozen=True)
class _Size:
    """How much of everything goes in."""

    rows: int
    columns: int
    tokens: int
    next_tokens: int
    interventions: int
    text: int


_SMALL = _Size(rows=24, columns=160, tokens=40, next_tokens=5, interventions=5, text=80)
_LARGE = _Size(rows=96, columns=384, tokens=200, next_tokens=10, interventions=40, text=300)


def fallback_html(runs: Runs, selected: str) -> str:
    """What a notebook shows in the widget's place where no widget can be."""
    hint = (
        "This is a static picture of a lensview explorer. Run the cell again in a live notebook to "
        "explore."
    )
    return _page(runs, selected, _SMALL, hint)


def snapshot_html(runs: Runs, selected: str) -> str:
    """A picture of what the explorer shows now."""
    return _page(runs, selected, _LARGE, "")


def _page(runs: Runs, selected: str, size: _Size, hint: str) -> str:
    state = state_of(runs, selected)
    parts = [
        f'<div style="{_BOX}" data-lensview="static">',
        f"<div><b>{_text(runs.session.title, 120)}</b> "
        f'<span style="{_QUIET}">{_text(runs.session.summary, 200)}</span></div>',
        _prompt(state, size),
        _heatmap(runs, selected, size),
        _tops(state, size),
        _interventions(state.interventions, size),
        *(f'<div style="{_QUIET}">{_text(n, 300)}</div>' for n in state.notes[:3]),
        f'<div style="{_QUIET};font-size:11px">{escape(hint)}</div>' if hint else "",
        "</div>",
    ]
    return "".join(p for p in parts if p)


def _text(text: str, most: int) -> str:
    """Escaped, cut, and with spaces that every host keeps."""
    return escape(clip(text, most), quote=True).replace("  ", "&nbsp;&nbsp;").replace("\n", "<br>")


def _prompt(state: State, size: _Size) -> str:
    if state.run == 0:
        return f'<div style="{_QUIET}">Nothing has run yet.</div>'
    words = "".join(
        f'<span style="background:#eef1f4;color:#1b1f24;border-radius:3px;padding:0 3px;'
        f'{_MONO}">{_text(t, 24)}</span>&nbsp;'
        for t in state.tokens[: size.tokens]
    )
    more = len(state.tokens) - size.tokens
    rest = f'<span style="{_QUIET}">… {more:,} more</span>' if more > 0 else ""
    return f'<div style="margin:6px 0">{words}{rest}</div>'


# --- the heatmap -----------------------------------------------------------------------------


def _heatmap(runs: Runs, selected: str, size: _Size) -> str:
    shown = runs.shown()
    if not selected or shown.trace is None:
        return ""
    wanted = TileParams(selected, "latest", None, size.rows, size.columns, [])
    try:
        reply, _ = tile_reply(runs.session, shown, wanted)
        tile = runs.session.tile(
            shown.trace, selected, max_rows=size.rows, max_columns=size.columns
        )
    except (LensError, IndexError, TypeError) as error:
        # A site without a value is a fact to show, not a reason to show nothing.
        return f'<div style="{_QUIET}">{_text(f"{selected}: {error}", size.text)}</div>'
    labels = [_text(t, 20) for t in reply.row_labels] if tile.row_step == 1 else []
    if not tile.rows or not tile.columns:
        return f'<div><b style="{_MONO}">{_text(selected, size.text)}</b> is empty</div>'
    line = max(4, min(16, 480 // tile.rows))
    title = f'<div><b style="{_MONO}">{_text(selected, size.text)}</b></div>'
    quiet = f'<div style="{_QUIET}">{_text(reply.stats, 300)}</div>'
    note = f'<div style="{_QUIET}">{_text(reply.note, 300)}</div>' if reply.note else ""
    return (
        f'<div style="margin:8px 0">{title}<div style="display:flex;margin:4px 0">'
        f"{_label_column(labels, line)}{_image(tile, line, selected)}</div>"
        f"{_legend(tile)}{quiet}{note}</div>"
    )


def _label_column(labels: Sequence[str], line: int) -> str:
    readable = 10
    if not labels or line < readable:
        return ""
    rows = "".join(
        f'<div style="height:{line}px;line-height:{line}px;overflow:hidden">{t}</div>'
        for t in labels
    )
    return f'<div style="{_MONO};font-size:11px;padding-right:6px;text-align:right">{rows}</div>'


def _image(tile: Tile, line: int, site: str) -> str:
    width = max(80, min(640, tile.columns * 4))
    return (
        f'<img src="{data_url(tile)}" width="{width}" height="{tile.rows * line}" '
        f'alt="heatmap of {_text(site, 80)}" '
        'style="image-rendering:pixelated;border:1px solid #c8ccd1;max-width:none">'
    )


def _legend(tile: Tile) -> str:
    limit = limit_of(tile)
    if tile.low is None:
        return f'<div style="{_QUIET}">no finite value</div>'
    swatches = "".join(
        f'<span style="background:{css_colour(share)};display:inline-block;width:14px;'
        'height:10px"></span>'
        for share in (-1.0, -0.6, -0.25, 0.0, 0.25, 0.6, 1.0)
    )
    return f'<div style="{_QUIET}">{-limit:.4g}&nbsp;{swatches}&nbsp;{limit:.4g}</div>'


# --- the tables ------------------------------------------------------------------------------


def _tops(state: State, size: _Size) -> str:
    columns = [("next token", state.baseline)]
    if state.edited:
        columns = [("next token, baseline", state.baseline), ("edited", state.edited)]
    shown = [(name, tops[: size.next_tokens]) for name, tops in columns]
    rows = max((len(tops) for _, tops in shown), default=0)
    if rows == 0:
        return ""
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name, _ in shown)
    body = "".join(
        f"<tr>{''.join(_top_cell(tops, i) for _, tops in shown)}</tr>" for i in range(rows)
    )
    return f'<table style="border-collapse:collapse;margin:6px 0"><tr>{head}</tr>{body}</table>'


def _top_cell(tops: Sequence[NextToken], i: int) -> str:
    if i >= len(tops):
        return f'<td style="{_CELL}"></td>'
    token = tops[i]
    return (
        f'<td style="{_CELL}"><span style="{_MONO}">{_text(token.text, 40)}</span>&nbsp; '
        f"{token.probability:.1%}</td>"
    )


def _interventions(rows: Sequence[InterventionRow], size: _Size) -> str:
    if not rows:
        return ""
    names = ("on", "operation", "site", "index", "value", "")
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in names)
    body = "".join(_row(row, size.text) for row in rows[: size.interventions])
    more = len(rows) - size.interventions
    rest = f'<div style="{_QUIET}">… {more} more</div>' if more > 0 else ""
    return f'<table style="border-collapse:collapse">{"<tr>" + head + "</tr>"}{body}</table>{rest}'


def _row(row: InterventionRow, most: int) -> str:
    said = row.error or ("" if row.changed is None else f"changed {row.changed:,} elements")
    cells = ("✓" if row.enabled else "–", row.operation, row.site, row.index, row.value, said)
    filled = "".join(f'<td style="{_CELL}">{_text(c, most)}</td>' for c in cells)
    return f"<tr>{filled}</tr>"
