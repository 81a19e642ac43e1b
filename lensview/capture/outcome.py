"""Outcome: what is said of a run besides its records.

Owns the logits of the last real token and the description of the model and its versions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..plan import Plan
from ..traces.tokens import Tokens
from ..version import VERSION


def check_mode(plan: Plan) -> None:
    """Refuse a run with gradients where PyTorch keeps no graph.

    Raises:
        InputError: the caller's grad mode is off, or it is inference mode.
    """
    if plan.grad and not torch.is_grad_enabled():
        mode = "inference_mode" if torch.is_inference_mode_enabled() else "no_grad"
        raise InputError(
            f"grad=True reads gradients, but this call stands in torch.{mode}(), where PyTorch "
            "keeps no graph. Call it outside, or leave grad out."
        )


def last_logits(module: nn.Module, output: Any, tokens: Tokens | None) -> Tensor | None:
    """(B, V): the logits at each row's last real token, copied out of the output."""
    logits = (
        output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    )
    if not isinstance(logits, Tensor) or logits.dim() != 3 or tokens is None:
        return None
    decoder = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    rows = torch.arange(len(logits))
    last = torch.full_like(rows, logits.shape[1] - 1)
    if logits.shape[:2] == tokens.mask.shape and not decoder:
        positions = torch.arange(logits.shape[1]).expand_as(tokens.mask)
        last = positions.masked_fill(~tokens.mask, -1).max(1).values.clamp(min=0)
    with torch.inference_mode(False), torch.no_grad():
        return logits.detach()[rows.to(logits.device), last.to(logits.device)]


def described(module: nn.Module, started: float) -> dict[str, Any]:
    """The model, its state and the versions at work, as JSON; `started` in seconds of the epoch."""
    first = next(module.parameters(), None)
    transformers = sys.modules.get("transformers")
    return {
        "model": type(module).__name__,
        "name": str(getattr(getattr(module, "config", None), "_name_or_path", "") or ""),
        "dtype": "" if first is None else str(first.dtype).removeprefix("torch."),
        "device": "" if first is None else str(first.device),
        "training": module.training,
        "started": started,
        "seconds": time.time() - started,
        "versions": {
            "lensview": VERSION,
            "torch": str(torch.__version__),
            **({"transformers": transformers.__version__} if transformers else {}),
        },
    }
