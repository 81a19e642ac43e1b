"""Sweep: an edit at every side of every module of a pair, one kind of edit after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import lensview as lv
from tests.ranks.tp_capture_pair import IDS, Found, Pair, linear

RECORDED = ["**", "**:input"]


def flipped(tensor: Tensor) -> Tensor:
    return tensor.flip(-1)


def kinds(site: str, shape: tuple[int, ...]) -> list[lv.Intervention]:
    """Every kind of edit of a floating value at `site`, whose whole has `shape`."""
    return [
        lv.scale(site, 1.5),
        lv.call(site, flipped),
        lv.add(site, linear(shape[-1])),
        lv.put(site, 0.25, (..., [0, shape[-1] - 1])),
        lv.noise(site, 0.5, seed=3),
        lv.project_out(site, linear(shape[-1])),
        lv.clamp(site, -0.1, 0.2),
        lv.mean(site, linear(3 * shape[-1]).reshape(3, -1)),
    ]


def sides(two: Pair, ids: Tensor = IDS) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The floating values of one forward of the whole model, each by its site without a call."""
    seen = lv.trace(two.whole, ids, RECORDED)
    told: set[str] = set()
    for text in seen.sites:
        site = str(lv.Site.parse(text).at_call(None))
        value = seen[text]
        if site not in told and value.is_floating_point() and value.ndim:
            told.add(site)
            yield site, tuple(value.shape)


def sweep(two: Pair, every: bool = False, ids: Tensor = IDS, **options: Any) -> Found:
    """Edit at each side, by one kind in turn or by every kind, and compare what comes out."""
    found = Found()
    found.runs("no edit", two, lambda m: lv.trace(m, ids, [*RECORDED, "**/*"]), again=True)
    last = [n for n, _ in two.whole.named_modules() if n.endswith("norm")][-1]
    for turn, (site, shape) in enumerate(sides(two, ids)):
        possible = kinds(site, shape)
        for edit in possible if every else [possible[turn % len(possible)]]:
            found.runs(str(edit), two, lambda m, edit=edit: lv.trace(m, ids, last, edit))
    return found
