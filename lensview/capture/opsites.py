"""Op sites: why a value between ops is not there.

Owns the sentences about ops that a run did not meet: which ops a forward runs is known only after
it ran, so near matches are told then. Finding and visiting ops is `taps/ops.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ..errors import SiteError, near
from ..resolve import Target
from ..sites import Site
from ..taps.fused import why_not_between
from ..taps.opnames import op_text
from ..taps.ops import OpsMet

Asked = tuple[Target, OpsMet]
"""A target at an op, and what the run met in its module."""
_SHOWN = 24


def no_ops(target: Target) -> str:
    """Why the ops at a target of a glob cannot be looked at; "" where they can.

    Raises:
        SiteError: they cannot, and the site was asked for by name.
    """
    with torch.no_grad():
        reason = why_not_between(target.module)
    if reason and not target.expanded:
        raise SiteError(f"{target.asked!r}: {reason}")
    return reason


def why_no_op(asked: Sequence[Asked]) -> str:
    """Why no op passed at the targets of one text, all of modules that were called."""
    target, ops = asked[0]
    site = target.site
    met = list(dict.fromkeys(text for _, point in asked for text in point.texts))
    if len(asked) > 1:
        whose = f"none of the {len(asked)} modules that it matches and that were called"
        return f"{whose} ran {_wanted(site)}; they ran {_listed(met)}{_close(site, met)}"
    kind = type(target.module).__name__
    if site.call is not None and site.call >= ops.calls:
        times = "once" if ops.calls == 1 else f"{ops.calls} times"
        return f"the {kind} was called {times} in this run, counted from 0."
    if any(site.takes_op(*_read(text)) for text in met):
        return f"call {site.call} of the {kind} did not run {_wanted(site)}; another call did."
    return f"this forward ({kind}) ran {_listed(met)}{_close(site, met)}"


def _wanted(site: Site) -> str:
    return op_text(site.op or "", site.op_index)


def _listed(met: Sequence[str]) -> str:
    if not met:
        return "no ops of its own: its submodules do all the work."
    more = f" … and {len(met) - _SHOWN} more" if len(met) > _SHOWN else ""
    return f"{', '.join(met[:_SHOWN])}{more}."


def _close(site: Site, met: Iterable[str]) -> str:
    return near(_wanted(site), met)


def _read(text: str) -> tuple[str, int]:
    name, _, k = text.partition(".")
    return name, int(k or 0)
