"""Exports: what leaves the page for a file or a cell.

Owns where files go and that none is overwritten unasked. What is in them is the trace's, the
figure's and the page's own business.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..traces.trace import Trace
from .bodies import SavedReply
from .origins import keep
from .pages import MAX_BYTES, Page, write

SUFFIX = {"trace": ".safetensors", "baseline": ".safetensors", "html": ".html"}
FIGURE = "_lens_figure"
"""The name in the user's namespace under which the latest figure is left."""


def target(path: str, what: str) -> Path:
    """The file that a text means, relative to the kernel's folder, where the notebook lies.

    Raises:
        InputError: it names no file, or its folder does not exist.
    """
    text = path.strip()
    if not text or text.endswith(("/", "\\")):
        raise InputError("Name a file, for example run.safetensors.")
    if what not in SUFFIX:
        raise InputError(f"There is no export {what!r}; there are {', '.join(SUFFIX)}.")
    wanted = Path(text).expanduser()
    if wanted.suffix.lower() != SUFFIX[what]:
        wanted = wanted.with_name(wanted.name + SUFFIX[what])
    if wanted.is_dir():
        raise InputError(f"{wanted} is a folder; name a file in it.")
    if not wanted.absolute().parent.is_dir():
        raise InputError(f"There is no folder {wanted.absolute().parent}; make it first.")
    return wanted


def saved(
    path: str, what: str, replace: bool, trace: Trace, page: Callable[[], Page]
) -> SavedReply:
    """Write a trace, or the whole explorer as one page.

    Raises:
        InputError: see `target`.
        OSError: the file cannot be written.
    """
    file = target(path, what)
    if file.exists() and not replace:
        return SavedReply(str(file), file.stat().st_size, True)
    if what == "html":
        write(page(), file, None, MAX_BYTES)
    else:
        trace.save(file)
    return SavedReply(str(file.absolute()), file.stat().st_size, False)


def make_figure(trace: Trace, baseline: Trace | None, site: str) -> str:
    """Make a plotly figure of a record, and say how to see it.

    What is displayed outside of a cell has no place in a notebook, so the figure is left in the
    user's namespace under `FIGURE`.

    Raises:
        InputError: no site is selected.
        NotRecordedError: the run does not hold it.
    """
    if not site:
        raise InputError("Select a site first: the figure is of the selected one.")
    from ..figures import heatmap

    figure = heatmap(trace, site, baseline=baseline)
    keep(FIGURE, figure)
    return f"{FIGURE}  # {site}; or lensview.figures.heatmap(explorer.trace, {site!r})\n"
