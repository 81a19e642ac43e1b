"""Unwrap: the module under the wrappers that do not change what it computes.

Owns the list of what is transparent: DataParallel, DistributedDataParallel and torch.compile. What
is not transparent is `findings.py`'s to refuse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn

from ..modules import original


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
        inner = original(model)
        if isinstance(inner, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = inner.module
        if inner is model:
            return model
        model = inner


@contextmanager
def eagerly(model: nn.Module, between_ops: bool = False) -> Iterator[None]:
    """Run compiled parts of `model` by their Python for the length of the block.

    Hooks on a compiled module run by luck: those added after its first call may never fire. With
    `between_ops` compiled functions run by their Python too: they hide their ops.
    """
    # A process that has compiled nothing has not loaded the compiler either.
    compiled = (between_ops and "torch._dynamo" in sys.modules) or any(
        m._compiled_call_impl is not None or original(m) is not m for m in model.modules()
    )
    stance = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with cast(Any, stance):
        yield
