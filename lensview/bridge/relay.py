"""Relay: messages that are passed on without being looked into.

Owns the line whose messages stay frames, and what of a message a relay does read: its heading. Who
passes what on to whom is `hub.py`'s and `tender.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .line import Line, Parts
from .wire import MAX_HEADER, WireError


class Relay(Line):
    """A line whose messages are given as frames, the sender's name beside them."""

    def __init__(self, name: str, taken: Callable[[bytes, Parts], None]) -> None:
        super().__init__(name, frozenset(), lambda *_: None)
        self._taken = taken

    def _take(self, sender: bytes, parts: Parts) -> None:
        self._taken(sender, parts)


def heading(parts: Parts) -> tuple[str, int]:
    """A message's kind and number.

    Raises:
        WireError: it has none.
    """
    try:
        if len(parts[0]) > MAX_HEADER:
            raise WireError("A larger heading than is taken.")
        header = json.loads(bytes(parts[0]))
        kind, number = header["kind"], header["id"]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise WireError(f"A message without a heading: {error!r:.200}") from error
    if not isinstance(kind, str) or not isinstance(number, int):
        raise WireError("A message whose heading is none.")
    return kind, number


def renumbered(parts: Parts, number: int) -> Parts:
    """The same message as one of another command."""
    header: dict[str, Any] = json.loads(bytes(parts[0]))
    header["id"] = number
    return [json.dumps(header, allow_nan=False).encode(), *parts[1:]]
