"""Shards: some items' rows as one safetensors file.

Owns the layout of the file: each site's rows, item after item, under the site's text, and under
``//…`` names an index of the items: ``//key`` uint8 (N, 16), ``//tokens`` int32 (N,), for each site
``//rows/<site>`` int32 (N,), and the token ids, ``//ids`` int32, where items have them. What was
written is told with checksums, which reading compares (`manifests.py` keeps them).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DatasetError
from ..parallel.pack import as_bytes
from .files import write_whole
from .keys import KEY_BYTES, Keys, as_keys

Counts = npt.NDArray[np.int64]
KEY, TOKENS, IDS, ROWS = "//key", "//tokens", "//ids", "//rows/"


@dataclass(eq=False)
class Piece:
    """The rows of one batch, on the CPU.

    Attributes:
        keys: of the items.
        tokens: how many real tokens each has.
        ids: their token ids, one after another; None where they have none.
        values: by site, the items' rows one after another.
        rows: by site, how many each item has.
    """

    keys: list[bytes]
    tokens: list[int]
    ids: Tensor | None
    values: dict[str, Tensor]
    rows: dict[str, list[int]]


@dataclass(eq=False)
class Shard:
    """Pieces on their way to one file."""

    pieces: list[Piece] = field(default_factory=list)
    bytes: int = 0

    def add(self, piece: Piece) -> None:
        """Take the rows of one more batch."""
        self.pieces.append(piece)
        self.bytes += sum(t.nbytes for t in piece.values.values())

    def write(self, target: Path) -> dict[str, Any]:
        """Write the file; what a manifest says of it.

        Raises:
            OSError: it could not be written, and is not there.
        """
        table = self._table()
        hasher = hashlib.sha256()

        def put(file: IO[bytes]) -> int:
            size = 0
            for chunk in _chunks(table):
                hasher.update(chunk)
                size += file.write(chunk)
            return size

        size = write_whole(target, put)
        keys = [key for piece in self.pieces for key in piece.keys]
        index = {name: parts for name, parts in table.items() if name != IDS and name[:2] == "//"}
        return {
            "shard": target.name,
            "bytes": size,
            "sha256": hasher.hexdigest(),
            "index": index_digest({n: as_bytes(torch.cat(p)).numpy() for n, p in index.items()}),
            "items": len(keys),
            "tokens": sum(sum(piece.tokens) for piece in self.pieces),
        }

    def _table(self) -> dict[str, list[Tensor]]:
        """The tensors of the file, each in parts along dim 0; the widest dtypes first, so that
        each lies where it can be read in place."""
        keys = np.frombuffer(b"".join(k for p in self.pieces for k in p.keys), dtype=np.uint8)
        table = {s: [p.values[s] for p in self.pieces] for s in self.pieces[0].values}
        if all(piece.ids is not None for piece in self.pieces):
            table[IDS] = [p.ids.to(torch.int32) for p in self.pieces if p.ids is not None]
        table[TOKENS] = [_counts([n for p in self.pieces for n in p.tokens])]
        for site in self.pieces[0].rows:
            table[ROWS + site] = [_counts([n for p in self.pieces for n in p.rows[site]])]
        table[KEY] = [torch.from_numpy(keys.copy()).view(-1, KEY_BYTES)]
        return dict(sorted(table.items(), key=lambda line: -line[1][0].element_size()))


def _counts(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _chunks(table: Mapping[str, Sequence[Tensor]]) -> Any:
    """The bytes of a safetensors file, without ever joining the parts of a tensor."""
    header: dict[str, Any] = {"__metadata__": {"lensview.dataset": "1"}}
    offset = 0
    for name, parts in table.items():
        size = sum(part.nbytes for part in parts)
        shape = [sum(len(part) for part in parts), *parts[0].shape[1:]]
        kind = _NAMES[parts[0].dtype]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for parts in table.values():
        for part in parts:
            if part.numel():
                yield memoryview(as_bytes(part).numpy().data)


_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""What safetensors calls the dtypes."""


def storable(dtype: torch.dtype) -> bool:
    """Whether a shard can hold values of a dtype."""
    return dtype in _NAMES


def index_digest(index: Mapping[str, Any]) -> str:
    """Of the arrays of an index, by name."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(index):
        hasher.update(name.encode() + b"\0")
        hasher.update(index[name])
    return hasher.hexdigest()


# --- reading --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Index:
    """What a shard holds.

    Attributes:
        keys: of its items.
        tokens: (N,) real tokens of each.
        starts: by site (N + 1,), where each item's rows start; the last is where they end.
        has_ids: whether it holds the token ids.
    """

    keys: Keys
    tokens: Counts
    starts: dict[str, Counts]
    has_ids: bool


def read_index(place: Path, said: Mapping[str, Any]) -> Index:
    """The index of a shard, compared with what its manifest says of it.

    Raises:
        FileNotFoundError: there is no such file.
        DatasetError: it is cut short, or not what was written.
    """
    size = place.stat().st_size
    if size != said["bytes"]:
        raise DatasetError(
            f"{place} has {size:,} bytes, where {said['bytes']:,} were written: it was cut short "
            "or replaced."
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(place, framework="np") as file:
            names = set(file.keys())
            arrays = {
                n: file.get_tensor(n) for n in names if n in (KEY, TOKENS) or n.startswith(ROWS)
            }
    except SafetensorError as error:
        raise DatasetError(f"{place} is no whole safetensors file: {error}.") from error
    raw = {n: a.tobytes() for n, a in arrays.items()}
    if index_digest(raw) != said["index"]:
        raise DatasetError(f"{place}: its index is not what was written; the file is damaged.")
    return Index(
        as_keys(raw[KEY]),
        arrays[TOKENS].astype(np.int64),
        {n[len(ROWS) :]: _starts(a) for n, a in arrays.items() if n.startswith(ROWS)},
        IDS in names,
    )


def _starts(counts: Any) -> Counts:
    starts: Counts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return starts


def verify(place: Path, said: Mapping[str, Any]) -> None:
    """Compare a whole shard with the checksum of what was written.

    Raises:
        DatasetError: they differ.
        FileNotFoundError: there is no such file.
    """
    with place.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != said["sha256"]:
        raise DatasetError(
            f"{place} is not what was written: its SHA-256 is {found}, not {said['sha256']}. "
            f"Delete the file and run the same extract_dataset call: it extracts the "
            f"{said['items']} items again."
        )
