"""Prior: what is in the folder already, and whether it is of the same items.

Owns the check of an earlier call's items against this one's, by content, and the making of a fresh
folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DatasetError, InputError
from . import fingerprint
from .batches import Entry
from .items import length_of, read_items, repeatable
from .keys import Counter, Order
from .manifests import MANIFESTS, SHARDS, State, read_state, sweep
from .orders import Stored, read_order
from .workers import Worker


@dataclass(frozen=True, eq=False)
class Asked:
    """The items of a call, and how they are read."""

    items: Any
    text_key: str
    argument: str

    @property
    def length(self) -> int | None:
        """How many there are, where that is known."""
        return length_of(self.items)

    def entries(self, order: Order) -> Iterator[Entry]:
        """The items with their keys; `order` is filled on the way."""
        counter = Counter()
        for item in read_items(self.items, self.text_key, self.argument):
            key = counter.key(item.content())
            yield Entry(order.add(key, item.id), key, item)

    def order(self) -> Order | None:
        """The order of all items; None where they can be gone through only once."""
        if not repeatable(self.items):
            return None
        order = Order()
        for _ in self.entries(order):
            pass
        return order


@dataclass(frozen=True, eq=False)
class Prior:
    """What earlier calls did.

    Attributes:
        state: what is there.
        finished: the order of the items that they finished with; None where they did not.
    """

    state: State
    finished: Stored | None = None

    def check(self, folder: Path, order: Order) -> None:
        """See that an order of items can go on from here.

        Raises:
            DatasetError: earlier calls finished with other items, or did some that are not given.
        """
        if self.finished is not None:
            if self.finished.digest != order.digest:
                raise _other(folder, _first_difference(self.finished, order))
            return
        done = self.state.keys
        foreign = int((~np.isin(done, order.keys)).sum())
        if foreign:
            raise _other(
                folder,
                f"{foreign} of the {len(done)} items done are not among the {len(order)} given",
            )


def open_folder(folder: Path, body: fingerprint.Body, overwrite: bool, worker: Worker) -> Prior:
    """Make the folder ready to be written to, and see what is there.

    Raises:
        DatasetError: it holds a dataset of another call, or something else.
        InputError: it is to be overwritten by one of several workers.
    """
    begun = (folder / fingerprint.NAME).exists()
    if begun and overwrite:
        if worker.world_size > 1 or worker.grouped:
            raise InputError(
                "overwrite=True is for one process: of several, a late one would remove what the "
                f"others have done. Remove {folder} before they start."
            )
        shutil.rmtree(folder)
    elif not begun and folder.exists():
        ours = {MANIFESTS, SHARDS}
        if any(p.name not in ours and p.suffix != ".part" for p in folder.iterdir()):
            raise DatasetError(f"{folder} has files that are no dataset: give a folder of its own.")
    elif begun:
        fingerprint.refuse(folder, body)
    for name in (MANIFESTS, SHARDS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    fingerprint.begin(folder, body)
    if worker.writes:
        sweep(folder)
    state = read_state(folder)
    state.warn()
    stored = None if state.empty else read_order(folder)
    whole = stored is not None and bool(np.isin(stored.keys, state.keys).all())
    return Prior(state, stored if whole else None)


def _first_difference(was: Stored, order: Order) -> str:
    old, new = was.keys, order.keys
    shared = min(len(old), len(new))
    apart = np.flatnonzero(old[:shared] != new[:shared])
    if not len(apart) and len(old) == len(new):
        return "their ids differ"
    first = int(apart[0]) if len(apart) else shared
    return f"{len(new)} given, {len(old)} in the dataset, the first difference at item {first}"


def _other(folder: Path, what: str) -> DatasetError:
    error = DatasetError(
        f"{folder} has a dataset of other items: {what}. Nothing of it was changed. Give another "
        "path, or overwrite=True to begin again."
    )
    error.differs = ("items",)
    return error
