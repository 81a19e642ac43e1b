"""Contents: where each item of a dataset lies, and the files that are open.

Owns the join of what all workers wrote with the order of the items, the look at what is missing,
and the check of a file before its first value is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DatasetError
from .keys import Keys, as_keys
from .manifests import Part, State, read_state
from .orders import Stored, read_order
from .shards import verify

OPEN = 256
"""How many shards a process keeps mapped at a time."""


class Contents:
    """All items of some folders, and where each one's rows are.

    Attributes:
        missing: what is not there, as a sentence; "" where all is.
    """

    def __init__(self, state: State, order: Stored, missing: str) -> None:
        self.state = state
        self.order = order
        self.missing = missing
        shards, rows = [], []
        for number, part in enumerate(state.parts):
            shards.append(np.full(len(part.index.keys), number))
            rows.append(np.arange(len(part.index.keys)))
        keys = np.concatenate([p.index.keys for p in state.parts]) if state.parts else None
        self._shard = np.full(len(order.keys), -1)
        self._row = np.zeros(len(order.keys), dtype=np.int64)
        self.lengths = np.zeros(len(order.keys), dtype=np.int64)
        if keys is None:
            return
        ready = np.argsort(keys, kind="stable")
        places = np.searchsorted(keys[ready], order.keys)
        inside = np.flatnonzero(places < len(keys))
        inside = inside[keys[ready][places[inside]] == order.keys[inside]]
        chosen = ready[places[inside]]
        self._shard[inside] = np.concatenate(shards)[chosen]
        self._row[inside] = np.concatenate(rows)[chosen]
        self.lengths[inside] = np.concatenate([p.index.tokens for p in state.parts])[chosen]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Contents:
        """What the folders hold now."""
        state = read_state(*folders)
        orders = [found for f in folders if (found := read_order(f)) is not None]
        where = ", ".join(map(str, folders))
        again = "Run the same extract_dataset call to go on, or wait for the other workers."
        if not orders:
            empty = Stored("", state.keys[:0], {})
            done = len(np.unique(state.keys))
            return cls(state, empty, f"{where} is not complete: {done} items are done. {again}")
        if len({order.digest for order in orders}) > 1:
            raise DatasetError(
                f"The folders {where} have different items: they are no one dataset."
            )
        contents = cls(state, orders[0], "")
        skipped = np.isin(contents.order.keys, keys_of(state.skipped))
        lost = int(((contents._shard < 0) & ~skipped).sum())
        if lost:
            damage = "".join(f"\n  {line}" for line in state.damaged)
            contents.missing = (
                f"{where} is not complete: {lost} of {len(contents.order.keys)} items are missing. "
                f"{again}{damage}"
            )
        return contents

    def where(self, position: int) -> tuple[Part | None, int]:
        """The shard that holds an item, and its row there; None for one that was skipped."""
        number = int(self._shard[position])
        return (None if number < 0 else self.state.parts[number]), int(self._row[position])

    def told(self, by_key: Mapping[bytes, Any]) -> dict[int, Any]:
        """What is told of items by key, by position."""
        held = np.flatnonzero(np.isin(self.order.keys, keys_of(by_key)))
        return {int(i): by_key[bytes(self.order.keys[i])] for i in held}

    def named(self, name: str | int) -> list[int]:
        """The positions of the items with a name or key."""
        found = [at for at, known in self.order.ids.items() if known == name]
        if not found and isinstance(name, str) and len(name) == 32:
            try:
                key = keys_of([bytes.fromhex(name)])
            except ValueError:
                return []
            found = [int(at) for at in np.flatnonzero(self.order.keys == key[0])]
        return found


def keys_of(keys: Iterable[bytes]) -> Keys:
    """Keys as one array."""
    return as_keys(b"".join(keys))


class Files:
    """The shards that are open in this process; a forked one opens its own."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._open: dict[Path, Any] = {}
        self._verified: set[Path] = set()

    def open(self, part: Part, checked: bool) -> Any:
        """A shard, ready to be read, once it is known to be what was written."""
        from safetensors import safe_open

        if self._process != os.getpid():
            self._process, self._open = os.getpid(), {}
        if checked and part.place not in self._verified:
            verify(part.place, part.said)
            self._verified.add(part.place)
        if part.place not in self._open:
            opened: Any = safe_open(part.place, framework="pt")
            self._open[part.place] = opened.__enter__()
        found = self._open[part.place] = self._open.pop(part.place)  # the latest is the last
        while len(self._open) > OPEN:
            del self._open[next(iter(self._open))]
        return found
