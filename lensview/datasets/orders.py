"""Orders: in which order the items of a dataset stand, on disk.

Owns the file of all keys, written by every worker that went through all items (each writes the same
one), and the small file that says which order is the present one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import DatasetError
from .files import write_whole
from .keys import Keys, Order, as_keys

POINTER = "order.json"
Ids = dict[int, str | int]


@dataclass(frozen=True, eq=False)
class Stored:
    """An order as it was written.

    Attributes:
        digest: of keys and names.
        keys: (N,) of all items.
        ids: the names that the caller gave, by position.
    """

    digest: str
    keys: Keys
    ids: Ids


def write_order(folder: Path, order: Order) -> None:
    """Make `order` the present one.

    Raises:
        OSError: it could not be written.
    """
    digest, keys = order.digest, order.keys.tobytes()
    head = json.dumps(
        {
            "__metadata__": {"ids": json.dumps(sorted(order.ids.items()))} if order.ids else {},
            "key": {"dtype": "U8", "shape": [len(order), 16], "data_offsets": [0, len(keys)]},
        }
    ).encode()
    head += b" " * (-len(head) % 8)
    target = folder / f"order-{digest}.safetensors"
    if not target.exists():
        data = len(head).to_bytes(8, "little") + head + keys
        write_whole(target, lambda file: file.write(data))
    pointer = {"order": digest, "items": len(order), "blake2b": _sum(keys)}
    text = json.dumps(pointer).encode()
    write_whole(folder / POINTER, lambda file: file.write(text))


def read_order(folder: Path) -> Stored | None:
    """The present order; None where no worker has gone through all items yet.

    Raises:
        DatasetError: a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        pointer = json.loads((folder / POINTER).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DatasetError(f"{folder / POINTER} cannot be read: {error}.") from error
    place = folder / f"order-{pointer['order']}.safetensors"
    try:
        with safe_open(place, framework="np") as file:
            keys = np.ascontiguousarray(file.get_tensor("key")).tobytes()
            ids = json.loads((file.metadata() or {}).get("ids", "[]"))
    except (SafetensorError, FileNotFoundError, ValueError) as error:
        raise DatasetError(
            f"{place} cannot be read: {error}. Run extract_dataset again."
        ) from error
    if _sum(keys) != pointer["blake2b"]:
        raise DatasetError(f"{place} is not what was written. Run extract_dataset again.")
    return Stored(pointer["order"], as_keys(keys), dict(map(tuple, ids)))


def _sum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
