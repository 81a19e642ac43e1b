"""Sharing: `to_html`, for users. What is in the file is `pages.py`'s."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

from ..errors import InputError
from ..traces.trace import Trace
from .pages import MAX_BYTES, page_of_runs, page_of_trace, write
from .widget import Explorer


def to_html(
    shown: Trace | Explorer,
    path: str | PathLike[str],
    sites: str | Iterable[str] | None = None,
    *,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Write a trace, or what an explorer shows, as one HTML file to be looked at in any browser.

    The page has the module list with a search, a heatmap of each chosen site with value and token
    under the pointer, next tokens, interventions, checks and notes, in light and dark. It loads
    nothing and sends nothing. Pictures are of batch row 0 and, where needed, reduced: then each
    cell is the one of largest magnitude, which the page states. The tensors are not in it.

    Args:
        shown: a trace, or an explorer that has run.
        path: the file; it is complete or absent.
        sites: of which records there are pictures, by site or glob; None is all of them.
        max_bytes: of the whole file. Pictures get smaller until they fit.

    Raises:
        TypeError: `shown` is neither.
        InputError: the explorer has not run anything yet.
        SiteError, NotRecordedError: `sites` match no record.
        LimitError: not even the smallest pictures fit.
    """
    if isinstance(shown, Explorer):
        runs = shown._runs
        if runs is None:
            raise InputError("This explorer is closed: it shows nothing any more.")
        page = page_of_runs(runs, shown.selected)
    elif isinstance(shown, Trace):
        page = page_of_trace(shown)
    else:
        raise TypeError(f"to_html takes a Trace or an Explorer, not a {type(shown).__name__}.")
    write(page, path, sites, max_bytes)
