"""Keys: how an item is known again, whatever its row number.

Owns the key (what an item is, and which of its equals), the order of all keys of a call, and its
digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
Keys = npt.NDArray[np.void]
"""(N,) of 16 bytes each."""


class Counter:
    """Gives each item its key: the same item's first, second, … occurrence have different ones."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def key(self, content: bytes) -> bytes:
        """The key of the next item with this content."""
        occurrence = self._seen.get(content, 0)
        self._seen[content] = occurrence + 1
        if not occurrence:
            return content
        body = content + occurrence.to_bytes(8, "little")
        return hashlib.blake2b(body, digest_size=KEY_BYTES).digest()


class Order:
    """The keys of all items in their order, with the names that the caller gave them."""

    def __init__(self) -> None:
        self._keys = bytearray()
        self.ids: dict[int, str | int] = {}

    def add(self, key: bytes, name: str | int | None) -> int:
        """Add the next item; its position."""
        position = len(self)
        self._keys += key
        if name is not None:
            self.ids[position] = name
        return position

    def __len__(self) -> int:
        return len(self._keys) // KEY_BYTES

    @property
    def keys(self) -> Keys:
        """All keys."""
        return as_keys(bytes(self._keys))

    @property
    def digest(self) -> str:
        """Differs where any item, its place, or its name does."""
        hasher = hashlib.blake2b(bytes(self._keys), digest_size=16)
        hasher.update(repr(sorted(self.ids.items())).encode("utf-8", "surrogatepass"))
        return hasher.hexdigest()


def as_keys(data: bytes) -> Keys:
    """(N,) keys from N * 16 bytes."""
    return np.frombuffer(data, dtype=np.dtype((np.void, KEY_BYTES)))


def joined(parts: Iterable[Keys]) -> Keys:
    """Keys one after another."""
    some = list(parts)
    return np.concatenate(some) if some else as_keys(b"")
