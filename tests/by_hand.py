"""A recorder written by hand, with PyTorch's own hooks and nothing of lensview.

Owns the reference that records are compared with: it clones at every module, binds calls by the
standard library, and looks for the first tensor by its own walk.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def by_hand(model: nn.Module, call: Callable[[], Any]) -> dict[str, Tensor]:
    """First tensors of every module's output and input during `call`, under ``no_grad``.

    Keys are the texts of sites: ``path``, ``path:input``, with ``@k`` where a module was called
    several times; a module under two names is there under both.
    """
    names: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    kept: dict[str, list[Tensor]] = {}

    def keep(module: nn.Module, side: str, value: Any) -> None:
        if (tensor := _first(value)) is not None:
            for name in names[module]:
                site = f"{name}{side}" or ":output"
                kept.setdefault(site, []).append(tensor.clone())

    def after(module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        keep(module, "", output)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        keep(module, ":input", _bound(module, args, kwargs))

    handles = [m.register_forward_hook(after, with_kwargs=True) for m in names]
    handles += [m.register_forward_pre_hook(before, with_kwargs=True) for m in names]
    try:
        with torch.no_grad():
            call()
    finally:
        for handle in handles:
            handle.remove()
    return {
        site if len(tensors) == 1 else f"{site}@{i}": tensor
        for site, tensors in kept.items()
        for i, tensor in enumerate(tensors)
    }


def _bound(module: nn.Module, args: Any, kwargs: Any) -> list[Any]:
    """The arguments in the order of the signature of `forward`."""
    try:
        return list(inspect.signature(module.forward).bind(*args, **kwargs).arguments.values())
    except (TypeError, ValueError):  # the call does not fit, or there is no signature
        return [*args, *kwargs.values()]


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    members: Any = ()
    if isinstance(value, Mapping):
        members = value.values()
    elif isinstance(value, (tuple, list)):
        members = value
    elif dataclasses.is_dataclass(value):
        members = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return next((t for t in map(_first, members) if t is not None), None)
