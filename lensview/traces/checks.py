"""Checks: what is known of whether a run can be believed, as data.

Owns `Check` and its words. What is checked, and how, is `capture/checks.py`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing that a reader of a run's numbers wants to know.

    Attributes:
        name: a short name, the same in every run: "output", "modules", …
        ok: True where it was seen to be well (green), False where a reader must know of something
            (amber), None where it could not be told (amber too).
        reason: a sentence: what was seen, or why it could not be told.
    """

    name: str
    ok: bool | None
    reason: str

    @property
    def level(self) -> str:
        """ "green" or "amber"; what could not be told is not green."""
        return "green" if self.ok else "amber"

    def __str__(self) -> str:
        sign = {True: "ok", False: "! ", None: "? "}[self.ok]
        return f"{sign} {self.name}: {self.reason}"

    @classmethod
    def read(cls, body: Sequence[Any]) -> Check:
        """From ``[name, ok, reason]``, as files and messages hold it.

        Raises:
            TypeError: that is something else.
        """
        match body:
            case [str(name), (bool() | None) as ok, str(reason)]:
                return cls(name, ok, reason)
        raise TypeError(f"{body!r:.80} is no check")
