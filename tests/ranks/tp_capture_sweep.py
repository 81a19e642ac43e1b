"""Sweep: an edit at every side of every module of a pair, one kind of edit after the other, on a
prompt and while decoding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

import lensview as lv
from tests.ranks.tp_capture_pair import IDS, Found, Pair, equal, linear, traced

RECORDED = ["**", "**:input"]
EDITED = 1e-4
"""Tolerance after an edit, which a norm may blow up."""
AT_ONCE = 6
"""How many edits of different sites one generation has."""


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


def sides(two: Pair, sites: list[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The floating values of one forward of the whole model, each by its site without a call."""
    seen = lv.trace(two.whole, IDS, sites)
    told: set[str] = set()
    for text in seen.sites:
        site = str(lv.Site.parse(text).at_call(None))
        value = seen[text]
        if site not in told and value.is_floating_point() and value.ndim:
            told.add(site)
            yield site, tuple(value.shape)


def block(two: Pair) -> list[str]:
    """All sides of the last block, and those of the embedding and the head."""
    path = [n for n, _ in two.whole.named_modules() if n.split(".")[-1].isdecimal()]
    last = [p for p in path if p.count(".") == min(q.count(".") for q in path)][-1]
    ends = [n for n in ("model.embed_tokens", "lm_head") if n in dict(two.whole.named_modules())]
    inside = [last, f"{last}.**", *ends]
    return [*inside, *(f"{site}:input" for site in inside)]


def sweep(two: Pair, every: bool = False, part: bool = False) -> Found:
    """Edit at each side, by one kind in turn or by every kind, and compare what comes out.

    Args:
        part: in the last block alone, and without a look between ops.
    """
    found = Found()
    sites = block(two) if part else RECORDED
    looked = sites if part else [*sites, "**/*"]
    found.runs("no edit", two, lambda m: lv.trace(m, IDS, looked), again=True)
    last = [n for n, _ in two.whole.named_modules() if n.endswith("norm")][-1]
    chosen = []
    for turn, (site, shape) in enumerate(sides(two, sites)):
        possible = kinds(site, shape)
        for edit in possible if every else [possible[turn % len(possible)]]:
            found.runs(str(edit), two, traced(IDS, last, edit), EDITED)
        refused = any(str(edit) in found.refused for edit in possible)
        if shape[:2] == IDS.shape and not site.startswith("lm_head") and not refused:
            chosen.append(possible[turn % 3])
    if callable(getattr(two.whole, "generate", None)):
        for start in range(0, len(chosen), AT_ONCE * (3 if part else 1)):
            decode(two, found, chosen[start : start + AT_ONCE], last)
    return found


def decode(two: Pair, found: Found, edits: list[lv.Intervention], last: str) -> None:
    """Some edits while decoding: the same tokens, values and counts."""

    def run(model: object) -> lv.Generation:
        return lv.generate(model, IDS, [last], edits, max_new_tokens=3)  # type: ignore[arg-type]

    one, other = two.both(run)
    if not torch.equal(one.ids, other.ids):
        found.wrong.append(f"{edits}: {one.ids.tolist()}, and {other.ids.tolist()}")
    for number, (step, true) in enumerate(zip(one, other, strict=True)):
        found.traces(f"step {number} with {edits}", step, true, EDITED)
        found.ends(f"step {number} with {edits}", step, true, EDITED)
    assert one[0].logits is not None and equal(one[0].logits, other[0].logits, EDITED)
