"""Reading: a dataset of activations, as items in the order of the input.

Owns random access by position, name and token. Where an item lies is `contents.py`'s; tables for
other libraries are `tables.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import DatasetError, NotRecordedError, near
from . import fingerprint
from .contents import Contents, Files
from .manifests import Part
from .shards import IDS

Item = dict[str, Tensor]


class ActivationDataset(Dataset[Item]):
    """What `lensview.extract_dataset` wrote: item i of the input as a mapping from site to tensor.

    ``dataset[i]["model.layers.3"]`` is (T, …) over the item's real tokens, in the dtype that was
    kept, on the CPU; (1, …) where the last token or the mean was kept, (P, …) of P positions, and
    the item's own value where it has no tokens. An item that was skipped has 0 rows. Files are
    mapped into memory and read where they are asked for; each is compared with its checksum before
    the first value of it is given. It goes into a ``DataLoader`` of torch as it is, with workers.

    Args:
        folders: where the workers wrote; several where machines had folders of their own.
        checked: compare checksums.
    """

    def __init__(self, *folders: str | PathLike[str], checked: bool = True) -> None:
        self.folders = tuple(map(Path, folders))
        self.about = _same(self.folders)
        self._checked = checked
        self._contents: Contents | None = None
        self._files = Files()

    # --- what there is -------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether all items are there; looks at the files again until they are."""
        if self._contents is None:
            found = Contents.of(self.folders)
            if not found.missing:
                self._contents = found
        return self._contents is not None

    @property
    def _there(self) -> Contents:
        if not self.complete or self._contents is None:
            raise DatasetError(Contents.of(self.folders).missing)
        return self._contents

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that each item has, as canonical texts."""
        return tuple(self._there.state.sites) or tuple(self.about["sites"])

    @property
    def skipped(self) -> dict[int, str]:
        """The items without values, or without those of one site, each with the reason."""
        return self._there.told(self._there.state.skipped)

    @property
    def truncated(self) -> dict[int, int]:
        """The items that were cut to the model's context, each with the tokens that it had."""
        return self._there.told(self._there.state.truncated)

    @property
    def lengths(self) -> Tensor:
        """(N,) int64: how many real tokens each item has; 0 where it was skipped."""
        return torch.from_numpy(self._there.lengths.copy())

    @property
    def ids(self) -> dict[int, str | int]:
        """The names that the caller gave to items, by position."""
        return dict(self._there.order.ids)

    def keys(self) -> list[str]:
        """What each item is known by, in hex: a hash of its content, and which of its equals."""
        return [bytes(key).hex() for key in self._there.order.keys]

    def __len__(self) -> int:
        return len(self._there.order.keys)

    def __repr__(self) -> str:
        where = ", ".join(map(str, self.folders))
        if not self.complete:
            return f"ActivationDataset at {where}: not complete"
        there = self._there
        lines = [
            f"ActivationDataset at {where}: {len(self):,} items, {int(there.lengths.sum()):,} "
            f"tokens, {len(self.sites)} sites, {len(there.state.parts)} shards"
        ]
        for name, told in (("skipped", self.skipped), ("truncated", self.truncated)):
            if told:
                lines.append(f"  {name} {len(told)}: see dataset.{name}")
        return "\n".join(lines)

    # --- items ---------------------------------------------------------------------------------

    def __getitem__(self, position: int) -> Item:
        """Item `position` of the input.

        Raises:
            IndexError: there is no such item.
            DatasetError: the dataset is not complete, or a file is damaged; names it.
        """
        return {site: self._rows(position, site) for site in self.sites}

    def __iter__(self) -> Iterator[Item]:
        return (self[position] for position in range(len(self)))

    def item(self, name: str | int) -> Item:
        """The item that the caller named so, or that has this key.

        Raises:
            KeyError: none has, or several have the name.
        """
        return self[self.position(name)]

    def position(self, name: str | int) -> int:
        """The position of an item by its name or key; raises as `item`."""
        found = self._there.named(name)
        if len(found) == 1:
            return found[0]
        if found:
            raise NotRecordedError(f"{len(found)} items are named {name!r}: {found[:5]}.")
        names = [str(known) for known in self._there.order.ids.values()]
        raise NotRecordedError(f"No item is named {name!r}.{near(str(name), names)}")

    def token(self, position: int, token: int) -> Item:
        """The values of one token of an item, (…) at each site: its row in what was kept.

        Raises:
            IndexError: the item has no such row at a site.
        """
        found = {}
        for site in self.sites:
            rows = self._rows(position, site)
            if not -len(rows) <= token < len(rows):
                raise IndexError(
                    f"Item {position} has {len(rows)} rows at {site}; there is no {token}."
                )
            found[site] = rows[token]
        return found

    def tokens(self, position: int) -> Tensor:
        """(T,) int32: the ids of an item's tokens as the model read them.

        Raises:
            NotRecordedError: the items had no token ids.
        """
        part, row = self._there.where(self._at(position))
        if part is None:
            return torch.zeros(0, dtype=torch.int32)
        if not part.index.has_ids:
            raise NotRecordedError(f"Item {position} was given without token ids.")
        ends = np.cumsum(part.index.tokens)
        start = int(ends[row] - part.index.tokens[row])
        return self._read(part, IDS, start, int(ends[row]))

    def read(self, site: str, positions: Sequence[int] | None = None) -> list[Tensor]:
        """The tensors of one site of some items, of all where none are named."""
        chosen: Iterable[int] = range(len(self)) if positions is None else positions
        return [self._rows(position, site) for position in chosen]

    def to_arrow(self, positions: Sequence[int] | None = None) -> Any:
        """A ``pyarrow.Table`` with a row for each item; see `tables.arrow`."""
        from .tables import arrow

        return arrow(self, positions)

    def to_xarray(self, positions: Sequence[int] | None = None) -> Any:
        """An ``xarray.Dataset`` with a row for each token; see `tables.xarray`."""
        from .tables import xarray

        return xarray(self, positions)

    def about_site(self, site: str) -> dict[str, Any]:
        """How a site's values lie: its form, the shape of a row and the dtype."""
        return dict(self._there.state.sites[site])

    def _at(self, position: int) -> int:
        length = len(self)
        if not -length <= position < length:
            raise IndexError(f"There is no item {position}: the dataset has {length}.")
        return position % length

    def _rows(self, position: int, site: str) -> Tensor:
        there = self._there
        about = there.state.sites.get(site)
        if about is None and there.state.sites:
            raise NotRecordedError(f"The dataset has no {site!r}.{near(site, there.state.sites)}")
        part, row = there.where(self._at(position))
        if about is None or part is None:
            shape = [] if about is None else about["shape"]
            kind = torch.float32 if about is None else getattr(torch, about["dtype"])
            return torch.zeros([0, *shape], dtype=kind)
        starts = part.index.starts[site]
        rows = self._read(part, site, int(starts[row]), int(starts[row + 1]))
        return rows[0] if about["form"] == "item" else rows

    def _read(self, part: Part, name: str, start: int, end: int) -> Tensor:
        rows: Tensor = self._files.open(part, self._checked).get_slice(name)[start:end]
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """For a worker process: open files stay here."""
        return {**self.__dict__, "_files": Files()}


def open_dataset(
    path: str | PathLike[str] | Sequence[str | PathLike[str]], *, checked: bool = True
) -> ActivationDataset:
    """Open a dataset that `lensview.extract_dataset` wrote, by one process or by many.

    Args:
        path: its folder; a list of folders where machines wrote to places of their own. Their
            manifests are read together, nothing is copied.
        checked: compare each shard with its checksum before the first value of it is read.

    Raises:
        DatasetError: there is no dataset, it is not complete (says what is missing and what to do),
            or the folders are of different calls.
    """
    several = not isinstance(path, (str, PathLike))
    dataset = ActivationDataset(*(path if several else [path]), checked=checked)  # type: ignore[misc]
    len(dataset)  # tells what is missing
    return dataset


def _same(folders: Sequence[Path]) -> dict[str, Any]:
    """What the folders are of; refused where they differ."""
    if not folders:
        raise DatasetError("There is no folder to open.")
    first = fingerprint.read(folders[0])
    for folder in folders[1:]:
        fingerprint.refuse(folder, first)
    return first
