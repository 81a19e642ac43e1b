"""Plain call: a run's output beside that of the same model called without hooks.

Owns the second forward and the comparison, bit for bit, of every tensor in both outputs.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..tensors.differences import difference, identical
from ..traces.checks import Check
from ..values import Path, leaves
from ..wrappers.unwrap import eagerly
from .inputs import Call
from .randomness import Draws

NAME = "output"


class PlainCall:
    """The plain call that a run is to be compared with; made before the run, which may write to
    its inputs (a cache grows)."""

    def __init__(self, module: nn.Module, call: Call, draws: Draws, *, grad: bool) -> None:
        self._module = module
        self._draws = draws
        self._grad = grad
        self._why_not = _writes_to_itself(module)
        try:
            # Tensors that are no leaves of a graph cannot be copied, and are not written to.
            known: dict[int, Any] = {
                id(v): v for _, v in leaves((call.args, call.kwargs)) if isinstance(v, Tensor)
            }
            self._inputs = copy.deepcopy((call.args, call.kwargs), known)
        except Exception as error:
            self._why_not = f"its inputs cannot be copied for a second call ({error!r:.120})"

    def compare(self, output: Any) -> Check:
        """The check of a run that gave `output`."""
        if self._why_not:
            return Check(NAME, None, f"not compared with a plain call: {self._why_not}.")
        args, kwargs = self._inputs
        mode = nullcontext() if self._grad else torch.no_grad()
        with self._draws.again(), mode, eagerly(self._module):
            plain = self._module(*args, **kwargs)
        return _compared(output, plain)


def not_compared(edits: int, stopped: bool) -> Check:
    """The check of a run whose output was not compared."""
    if edits:
        why = (
            f"not compared with a plain call: {edits} intervention(s) are meant to change it. "
            "Check the run without them."
        )
    elif stopped:
        why = "the run was stopped before it had an output."
    else:
        why = "not compared; run with check=True to compare it with a plain call's."
    return Check(NAME, None, why)


def _writes_to_itself(module: nn.Module) -> str:
    """Why a second call would change the model, or ""."""
    keeping = [
        m
        for m in module.modules()
        if m.training and getattr(m, "track_running_stats", False) is True
    ]
    return "in train mode a second call changes its running statistics" if keeping else ""


def _compared(output: Any, plain: Any) -> Check:
    ours, theirs = _tensors(output), _tensors(plain)
    if ours.keys() != theirs.keys():
        return Check(NAME, False, "a plain call's output has other parts than this run's.")
    if not ours:
        return Check(NAME, None, "not compared with a plain call: the output holds no tensor.")
    apart = [path for path, tensor in ours.items() if not identical(tensor, theirs[path])]
    if not apart:
        count = sum(t.numel() for t in ours.values())
        return Check(NAME, True, f"equal to a plain call's, bit for bit ({count:,} elements).")
    path = apart[0]
    where = "".join(f"[{key}]" for key in path)
    if ours[path].shape != theirs[path].shape:
        return Check(NAME, False, f"a plain call's output{where} has another shape.")
    gap = difference(ours[path], theirs[path]).abs()
    finite = gap[gap.isfinite()]
    largest = float(finite.max()) if finite.numel() else float("inf")
    return Check(
        NAME,
        False,
        f"differs from a plain call's: output{where} in {int((gap != 0).sum()):,} of "
        f"{gap.numel():,} elements, by {largest:.3g} at most.",
    )


def _tensors(value: Any) -> dict[Path, Tensor]:
    return {
        path: leaf.detach()
        for path, leaf in leaves(value)
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested
    }
