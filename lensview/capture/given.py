"""Given: the parts of a skipped module's value on a model that lies over several ranks.

Owns how the outputs of skipped modules lie, learnt by a plain forward before the first run that
skips them, and the cut of a given value to what the model goes on with on this rank. What is given
is `givers.py`'s.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InterventionError
from ..parallel.placements import Local, Packed, Placement, Shard
from ..resolve import Target
from ..sites import Site
from ..taps.hooks import UNCHANGED, Point, taps
from ..values import leaves, main_in, replace
from .inputs import Call
from .spread import Lies, Spread, in_pieces


def learn(spread: Spread, module: nn.Module, call: Call, targets: Iterable[Target]) -> None:
    """See how the outputs of modules that are to be skipped lie, by a plain forward before: once
    for each in a process."""
    known = spread.outputs
    unknown = [t for t in targets if t.site.path not in known]
    if not unknown:
        return
    points = [_listening(spread, t, known) for t in unknown]
    args, kwargs = copy.deepcopy((call.args, call.kwargs))
    devices = [spread.ranks.device] if spread.ranks.device.type != "cpu" else []
    with torch.random.fork_rng(devices), torch.no_grad(), taps(module, points):
        module(*args, **kwargs)


def _listening(spread: Spread, target: Target, known: dict[str, Lies]) -> Point:
    point = Point(target.module)

    def see(call: int, value: Any) -> Any:
        lies = known.setdefault(target.site.path, {})
        for path, leaf in leaves(value):
            if isinstance(leaf, Tensor):
                lies[path] = spread.placement(target.site, target.module, call, path, leaf)
        return UNCHANGED

    point.records["output"].append(see)
    return point


def parts(
    spread: Spread, target: Target, call: int, value: Any, arguments: Any, own: Collection[int]
) -> tuple[Any, bool]:
    """What this rank goes on with of a given value, which is the whole, and whether its main tensor
    is a part that no other rank has.

    Args:
        arguments: of the call, by name.
        own: the ids of tensors in `value` that are copies of this rank's part of the main input.

    Raises:
        InterventionError: nobody knows how the module's output or its input lies.
    """
    ranks, site = spread.ranks, target.site
    lies = spread.outputs.get(site.path, {})
    first = main_in(value, ())[0]
    for path, leaf in list(leaves(value)):
        if not isinstance(leaf, Tensor):
            continue
        placement, whole = lies.get(path), leaf
        if id(leaf) in own:
            held = _of_input(spread, target, call, arguments)
            if placement == held:
                continue
            whole = ranks.whole(leaf, _known(spread, site, held), grads="same")
        placement = _known(spread, site, placement)
        if isinstance(placement, (Shard, Packed)) and whole.shape[placement.dim] != placement.size:
            raise InterventionError(
                f"skip at {site}: the value {tuple(whole.shape)} has not the {placement.size} of "
                f"the whole layer along dim {placement.dim}."
            )
        value = replace(value, path, ranks.own(whole, placement, grads="same"))
    return value, in_pieces(lies.get(first))


def _of_input(spread: Spread, target: Target, call: int, arguments: Any) -> Placement:
    path, main = main_in(arguments, ())
    assert main is not None
    at = Site(target.site.path, side="input")
    return spread.placement(at, target.module, call, path, main)


def _known(spread: Spread, site: Site, placement: Placement | None) -> Placement:
    if placement is not None and not isinstance(placement, Local):
        return placement
    why = "" if placement is None else placement.reason
    raise InterventionError(
        f"skip at {site}: how its value lies over the {spread.ranks.size} ranks is not known. "
        f"{why} Skip a module around it."
    )
