"""Fused: PyTorch's modules that take another path while a torch function mode is on.

Owns the list of them. `nn.MultiheadAttention` and the transformer encoder ask whether anybody
overrides torch functions, and if so leave their fused kernels: other bits, and for padded rows
other numbers. So a mode is off while one of them runs, and their own ops are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

_FUSED: tuple[type[nn.Module], ...] = (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
)
_FORWARDS = tuple(kind.forward for kind in _FUSED)


def asks_for_modes(module: nn.Module) -> bool:
    """Whether a module's forward asks if a torch function mode is on."""
    return isinstance(module, _FUSED) and type(module).forward in _FORWARDS


def outermost(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost of such modules below `module`, each once."""
    waiting, known = list(module.children()), set()
    while waiting:
        child = waiting.pop()
        if id(child) in known:
            continue
        known.add(id(child))
        if asks_for_modes(child):
            yield child
        else:
            waiting.extend(child.children())


def why_not_between(module: nn.Module) -> str:
    """Why the ops of a module's own forward cannot be looked at without changing what it computes;
    "" where they can."""
    fused = asks_for_modes(module) and not module.training
    if not fused or torch.is_grad_enabled() or not torch.backends.mha.get_fastpath_enabled():
        return ""
    return (
        f"a {type(module).__name__} takes PyTorch's fused path only while nobody looks between its "
        "ops, so looking would change what it computes. Call torch.backends.mha."
        "set_fastpath_enabled(False) first: then it computes the same with and without."
    )
