"""Pages: a trace or an explorer as one HTML file that needs nothing else.

Owns what goes into the file (`html/` has its frame, script and style): the list of modules, one
reduced picture per recorded site, the tables, and the bound on its size. No network: a policy in
the page forbids it, and every script but the one whose hash it names. Data are JSON in a block
that no browser runs; the script sets all of it as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import InputError, LensError, LimitError
from ..modules import ModuleRow
from ..sites import Site, split_path
from ..traces.storage import replacing
from ..traces.trace import Trace
from ..version import VERSION
from .held import Held
from .picture import palette_hex
from .protocol import TileParams
from .replies import clip, state_of, strict, tile_reply
from .runs import Latest, Runs

MAX_BYTES = 8 << 20
"""Bytes of a file by default."""
_SIZES = (
    *((256, 1024), (192, 768), (128, 768), (128, 576), (96, 576), (64, 576), (64, 384)),
    *((64, 256), (48, 256), (48, 128), (32, 64), (16, 32), (8, 16)),
)
"""Rows and columns that a picture may have; the largest with which all fit is taken."""
_TILE_OVERHEAD = 900
_LABELS = 512
"""Tokens of the prompt that are listed."""


@dataclass
class Page:
    """What a page shows."""

    session: Any
    latest: Latest
    title: str
    summary: str
    rows: list[ModuleRow]
    state: Any
    selected: str = ""
    labels: dict[tuple[str, ...], int] = field(default_factory=dict)


def write(
    page: Page, path: str | PathLike[str], sites: str | Iterable[str] | None, max_bytes: int
) -> None:
    """Write the file; see `to_html`."""
    target = Path(path)
    text = _filled(page, sites, max_bytes)
    target.parent.mkdir(parents=True, exist_ok=True)
    replacing(target, lambda part: part.write_bytes(text.encode()))


def page_of_runs(runs: Runs, selected: str) -> Page:
    """What an explorer shows.

    Raises:
        InputError: it has not run anything yet.
    """
    if runs.latest.trace is None:
        raise InputError("This explorer shows no run yet: give it a prompt first.")
    session = runs.session
    state = state_of(runs, selected)
    return Page(
        session, runs.latest, session.title, session.summary, session.tree(), state, selected
    )


def page_of_trace(trace: Trace) -> Page:
    """What a trace holds."""
    held = Held(trace)
    return Page(held, held.latest, held.title, held.summary, [], held.state())


def _filled(page: Page, sites: str | Iterable[str] | None, max_bytes: int) -> str:
    trace = page.latest.trace
    assert trace is not None
    wanted = trace.chosen(sites)
    frame = _frame()
    entries = list(_entries(page, wanted))
    body = _body(page, entries)
    rest = max_bytes - len(frame("").encode()) - len(_json(body).encode()) - (4 << 10)
    tiles, about = _tiles(page, wanted, rest)
    body |= {"tiles": tiles, "labels": [list(labels) for labels in page.labels], "about": about}
    text = frame(_json(body))
    if len(text.encode()) > max_bytes:
        raise LimitError(
            f"The page would have {len(text.encode()):,} bytes with pictures of {len(wanted)} "
            f"sites, and max_bytes is {max_bytes:,}. Nothing was written. Choose fewer sites, or "
            "raise max_bytes."
        )
    return text


# --- the list ---------------------------------------------------------------------------------


def _entries(page: Page, wanted: list[str]) -> Iterator[dict[str, Any]]:
    """A line per module, followed by the sites at it; of a trace alone, a line per site."""
    trace = page.latest.trace
    assert trace is not None
    at: dict[str, list[str]] = {}
    for text in dict.fromkeys((*trace.sites, *trace.missed)):
        at.setdefault(Site.parse(text).path, []).append(text)
    number = {text: i for i, text in enumerate(wanted)}

    def entry(text: str, name: str, depth: int, kind: str) -> dict[str, Any]:
        here = text in trace
        return {
            "site": text,
            "name": name,
            "depth": depth,
            "kind": clip(kind, 200),
            "shape": " x ".join(map(str, trace.shape(text))) if here else "",
            "tile": number.get(text, -1),
            "missed": clip(trace.missed.get(text, ""), 400),
        }

    for row in page.rows:
        texts = at.pop(row.path, [])
        own = str(Site(row.path))
        yield entry(own, row.name or row.class_name, row.depth, row.class_name)
        for text in texts:
            if text != own:
                yield entry(text, _short(text), row.depth + 1, "")
    for texts in at.values():
        for text in texts:
            yield entry(text, text or page.title, 0, "")


def _short(text: str) -> str:
    """A site within its module: its last segment and what follows."""
    site = Site.parse(text)
    return f"{split_path(site.path)[-1] if site.path else ''}{text[len(site.path) :]}"


# --- the pictures -----------------------------------------------------------------------------


def _tiles(page: Page, wanted: list[str], room: int) -> tuple[list[Any], str]:
    """The pictures of the sites, at the largest size at which all of them fit; and what is said
    of them."""
    trace = page.latest.trace
    assert trace is not None
    kinds = ["latest"] if trace is page.latest.baseline else ["latest", "difference"]
    planes = [(1, 1, *trace.shape(site))[-2:] for site in wanted]

    def needed(rows: int, columns: int) -> int:
        cells = sum(min(rows, high) * min(columns, wide) for high, wide in planes)
        return len(kinds) * (cells * 16 // 3 + len(planes) * _TILE_OVERHEAD)

    fitting = (size for size in _SIZES if needed(*size) <= room)
    rows, columns = next(fitting, _SIZES[-1])
    tiles = []
    for site in wanted:
        made = (_tile(page, site, kind, rows, columns) for kind in kinds)
        tiles.append([tile for tile in made if tile])
    count = f"{len(wanted)} site{'' if len(wanted) == 1 else 's'}"
    about = (
        f"Written by lensview {VERSION}. Pictures of {count}, of batch row 0, with at most {rows} "
        f"x {columns} cells each; a cell that stands for several values is the one of largest "
        "magnitude. Values are shown in float32."
    )
    return tiles, about


def _tile(page: Page, site: str, which: Any, rows: int, columns: int) -> dict[str, Any] | None:
    wanted = TileParams(site, which, None, rows, columns, [])
    try:
        reply, data = tile_reply(page.session, page.latest, wanted)
    except (LensError, IndexError, TypeError, ValueError) as error:
        if which != "latest":
            return None
        # A value that cannot be drawn is a fact to show, not a reason to write nothing.
        blank = dict.fromkeys(("rows", "columns", "nan", "inf"), 0)
        told = {"stats": "", "note": clip(str(error), 400), "data": "", "labels": -1}
        return {**blank, **told, "low": None, "high": None}
    labels = tuple(clip(label, 60) for label in reply.row_labels)
    return {
        "rows": reply.rows,
        "columns": reply.columns,
        "window": reply.window,
        "row_step": reply.row_step,
        "column_step": reply.column_step,
        "low": reply.low,
        "high": reply.high,
        "nan": reply.nan,
        "inf": reply.inf,
        "stats": reply.stats,
        "note": clip(reply.note, 400),
        "labels": page.labels.setdefault(labels, len(page.labels)) if labels else -1,
        "data": base64.b64encode(data).decode("ascii"),
    }


# --- the rest ---------------------------------------------------------------------------------


def _body(page: Page, entries: list[dict[str, Any]]) -> dict[str, Any]:
    state, trace = page.state, page.latest.trace
    assert trace is not None
    chosen = [e["site"] for e in entries if e["tile"] >= 0]
    first = page.selected if page.selected in chosen else next(iter(chosen), "")
    more = len(state.tokens) - _LABELS
    return {
        "title": clip(page.title, 200),
        "summary": clip(page.summary, 400),
        "tokens": [clip(t, 80) for t in state.tokens[:_LABELS]],
        "more": f"… {more:,} more" if more > 0 else "",
        "entries": entries,
        "selected": next((i for i, e in enumerate(entries) if e["site"] == first), -1),
        "baseline": [vars(t) for t in state.baseline],
        "edited": [vars(t) for t in state.edited],
        "interventions": [
            {
                "on": row.enabled,
                "cells": [row.operation, row.site, row.index, row.value, _outcome(row)],
            }
            for row in state.interventions
        ],
        "checks": [[c.name, c.ok, c.reason] for c in trace.checks],
        "notes": list(state.notes),
        "palettes": [palette_hex(dark=False), palette_hex(dark=True)],
    }


def _outcome(row: Any) -> str:
    changed = "" if row.changed is None else f"changed {row.changed:,} elements"
    return str(row.error or changed)


def _json(body: Any) -> str:
    """Strict JSON that nothing in HTML can end or begin."""
    text = json.dumps(strict(body), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _part(name: str) -> str:
    return (Path(__file__).parent / "html" / name).read_text(encoding="utf-8").strip()


def _frame() -> Callable[[str], str]:
    """From the data to the page, with a policy that allows this script and this style alone."""
    script, style = _part("page.js"), _part("page.css")
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    )

    def filled(data: str) -> str:
        parts = {"policy": policy, "style": style, "script": script, "data": data}
        pieces = _part("page.html").split("@")
        return "".join(parts.get(piece, piece) for piece in pieces)

    return filled


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
