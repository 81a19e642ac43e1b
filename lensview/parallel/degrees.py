"""Degrees: over how many ranks a model can be split.

Owns what a config tells about it before weights are loaded or a forward runs: transformers cuts
projections by features, and a forward that then looks for whole heads dies in a reshape, or an
expert-parallel load in the middle. Widths that need not divide (mlp, vocabulary) are not its
matter: transformers gives the last ranks less.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..errors import DegreeError
from .mesh import dtensor_type
from .placements import local_size

_HEADED = frozenset("q_proj k_proj v_proj q_b_proj kv_b_proj qkv_proj query_key_value".split())
"""Projections whose split output a forward cuts into heads."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def check_degree(config: Any, ranks: int) -> None:
    """Return if a model of this config can be split over so many ranks.

    Raises:
        DegreeError: it cannot. It names what does not divide, and the degrees that work.
    """
    wrong = list(_wrong(config, ranks))
    if not wrong:
        return
    most = max((heads for part in _parts(config) for heads, _ in _heads(part)), default=ranks)
    fit = [n for n in range(1, max(most, ranks) + 1) if not list(_wrong(config, n))]
    raise DegreeError(
        f"This {getattr(config, 'model_type', '') or 'model'} cannot be split over {ranks} ranks: "
        f"{'; '.join(dict.fromkeys(wrong))}. Degrees that work: {', '.join(map(str, fit))}."
    )


def unplanned(model: nn.Module) -> str | None:
    """Why a model that was to be split over ranks is a copy on each; None where it is not so."""
    asked = getattr(getattr(model, "config", None), "distributed_config", None)
    size = max(getattr(model, "_tp_size", None) or 1, getattr(asked, "tp_size", None) or 1)
    if size <= 1:
        return None
    split = dtensor_type()
    if split is not None and any(isinstance(p, split) for p in model.parameters()):
        return None
    return (
        f"{type(model).__name__} was loaded with tp_size={size}, but none of its parameters is "
        "split: it has no tensor-parallel plan, so each rank holds a copy of all of it. Give it a "
        "plan (DistributedConfig(tp_plan=...)), or load it without tensor parallelism."
    )


def _wrong(config: Any, ranks: int) -> Iterator[str]:
    """What of the config cannot be split over so many ranks."""
    for part in _parts(config):
        counts = list(_heads(part))
        for heads, kv in counts:
            width = _head_dim(part, heads)
            held = [
                (local_size(heads * width, ranks, rank), local_size(kv * width, ranks, rank))
                for rank in range(ranks)
            ]
            if any(q % width or not q for q, _ in held):
                yield f"{heads} attention heads"
            elif any(k % width or k * heads != q * kv for q, k in held):
                yield f"{kv} key-value heads"
    asked = getattr(config, "distributed_config", None)
    if (getattr(asked, "ep_size", None) or 1) > 1:
        experts = {getattr(part, name, None) for part in _parts(config) for name in _EXPERTS}
        yield from (f"{n} experts" for n in experts if isinstance(n, int) and n and n % ranks)


def _parts(config: Any) -> Iterator[Any]:
    """The config and those of its parts (text, vision) that have plans of their own."""
    yield config
    for name in getattr(config, "sub_configs", None) or ():
        if (part := getattr(config, name, None)) is not None:
            yield from _parts(part)


def _heads(config: Any) -> Iterator[tuple[int, int]]:
    """The heads and key-value heads of a config whose plan leaves each rank with some of them; one
    pair per layer where layers differ."""
    plan = getattr(config, "base_model_tp_plan", None) or {}
    if not any(key.rpartition(".")[2] in _HEADED and plan[key] == "colwise" for key in plan):
        return
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return
    # Latent attention makes all heads' keys of one latent, whatever num_key_value_heads says.
    latent = any(key.endswith("kv_b_proj") for key in plan)
    kv = heads if latent else getattr(config, "num_key_value_heads", None) or heads
    many, few = (n if isinstance(n, (list, tuple)) else [n] for n in (heads, kv))
    length = max(len(many), len(few))
    yield from dict.fromkeys(zip(_stretch(many, length), _stretch(few, length), strict=True))


def _stretch(counts: Any, length: int) -> list[int]:
    return [*counts] * length if len(counts) == 1 else [*counts]


def _head_dim(config: Any, heads: int) -> int:
    for name in ("qk_head_dim", "head_dim"):
        if isinstance(width := getattr(config, name, None), int) and width:
            return width
    return max(1, (getattr(config, "hidden_size", None) or heads) // heads)
