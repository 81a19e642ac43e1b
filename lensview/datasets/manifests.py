"""Manifests: what a folder of a dataset holds, as its workers wrote it down.

Owns the names in the folder and the manifests: one file of lines for each process that wrote, in
which a shard is listed once it is complete. Reading them all is how ranks and machines are merged
and how a run is resumed; nothing is copied.

    dataset.json        what was asked for (`fingerprint.py`)
    order.json          which order of the items is the present one
    order-*.safetensors the keys of all items in their order
    manifests/*.jsonl   one for each process that wrote
    shards/*.safetensors
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DatasetError, LensWarning
from .files import alive, host, sweep_parts, sync_folder
from .keys import Keys, as_keys, joined
from .shards import Index, read_index

FORMAT = 1
"""The newest format this version reads and the one it writes."""
SHARDS, MANIFESTS = "shards", "manifests"


class Manifest:
    """The manifest that this process writes; made with its first line."""

    def __init__(self, folder: Path, rank: int, world_size: int) -> None:
        self.worker = f"r{rank:05d}-{secrets.token_hex(4)}"
        self._path = folder / MANIFESTS / f"{self.worker}.jsonl"
        self._first = {
            "format": FORMAT,
            "worker": self.worker,
            "rank": rank,
            "world_size": world_size,
            "host": host(),
            "pid": os.getpid(),
        }
        self._shards = 0

    def shard_name(self) -> str:
        """A name for the next shard, which no other process uses."""
        self._shards += 1
        return f"{self.worker}-{self._shards - 1:05d}.safetensors"

    def add(self, line: Mapping[str, Any]) -> None:
        """Write a line, on the disk when this returns.

        Raises:
            OSError: it could not be written; what is left of it is not read.
        """
        new = not self._path.exists()
        with self._path.open("ab") as file:
            for body in ([self._first] if new else []) + [dict(line)]:
                file.write(_written(body))
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_folder(self._path.parent)


def _written(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, ensure_ascii=True)
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of one manifest; one that a process did not finish writing is not read."""
    data = path.read_bytes()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        sum_, _, text = line.partition(b" ")
        try:
            if int(sum_, 16) != zlib.crc32(text):
                raise ValueError("its checksum does not fit")
            yield json.loads(text)
        except ValueError as error:
            raise DatasetError(f"{path}: line {number} is damaged ({error}).") from error


@dataclass(frozen=True, eq=False)
class Part:
    """A shard in its folder.

    Attributes:
        place: the file.
        said: what its manifest says of it.
    """

    place: Path
    said: dict[str, Any]
    index: Index


@dataclass(eq=False)
class State:
    """What some folders hold together.

    Attributes:
        parts: the shards that are whole.
        skipped: why an item has no values, by key.
        truncated: how many tokens an item had that was cut, by key.
        sites: by site, its form, dtype, the shape of a row.
        damaged: what is wrong with shards that are not whole.
    """

    parts: list[Part] = field(default_factory=list)
    skipped: dict[bytes, str] = field(default_factory=dict)
    truncated: dict[bytes, int] = field(default_factory=dict)
    sites: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)

    @property
    def keys(self) -> Keys:
        """The keys of all items that are done."""
        skipped = as_keys(b"".join(self.skipped))
        return joined([*(part.index.keys for part in self.parts), skipped])

    @property
    def empty(self) -> bool:
        """Whether nothing is done yet."""
        return not self.parts and not self.skipped

    def warn(self) -> None:
        """Tell of shards that are damaged, whose items are to be done again."""
        if self.damaged:
            lines = "\n  ".join(self.damaged)
            warnings.warn(f"These items are done again:\n  {lines}", LensWarning, stacklevel=4)


def read_state(*folders: Path) -> State:
    """Everything that the manifests of the folders list.

    Raises:
        DatasetError: a manifest is damaged, or newer than this lensview.
    """
    state = State()
    for folder in folders:
        for path in sorted((folder / MANIFESTS).glob("*.jsonl")):
            for line in _lines(path):
                _take(state, folder, path, line)
    return state


def _take(state: State, folder: Path, path: Path, line: dict[str, Any]) -> None:
    if line.get("format", FORMAT) > FORMAT:
        raise DatasetError(
            f"{path} has format {line['format']}; this lensview reads up to {FORMAT}. Upgrade it."
        )
    state.sites.update(line.get("sites", {}))
    state.skipped.update((bytes.fromhex(k), why) for k, why in line.get("skipped", {}).items())
    state.truncated.update((bytes.fromhex(k), n) for k, n in line.get("truncated", {}).items())
    if "shard" in line:
        place = folder / SHARDS / Path(line["shard"]).name
        try:
            state.parts.append(Part(place, line, read_index(place, line)))
        except FileNotFoundError:
            state.damaged.append(f"{place} with {line['items']} items is gone.")
        except DatasetError as error:
            state.damaged.append(f"{error} It has {line['items']} items.")


def sweep(folder: Path) -> None:
    """Remove what processes that are gone left unfinished: files that they were writing, and
    shards that no manifest lists as whole."""
    sweep_parts(folder)
    sweep_parts(folder / SHARDS)
    listed: set[str] = set()
    dead: set[str] = set()
    for path in (folder / MANIFESTS).glob("*.jsonl"):
        for line in _lines(path):
            if "pid" in line and line["host"] == host() and not alive(line["pid"]):
                dead.add(line["worker"])
            if "shard" in line:
                listed.add(line["shard"])
    for place in (folder / SHARDS).glob("*.safetensors"):
        if place.name not in listed and place.name.rpartition("-")[0] in dead:
            place.unlink(missing_ok=True)
