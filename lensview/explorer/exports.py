"""Exports: what leaves the page for a file or a cell.

Owns where files go and that none is overwritten unasked. What is in them is the trace's, the
figure's and the page's own business.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..traces.trace import Trace
from .protocol import SavedReply

SUFFIX = {"trace": ".safetensors", "baseline": ".safetensors", "html": ".html"}
HTML = "lensview.explorer.html"
"""The room that writes one self-contained page; loaded when it is asked for."""


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


def saved(path: str, what: str, replace: bool, trace: Trace, explorer: Any) -> SavedReply:
    """Write a trace, or the whole explorer as one page.

    Raises:
        InputError: see `target`.
        OSError: the file cannot be written.
    """
    file = target(path, what)
    if file.exists() and not replace:
        return SavedReply(str(file), file.stat().st_size, True)
    if what == "html":
        importlib.import_module(HTML).to_html(explorer, file)
    else:
        trace.save(file)
    return SavedReply(str(file.absolute()), file.stat().st_size, False)


def show_figure(trace: Trace, baseline: Trace | None, site: str) -> str:
    """Display a record as a plotly figure below the cell of the explorer; what to do without.

    Raises:
        InputError: no site is selected.
        NotRecordedError: the run does not hold it.
    """
    if not site:
        raise InputError("Select a site first: the figure is of the selected one.")
    from IPython.core.getipython import get_ipython

    from ..figures import heatmap

    figure = heatmap(trace, site, baseline=baseline)
    call = f"lensview.figures.heatmap(explorer.trace, {site!r})"
    if get_ipython() is None:
        return f"There is no notebook to display in; in Python: {call}"
    from IPython.display import display

    display(figure)  # type: ignore[no-untyped-call]
    return f"The figure is below, in the cell's output. In a cell of its own: {call}"
