"""explorer: the widget over a session. `explore` makes one; reading order: protocol.py, widget.py,
handlers.py, runs.py, jobs.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..errors import SiteError
from ..interventions import zero
from ..plan import Plan
from ..session import LocalSession, Session
from .cells import Replacer
from .runs import MAX_BYTES
from .sharing import to_html
from .widget import Explorer

__all__ = ["Explorer", "explore", "to_html"]

_replacer = Replacer(lambda explorer: explorer.close())


def explore(
    model: nn.Module | Session,
    tokenizer: Any = None,
    inputs: Any = None,
    sites: str | Iterable[str] | None = None,
    *,
    max_bytes: int | None = MAX_BYTES,
) -> Explorer:
    """An explorer of a model, to be displayed as the last line of a cell.

    Running a cell again closes the explorers that it made before.

    Args:
        model: an ``nn.Module``, wrapped or not, or a session.
        tokenizer: reads prompts and spells tokens; without one, prompts cannot be typed and
            inputs come from code.
        inputs: a text or any inputs that `lensview.trace` takes. With them the first run starts
            at once, on the explorer's own thread.
        sites: what a run records; default is every module's output. Other sites are recorded
            when they are looked at.
        max_bytes: of records that one run keeps; what is beyond is recorded when looked at. None
            has no limit.

    Raises:
        TypeError: `model` is neither a module nor a session.
        InputError: a text without a tokenizer, or an empty one.
        SiteError: `sites` match nothing in the model.
        CaptureUnsupportedError: the model cannot be shown whole.
    """
    session = _session(model, tokenizer)
    plan = Plan.make("**" if sites is None else sites)
    for wrong in session.check([zero(text) for text in plan.sites]):
        if wrong:
            raise SiteError(wrong)
    explorer = Explorer(session, plan.sites, max_bytes)
    _replacer.add(explorer)
    if inputs is not None:
        try:
            explorer.run(inputs, wait=False)
        except BaseException:
            explorer.close()
            raise
    return explorer


def _session(model: Any, tokenizer: Any) -> Session:
    if isinstance(model, nn.Module):
        if isinstance(tokenizer, (str, type)):
            raise TypeError(
                f"The tokenizer is {tokenizer!r:.60}; give one that was loaded. The order is "
                "explore(model, tokenizer, inputs)."
            )
        return LocalSession(model, tokenizer)
    if isinstance(model, Session):
        if tokenizer is not None:
            raise TypeError("A session brings its own tokenizer; do not give another.")
        return model
    raise TypeError(
        f"explore takes a model (a torch nn.Module) or a session, not a {type(model).__name__}."
    )
