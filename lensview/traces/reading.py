"""Reading: a trace from its file, and a mapping of tensors from a trace.

Owns `lensview.load` and what `lensview.extract` gives. The file itself is `storage.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from ..sites import Site
from .storage import read
from .trace import Trace


def load(
    path: str | PathLike[str],
    *,
    tokenizer: Any = None,
    device: str | torch.device = "cpu",
) -> Trace:
    """Read a trace that `Trace.save` wrote.

    A site is read when it is looked at, out of a memory map of the file: looking at one costs that
    one, and a trace may be larger than memory. A file that is replaced meanwhile (as `Trace.save`
    does) stays readable here; one that is written into in place is an error at the next site.

    Args:
        path: the file.
        tokenizer: spells tokens beyond the likeliest ones, whose texts the file holds; without it
            the others are written ``#id``.
        device: where tensors go when they are looked at.

    Raises:
        FileNotFoundError: there is no such file.
        TraceFileError: the file is truncated, is not a trace, or is of a newer format.
    """
    return Trace(read(path, tokenizer, device))


class Elsewhere(dict[str, Tensor]):
    """What `lv.extract` gives on a rank that keeps no records: nothing, and reading says why."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __missing__(self, text: str) -> Tensor:
        return self._trace[text]


def extracted(trace: Trace, asked: Sequence[str]) -> dict[str, Tensor]:
    """What `lv.extract` gives: asked texts as keys, what a glob expanded to by canonical texts.

    Raises:
        SiteError, NotRecordedError: a site was called several times, or not seen.
    """
    result: dict[str, Tensor] = {}
    if trace.meta.get("records") == "elsewhere":
        return Elsewhere(trace)
    for text in asked:
        if Site.parse(text).is_glob:
            result.update((site, trace[site]) for site in trace.asked(text))
        else:
            result[text] = trace[text]
    return result
