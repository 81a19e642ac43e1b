"""Limits: how much of each value later runs record, as the page names it.

Owns the few choices there are and their meaning for a run's ``keep=``. What they save is told by
`cost.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InputError
from ..indices import at

LAST_TOKEN = "last token"
HALF = "half"
KEEPS = ("", LAST_TOKEN, HALF)
"""All of each value; its last real token's; all of it in bfloat16."""


def keep_of(name: str) -> Any:
    """The ``keep=`` of a run.

    Raises:
        InputError: there is no such choice.
    """
    if name not in KEEPS:
        raise InputError(f"keep is one of {', '.join(map(repr, KEEPS))}, not {name!r}.")
    if name == LAST_TOKEN:
        return at(token=-1)
    return torch.bfloat16 if name == HALF else None
