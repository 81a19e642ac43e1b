"""Findings: what a look at a model found, as data and as a table.

Owns `Finding` and the list of them that `lv.findings` returns. Looking is `detect.py`'s and
`notes.py`'s, refusing is `refusal.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

Level = Literal["fine", "warning", "refused"]
LEVELS: tuple[Level, ...] = ("refused", "warning", "fine")
"""What a finding means for a capture, the worst first."""

_SHOWN = 6
"""How many places of one kind a text lists before it counts the rest."""


@dataclass(frozen=True)
class Finding:
    """One thing about a model that bears on a capture.

    Attributes:
        kind: a short name, e.g. "FSDP2".
        where: the site path of the module, or the name of the parameter, buffer or attribute; ""
            is the root, "inputs…" an input.
        what: a sentence: what it is and what it means for a capture.
        remedy: what to do instead; "" where nothing needs doing.
        level: "refused" (nothing would be run), "warning" (captured; the reader of the numbers
            must know), or "fine".
    """

    kind: str
    where: str
    what: str
    remedy: str = ""
    level: Level = "refused"

    def __str__(self) -> str:
        return said([self])


class Findings(Sequence[Finding]):
    """All that was found, the worst first; prints as a table.

    Attributes:
        refused: why a capture would be refused; empty where it would run.
        warnings: what is captured, but must be known.
        fine: what was seen and changes nothing.
    """

    def __init__(self, found: Iterable[Finding]) -> None:
        self._found = sorted(found, key=lambda f: LEVELS.index(f.level))
        self.refused = tuple(f for f in self._found if f.level == "refused")
        self.warnings = tuple(f for f in self._found if f.level == "warning")
        self.fine = tuple(f for f in self._found if f.level == "fine")

    @overload
    def __getitem__(self, i: int) -> Finding: ...
    @overload
    def __getitem__(self, i: slice) -> list[Finding]: ...
    def __getitem__(self, i: int | slice) -> Finding | list[Finding]:
        return self._found[i]

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        if not self:
            return "Nothing stands in the way of a capture, and nothing needs saying."
        rows = [
            (group[0].level, group[0].kind, places(group), f"{group[0].what} {group[0].remedy}")
            for group in by_kind(self)
        ]
        wide = [max(len(row[i]) for row in rows) for i in range(3)]
        head = "A capture is refused." if self.refused else "A capture would run."
        lines = [
            "  ".join([*(t.ljust(w) for t, w in zip(row, wide, strict=False)), row[3]]).rstrip()
            for row in rows
        ]
        return "\n".join([head, *lines])


def by_kind(found: Iterable[Finding]) -> Iterator[list[Finding]]:
    """The findings of each kind that mean the same, in the order in which kinds appear."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for one in found:
        groups.setdefault((one.level, one.kind, one.what), []).append(one)
    yield from groups.values()


def said(group: Sequence[Finding]) -> str:
    """One kind's findings as a sentence with their places."""
    first = group[0]
    return f"{first.kind} at {places(group)}: {first.what} {first.remedy}".rstrip()


def places(group: Sequence[Finding]) -> str:
    """Where the findings of one kind are; beyond a few, their number."""
    named = [f.where or "the root module" for f in group]
    more = len(named) - _SHOWN
    return ", ".join(named[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
