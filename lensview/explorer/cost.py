"""Cost: what a run would hold, and what it would hold with other choices.

Owns the choices and their prices, each estimated without running the model (`capture/estimate.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..capture.estimate import Estimate, estimate
from ..modules import only_holds
from ..session import Session
from ..sites import Site
from ..watch import Watch
from .bodies import CostChoice, CostReply
from .limits import HALF, LAST_TOKEN, keep_of

Choice = tuple[str, tuple[str, ...], str]
"""A name for people, the sites, how much of each value."""

OVER_RANKS = "The model lies over ranks, where the cost of a run is not estimated."


def cost(
    session: Session,
    inputs: Any,
    sites: Sequence[str],
    keep: str,
    *,
    selected: str,
    limit: int | None,
    watch: Watch,
) -> CostReply:
    """What one run of `inputs` would hold, and the choices that hold less.

    Raises:
        InputError, SiteError: as a run would.
    """
    model = session.root
    if not isinstance(model, nn.Module):
        return CostReply(0, None, limit, [], [], OVER_RANKS)
    offers = choices(model, tuple(sites), selected)
    whole = _priced(session, model, inputs, tuple(sites), keep)
    found = []
    for done, (name, which, kept) in enumerate(offers):
        watch.progress(done + 1, len(offers) + 1, f"estimating: {name}")
        price = _priced(session, model, inputs, which, kept)
        found.append(CostChoice(name, list(which), kept, _total(price), price.unknown))
    largest = [f"{site}: {size:,} bytes" for site, size in whole.largest(3)]
    return CostReply(len(whole.sites), _total(whole), limit, largest, found, whole.unknown)


def choices(model: nn.Module, sites: tuple[str, ...], selected: str) -> list[Choice]:
    """What may be recorded instead, for people to pick from."""
    found: list[Choice] = [
        ("every module, whole values", ("**",), ""),
        ("every module, the last token of each", ("**",), LAST_TOKEN),
        ("every module, half precision", ("**",), HALF),
    ]
    blocks = _blocks(model)
    if blocks:
        found.append((f"the layers' outputs ({blocks})", (blocks,), ""))
    if selected:
        found.append(("the selected site alone", (selected,), ""))
    if sites != ("**",):
        found.insert(0, ("the sites as given", sites, ""))
    return found


def _blocks(model: nn.Module) -> str:
    """A glob for the members of the longest list of modules, the layers of most models."""
    lists = [(len(m), name) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    longest, name = max(lists, default=(0, ""))
    called = [m for m in model.get_submodule(name).children() if not only_holds(m)] if name else []
    return str(Site.parse(f"{name}.*")) if longest > 1 and called else ""


def _priced(
    session: Session, model: nn.Module, inputs: Any, sites: tuple[str, ...], keep: str
) -> Estimate:
    return estimate(model, inputs, sites, tokenizer=session.tokenizer, keep=keep_of(keep))


def _total(price: Estimate) -> int | None:
    return None if price.unknown else price.total
