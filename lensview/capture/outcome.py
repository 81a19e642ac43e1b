"""Outcome: what is said of a run besides its records.

Owns the logits of the last real token and the description of the model and its versions.
"""

from __future__ import annotations

import math
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
from ..wrappers.fragments import fragment


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


def last_logits(
    module: nn.Module, output: Any, tokens: Tokens | None, decoder_mask: Any = None
) -> Tensor | None:
    """(B, V): the logits at each row's last real token, copied out of the output.

    The tokens are the ones that the logits are of: a decoder's, where the model has one, by
    `decoder_mask` where the call gave one.
    """
    logits = (
        output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    )
    if not isinstance(logits, Tensor) or logits.dim() != 3 or tokens is None:
        return None
    decoder = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    mask = decoder_mask if decoder else tokens.mask
    rows = torch.arange(len(logits))
    last = torch.full_like(rows, logits.shape[1] - 1)
    if isinstance(mask, Tensor) and logits.shape[:2] == mask.shape:
        positions = torch.arange(logits.shape[1]).expand_as(mask)
        last = positions.masked_fill(mask.cpu() == 0, -1).max(1).values.clamp(min=0)
    with torch.inference_mode(False), torch.no_grad():
        return logits.detach()[rows.to(logits.device), last.to(logits.device)]


def _generates(module: nn.Module) -> bool:
    """Whether its logits are a next token's: by transformers' word, where it has one."""
    can: Any = getattr(module, "can_generate", None)
    return bool(can()) if callable(can) else True


def described(module: nn.Module, started: float) -> dict[str, Any]:
    """The model, its state and the versions at work, as JSON; `started` in seconds of the epoch.

    ``seed`` is what torch's generator was last seeded with; draws since then are not told.
    """
    first = next(module.parameters(), None)
    transformers = sys.modules.get("transformers")
    return {
        "model": type(module).__name__,
        "name": str(getattr(getattr(module, "config", None), "_name_or_path", "") or ""),
        "dtype": "" if first is None else str(first.dtype).removeprefix("torch."),
        "device": "" if first is None else str(first.device),
        "training": module.training,
        "generates": _generates(module),
        "config": _config(module),
        "seed": torch.initial_seed(),
        **_ranked(module),
        "started": started,
        "seconds": time.time() - started,
        "versions": {
            "lensview": VERSION,
            "torch": str(torch.__version__),
            **({"transformers": transformers.__version__} if transformers else {}),
        },
    }


def _config(module: nn.Module) -> Any:
    """The model's configuration as transformers writes it; None where it has none."""
    told: Any = getattr(getattr(module, "config", None), "to_dict", None)
    return _json(told()) if callable(told) else None


def _json(value: Any) -> Any:
    """`value` as strict JSON: what JSON does not have is written as text."""
    if isinstance(value, Mapping):
        return {str(k): _json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json(v) for v in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return value if isinstance(value, float) and math.isfinite(value) else str(value)


def _ranked(module: nn.Module) -> dict[str, Any]:
    """Which rank of how many this process is, and of what model the module is a fragment; nothing
    of either where there is nothing to say."""
    said: dict[str, Any] = {}
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        said["rank"] = torch.distributed.get_rank()
        said["world_size"] = torch.distributed.get_world_size()
    if part := fragment(module):
        said["fragment"] = part
    return said
