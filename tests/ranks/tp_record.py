"""Recording: every tensor of every visit of a model, on a prompt and on the step after it.

Owns the calls and what is kept; how ranks' records are compared is `tp_worker.py`'s.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lensview.modules import index, only_holds
from lensview.parallel.weightless import CACHES
from lensview.taps.hooks import UNCHANGED, Point, taps
from lensview.taps.ops import OpWish
from lensview.values import leaves, main_in

IDS = torch.tensor([[5, 17, 3, 9, 44], [8, 8, 11, 90, 12], [3, 2, 61, 7, 30], [9, 9, 1, 4, 77]])
MASK = torch.tensor([[1] * 5, [1] * 4 + [0], [1] * 5, [1] * 5])
OPS = bool(os.environ.get("LENSVIEW_EXAM_OPS"))
"""Whether values between ops are compared too."""

Seen = dict[tuple[str, str, int, tuple[str | int, ...]], tuple[Tensor, Tensor]]
"""By path, side, call and leaf: a copy of what this rank holds, and the value as it passed."""


@dataclass
class Forward:
    """One forward: every tensor leaf of every visit, each module's calls, and its main output."""

    seen: Seen
    calls: dict[str, int]
    output: Tensor


def record(model: nn.Module, call: dict[str, Any]) -> tuple[Any, Forward]:
    """Run one forward."""
    seen: Seen = {}
    counts: dict[str, int] = {}
    points, known = [], set()
    for path, module in index(model).items():
        if id(module) in known or only_holds(module):
            continue
        known.add(id(module))
        point = Point(module)
        for side in ("input", "output"):

            def visit(number: int, value: Any, path: str = path, side: str = side) -> Any:
                counts[path] = max(counts.get(path, 0), number + 1)
                for leaf, tensor in leaves(value):
                    if isinstance(tensor, Tensor):
                        seen[path, side, number, leaf] = kept(tensor)
                return UNCHANGED

            point.records[side].append(visit)
        if OPS:
            for side in ("input", "output"):
                point.op_point().records[side].append(  # type: ignore[index]
                    op_wish(seen, path, side)
                )
        points.append(point)
    with taps(model, points):
        output = model(**call)
    _, main = main_in(output, ())
    assert main is not None
    return output, Forward(seen, counts, main)


def kept(tensor: Any) -> tuple[Tensor, Tensor]:
    """A DTensor is not copied itself: a copy of one whose sum is due takes its mask away."""
    local = tensor.to_local() if hasattr(tensor, "placements") else tensor
    copy = local.detach().clone()
    return copy, tensor if local is not tensor else copy


def op_wish(seen: Seen, path: str, side: str) -> OpWish:
    """Every op of a module, kept under ``path/op.k``."""

    def visitor(name: str, k: int) -> Any:
        def visit(call: int, value: Any) -> Any:
            for leaf, tensor in leaves(value):
                if isinstance(tensor, Tensor):
                    seen[f"{path}/{name}.{k}", side, call, leaf] = kept(tensor)
            return UNCHANGED

        return visit

    return OpWish(lambda name, k: True, visitor)


def calls(model: nn.Module) -> tuple[dict[str, Any], Any]:
    """The call of the prompt, and a function that makes the next step's from its output."""
    takes = set(inspect.signature(type(model).forward).parameters)
    first: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK}
    if "use_cache" in takes:
        first["use_cache"] = True
    if "attention_mask" not in takes:
        del first["attention_mask"]
    if "decoder_input_ids" in takes:
        first["decoder_input_ids"] = IDS[:, :3]

    def following(output: Any) -> dict[str, Any] | None:
        kept = next((output[n] for n in CACHES if n in output), None)
        name = next((n for n in CACHES if n in takes), None)
        if kept is None or name is None or "decoder_input_ids" in first:
            return None
        step = {**first, name: kept, "input_ids": IDS[:, :1]}
        if "attention_mask" in step:
            step["attention_mask"] = torch.cat([MASK, torch.ones_like(MASK[:, :1])], 1)
        return step

    return first, following


def forwards(model: nn.Module) -> list[Forward]:
    """The prompt and, where the model has a cache, the step after it."""
    first, following = calls(model)
    with torch.no_grad():
        output, prompt = record(model, first)
        step = following(output)
        return [prompt] if step is None else [prompt, record(model, step)[1]]
