"""Heads: where a value has attention heads, by transformers' names.

Owns which dim holds how many heads at a site. Elsewhere nobody knows, and an index by head is an
error (`regions.py`).
"""

from __future__ import annotations

from typing import Any

from ..sites import Site, split_path


def heads_at(config: Any, site: Site) -> int | None:
    """How many heads the last dim holds at a site: at projections of an attention."""
    names = split_path(site.path) if site.op is None else []
    text = _text(config)
    if not names or text is None:
        return None
    queries = getattr(text, "num_attention_heads", None)
    last = names[-1]
    if (last == "q_proj" and site.side == "output") or (last == "o_proj" and site.side == "input"):
        return queries
    if last in ("k_proj", "v_proj") and site.side == "output":
        return getattr(text, "num_key_value_heads", None) or queries
    return None


def maps_at(config: Any, site: Site) -> int | None:
    """How many heads dim 1 of attention weights (B, H, T, T) has at a site: at a further leaf of an
    attention's output."""
    names = split_path(site.path)[-2:] if site.op is None else []
    text = _text(config)
    attention = any("att" in name.lower() for name in names)
    if text is None or not attention or site.side != "output" or site.leaf in ((), (0,)):
        return None
    return getattr(text, "num_attention_heads", None)


def _text(config: Any) -> Any:
    return getattr(config, "get_text_config", lambda: config)() if config is not None else None
