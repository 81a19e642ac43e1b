"""Traffic: what passes between ranks, counted at torch's own entry points.

Owns the wrappers around the calls of torch.distributed that communicate, and the look at the
groups' own numbers of collectives, which miss none. lensview's counters are not looked at.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

GIVEN = {
    "all_reduce": 0,
    "reduce": 0,
    "broadcast": 0,
    "all_gather": 1,
    "all_gather_into_tensor": 1,
    "gather": 0,
    "scatter": 0,
    "reduce_scatter": 1,
    "reduce_scatter_tensor": 1,
    "all_to_all": 1,
    "all_to_all_single": 1,
    "send": 0,
    "isend": 0,
    "barrier": None,
}
"""Calls of torch.distributed, each with the position of what a rank gives (scatter: gets)."""
FUNCTIONAL = (
    "all_reduce broadcast all_gather_single reduce_scatter_single all_gather_tensor "
    "reduce_scatter_tensor all_to_all_single all_reduce_coalesced all_gather_single_coalesced "
    "reduce_scatter_single_coalesced"
).split()
"""The same in torch.distributed._functional_collectives, through which DTensors communicate."""


@dataclass
class Traffic:
    """What one rank did.

    Attributes:
        collectives: how many, by the process group itself.
        bytes: what this rank gave to those that were seen, or got from a scatter.
        seen: the names of the calls, in their order.
    """

    collectives: int = 0
    bytes: int = 0
    seen: list[str] = field(default_factory=list)

    def beyond(self, other: Traffic) -> Traffic:
        """What is here more than in `other`."""
        seen = list(self.seen)
        for name in other.seen:
            if name in seen:
                seen.remove(name)
        return Traffic(self.collectives - other.collectives, self.bytes - other.bytes, seen)


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count what passes between ranks in this block, in every thread and group.

    Raises:
        RuntimeError: the groups count other collectives than were seen: bytes are then not known.
    """
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    traffic = Traffic()
    inside = threading.local()
    rooms: list[tuple[Any, str, Any]] = [
        (room, name, at) for name, at in GIVEN.items() for room in (dist, dist.distributed_c10d)
    ]
    rooms += [(functional, name, 0) for name in FUNCTIONAL if hasattr(functional, name)]
    originals = {(id(room), name): getattr(room, name) for room, name, _ in rooms}
    before = _numbers()
    for room, name, at in rooms:
        original = originals[id(room), name]
        setattr(room, name, _watched(original, name, at, traffic, inside))
    try:
        yield traffic
    finally:
        for room, name, _ in rooms:
            setattr(room, name, originals[id(room), name])
        traffic.collectives = _numbers() - before
    if traffic.collectives != len(traffic.seen):
        raise RuntimeError(
            f"The groups made {traffic.collectives} collectives; these were seen: {traffic.seen}"
        )


def _numbers() -> int:
    """How many collectives the groups of this process made so far, as they number them."""
    import torch.distributed as dist

    groups: list[Any] = list(dist.distributed_c10d._world.pg_map)
    return sum(group._get_sequence_number_for_group() for group in groups)


def _watched(
    function: Callable[..., Any], name: str, at: int | None, traffic: Traffic, inside: Any
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if getattr(inside, "a_call", False):  # one that calls another is one
            return function(*args, **kwargs)
        inside.a_call = True
        try:
            result = function(*args, **kwargs)
        finally:
            inside.a_call = False
        traffic.seen.append(name)
        if at is not None:
            given = args[at] if len(args) > at else next(iter(kwargs.values()))
            traffic.bytes += _bytes(given)
        return result

    return call


def _bytes(given: Any) -> int:
    if isinstance(given, Tensor):
        return given.nbytes
    return sum(_bytes(one) for one in given)
