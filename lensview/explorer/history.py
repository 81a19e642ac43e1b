"""History: the states that the interventions table went through.

Owns undo and redo. It keeps entries as they were, values included, and judges none of them: what is
wrong with a row is found anew when it comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

from .rows import Entry

MAX_STATES = 200

State = tuple[Entry, ...]


class History:
    """Earlier and later states of one table; whoever changes the table says so first."""

    def __init__(self) -> None:
        self._earlier: list[State] = []
        self._later: list[State] = []

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier state."""
        return bool(self._earlier)

    @property
    def can_redo(self) -> bool:
        """Whether a state was left by undoing."""
        return bool(self._later)

    def change(self, before: Sequence[Entry], after: Sequence[Entry]) -> None:
        """Note that the table goes from one state to another; nothing where a person sees no
        difference."""
        if _meaning(before) == _meaning(after):
            return
        self._earlier.append(tuple(before))
        del self._earlier[:-MAX_STATES]
        self._later.clear()

    def undo(self, now: Sequence[Entry]) -> list[Entry] | None:
        """The state before the last change, or None."""
        return _exchange(now, self._earlier, self._later)

    def redo(self, now: Sequence[Entry]) -> list[Entry] | None:
        """The state that was left by the last undo, or None."""
        return _exchange(now, self._later, self._earlier)

    def forget(self) -> None:
        """Let go of every state."""
        self._earlier.clear()
        self._later.clear()


def _exchange(now: Sequence[Entry], source: list[State], other: list[State]) -> list[Entry] | None:
    if not source:
        return None
    other.append(tuple(now))
    return list(source.pop())


def _meaning(entries: Sequence[Entry]) -> list[tuple[object, ...]]:
    rows = [(e.row, e.base) for e in entries]
    return [(r.id, r.enabled, r.site, r.operation, r.index, r.value, id(b)) for r, b in rows]
