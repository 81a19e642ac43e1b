"""Parts: the watches of several runs that are one to whoever waits.

Owns how their progress and their cancelling add up.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..watch import Watch


class Part(Watch):
    """The watch of one of several runs that make one: its progress is a share of the whole's, and
    cancelling the whole cancels it."""

    def __init__(self, whole: Watch, name: str, position: int, parts: int) -> None:
        def progress(done: int, total: int, text: str) -> None:
            said = f"{name}: {text}" if parts > 1 else text
            whole.progress(done + position * total, total * parts, said)

        super().__init__(progress)
        self._whole = whole

    @property
    def cancelled(self) -> bool:
        return self._whole.cancelled

    def check(self) -> None:
        self._whole.check()


def parts_of(watch: Watch, names: list[str]) -> Iterator[Watch]:
    """The watch of each part, in order; `names` say what each is."""
    return (Part(watch, name, i, len(names)) for i, name in enumerate(names))
