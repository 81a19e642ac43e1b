"""Decoding: what the options of a generation say, before it.

Owns which decodings have steps at all, which ids end a sequence, whether tokens are drawn, and
whether rows are beams. The options are transformers' own; what they do is its business.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..errors import InputError

_SEVERAL_FORWARDS = (
    "assistant_model",
    "assistant_early_exit",
    "prompt_lookup_num_tokens",
    "use_mtp",
    "custom_generate",
    "penalty_alpha",
    "dola_layers",
    "prefill_chunk_size",
    "guidance_scale",
)
"""Options of ``generate`` under which a forward is not a step that gives each row one token."""


def check(module: nn.Module, options: dict[str, Any], max_new_tokens: int) -> None:
    """Refuse what has no steps, before any forward.

    Raises:
        InputError: the model has no ``generate``, no token is asked for, or an option under which
            a forward is not a step.
    """
    can = getattr(module, "can_generate", None)
    if not callable(getattr(module, "generate", None)) or (callable(can) and not can()):
        raise InputError(
            f"The {type(module).__name__} cannot generate: it has no generate() of transformers. "
            "Give the model with its language head, or use lv.trace."
        )
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int):
        raise InputError(f"max_new_tokens is an int of 1 or more, not {max_new_tokens!r}.")
    if max_new_tokens < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens}; at least 1 token is generated.")
    given = {**_configured(options.get("generation_config")), **options}
    found = [n for n in _SEVERAL_FORWARDS if given.get(n) not in (None, False, 1, 1.0)]
    if found:
        raise InputError(
            f"{', '.join(found)}: under this option the model's forwards are not steps that give "
            "each row one token, so step i would not be token i. Generate without it."
        )


def _configured(config: Any) -> dict[str, Any]:
    return {} if config is None else {n: getattr(config, n, None) for n in _SEVERAL_FORWARDS}


def eos_ids(module: nn.Module, options: dict[str, Any]) -> tuple[int, ...]:
    """The ids that end a sequence, by the order in which ``generate`` looks for them."""
    own = getattr(module, "generation_config", None)
    found = getattr(options.get("generation_config"), "eos_token_id", None)
    if found is None:
        found = getattr(own, "eos_token_id", None)
    found = options.get("eos_token_id", found)
    if found is None:
        return ()
    if isinstance(found, Tensor):
        found = found.tolist()
    return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)


def samples(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether tokens are drawn."""
    found = getattr(options.get("generation_config"), "do_sample", None)
    if found is None:
        found = getattr(getattr(module, "generation_config", None), "do_sample", None)
    return bool(options.get("do_sample", found))


def has_beams(module: nn.Module, options: dict[str, Any]) -> bool:
    """Whether rows of the forwards are beams."""
    found = getattr(options.get("generation_config"), "num_beams", None)
    if found is None:
        found = getattr(getattr(module, "generation_config", None), "num_beams", None)
    return (options.get("num_beams", found) or 1) > 1
