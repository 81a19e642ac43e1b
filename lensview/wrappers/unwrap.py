"""Unwrap: the module under the wrappers that do not change what it computes.

Owns the list of what is transparent (DataParallel, DistributedDataParallel and torch.compile), and
what is said of a model that is no module. What is not transparent is `refusal.py`'s to refuse.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import nn

from ..errors import CaptureUnsupportedError
from ..modules import original
from .kinds import Kinds, refused

TRANSPARENT = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrap(model: Any) -> nn.Module:
    """The single module under any number of DataParallel, DDP and compiled wrappers.

    The wrapper itself is untouched and keeps working.

    Raises:
        TypeError: `model` is not an ``nn.Module``; the text says what to pass instead.
        CaptureUnsupportedError: it is a program that was exported, or runs no Python.
    """
    while True:
        if not isinstance(model, nn.Module):
            raise no_module(model)
        inner = unwrapped(model)
        if inner is model:
            return model
        model = inner


def unwrapped(model: nn.Module) -> nn.Module:
    """What the outermost wrapper holds; `model` itself where it has none."""
    inner = original(model)
    return cast(nn.Module, inner.module) if isinstance(inner, TRANSPARENT) else inner


@contextmanager
def eagerly(
    model: nn.Module, between_ops: bool = False, parts: bool | None = None
) -> Iterator[None]:
    """Run compiled parts of `model` by their Python for the length of the block.

    Hooks on a compiled module run by luck: those added after its first call may never fire. With
    `between_ops` compiled functions run by their Python too: they hide their ops. `parts` tells
    whether the model has such parts (`has_compiled`), where the caller knows.
    """
    # A process that has compiled nothing has not loaded the compiler either.
    functions = between_ops and "torch._dynamo" in sys.modules
    compiled = functions or (has_compiled(model) if parts is None else parts)
    stance = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with cast(Any, stance):
        yield


def has_compiled(model: nn.Module) -> bool:
    """Whether a call of `model` would go through the compiler, in it or in any part."""
    return any(is_compiled(module) for module in model.modules())


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of this very module would go through the compiler."""
    return module._compiled_call_impl is not None or original(module) is not module


def no_module(model: Any) -> Exception:
    """The error for a model that is no ``nn.Module``, with what to pass instead."""
    cls = type(model)
    if isinstance(model, torch.jit.ScriptFunction):
        return _refusal("ScriptModule")
    if cls.__name__ == "ExportedProgram" and cls.__module__.startswith("torch.export"):
        return _refusal("exported program")
    if Kinds().of(cls) == "pipeline stage":
        hint = "Pass the stage's own module (stage.submod); it is labelled a fragment."
    elif isinstance(model, type):
        hint = f"This is a class; make an instance of it: {model.__name__}(…)."
    elif isinstance(model, str):
        hint = "Load the model first, e.g. with AutoModelForCausalLM.from_pretrained(…)."
    elif isinstance(model, Mapping):
        hint = "A state dict has weights but no forward: load it into its model."
    elif isinstance(owner := getattr(model, "__self__", None), nn.Module):
        hint = f"This is a method; pass its module, the {type(owner).__name__}."
    elif isinstance(getattr(model, "model", None), nn.Module):
        hint = "It holds one: pass its .model."
    elif isinstance(model, types.FunctionType) or callable(model):
        hint = "What a plain callable does inside has no sites; pass the module that it calls."
    else:
        hint = "Pass the model itself."
    return TypeError(
        f"lensview looks inside an nn.Module; this is a {cls.__name__}: {model!r:.80}. {hint}"
    )


def _refusal(kind: str) -> CaptureUnsupportedError:
    finding = refused(kind, "")
    error = CaptureUnsupportedError(f"This model cannot be captured; nothing was run.\n  {finding}")
    error.findings = (finding,)
    return error
