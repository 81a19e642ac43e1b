"""Unwrap: the module under the wrappers that do not change what it computes.

Owns the list of what is transparent: DataParallel, DistributedDataParallel and torch.compile. What
is not transparent is `findings.py`'s to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn


def unwrap(model: Any) -> nn.Module:
    """The single module under any number of DataParallel, DDP and compiled wrappers.

    The wrapper itself is untouched and keeps working.

    Raises:
        TypeError: `model` is not an ``nn.Module``.
    """
    while True:
        if not isinstance(model, nn.Module):
            kind = type(model).__name__
            raise TypeError(f"lensview looks inside an nn.Module; this is a {kind}: {model!r:.80}")
        inner = model._modules.get(_inner_name(model) or "")
        if inner is None:
            return model
        model = inner


def _inner_name(model: nn.Module) -> str | None:
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return "module"
    # By name: importing the class would load the whole compiler.
    if type(model).__name__ == "OptimizedModule" and "_orig_mod" in model._modules:
        return "_orig_mod"
    return None


@contextmanager
def eagerly(model: nn.Module) -> Iterator[None]:
    """Run compiled parts of `model` by their Python for the length of the block.

    Hooks on a compiled module run by luck: those added after its first call may never fire.
    """
    compiled = any(
        m._compiled_call_impl is not None or _inner_name(m) == "_orig_mod" for m in model.modules()
    )
    stance = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with cast(Any, stance):
        yield
