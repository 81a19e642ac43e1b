"""Agreement: the ranks compare what they are asked for, before any of them runs it.

Owns the exchange over the store of torch.distributed, which has a timeout of its own: a rank that
is asked for something else, or does not come, is an error on all that came, where a collective of
the data group would hang or mix up values. Owns the digests too.

A value's digest is of what it holds, never of which object it is, so that ranks can compare.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import RankDivergenceError
from ..values import children
from .mesh import dtensor_type
from .pack import as_bytes

if TYPE_CHECKING:
    from .group import Ranks

TIMEOUT = timedelta(seconds=60)
"""How long ranks wait for each other: longer than a model's first look takes."""
_rounds: dict[str, int] = {}
"""Per group, how many exchanges all its ranks have come to."""
_left: set[str] = set()
"""The groups whose last exchange ended here for want of another rank."""


def agree(
    ranks: Ranks, what: str, digests: str | Mapping[str, str], timeout: timedelta = TIMEOUT
) -> None:
    """Return once every rank came here with the same digests.

    Args:
        what: what the ranks are about to do, as a noun: "trace".
        digests: of each part of it by name, or of all of it.

    Raises:
        RankDivergenceError: on every rank that came. It names the ranks that have something else,
            and the first part that differs, or the ranks that did not come in time.
    """
    parts = {"request": digests} if isinstance(digests, str) else dict(digests)
    posts = exchange(ranks, what, json.dumps({"what": what, "parts": parts}), timeout)
    said = [json.loads(post) for post in posts]
    failed = [f"rank {rank}: {told['error']}" for rank, told in enumerate(said) if "error" in told]
    if failed:
        raise RankDivergenceError(
            f"The run before this {what} failed on some ranks only. {'; '.join(failed)}"
        )
    others = {rank: _difference(said[0], theirs) for rank, theirs in enumerate(said)}
    differing = [f"rank {rank} has {text}" for rank, text in others.items() if text]
    if differing:
        raise RankDivergenceError(
            f"The ranks were not asked for the same {what}: {'; '.join(differing)}. Nothing was "
            "run on any rank. Run the same lines with the same inputs on every rank."
        )


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    if first["what"] != other["what"]:
        return f"a {other['what']}, where rank 0 has a {first['what']}"
    ours, theirs = first["parts"], other["parts"]
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in theirs:
            return f"no {name!r}, which rank 0 has"
        if name not in ours:
            return f"{name!r}, which rank 0 has not"
        if ours[name] != theirs[name]:
            return f"another {name!r} ({theirs[name]}; rank 0: {ours[name]})"
    return ""


# --- The store ------------------------------------------------------------------------------------


def _store() -> Any:
    """The store that the process group was made with; torch has no public name for it."""
    import torch.distributed as dist

    return dist.distributed_c10d._get_default_store()


def announce(ranks: Ranks, post: str) -> None:
    """Post for the exchange that the other ranks may come to, without waiting for theirs."""
    name, store = _rooms(ranks)
    turn = _rounds.get(name, 0)
    store.set(f"{turn}/{ranks.rank}", post)
    _rounds[name] = turn + 1


def exchange(ranks: Ranks, what: str, post: str, timeout: timedelta = TIMEOUT) -> list[str]:
    """What every rank posts, by rank. A key is gone once all ranks have come to the next round.

    Raises:
        RankDivergenceError: a rank did not come in time.
    """
    name, store = _rooms(ranks)
    turn = _rounds.get(name, 0)
    keys = [f"{turn}/{rank}" for rank in range(ranks.size)]
    if name in _left:
        _left.discard(name)
        store.delete_key(f"left/{ranks.rank}")
    store.set(keys[ranks.rank], post)
    try:
        store.wait(keys, timeout)
    except Exception as error:
        absent = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if absent:
            # The next exchange is this one again, so this rank's post must not be read later. The
            # mark tells those still waiting that this rank was here.
            _left.add(name)
            store.set(f"left/{ranks.rank}", "")
            store.delete_key(keys[ranks.rank])
            missing = [rank for rank in absent if not store.check([f"left/{rank}"])] or absent
            raise RankDivergenceError(
                f"Rank {' and '.join(map(str, missing))} of {ranks.size} did not come to this "
                f"{what} within {timeout.total_seconds():g} s. Nothing more was run here. Every "
                "rank has to run the same lines: look for an `if rank == 0`, or for an error that "
                "stopped the other."
            ) from error
    posts = [store.get(key).decode() for key in keys]
    # All have come to this round, so all have read the one before.
    if turn:
        store.delete_key(f"{turn - 1}/{ranks.rank}")
    _rounds[name] = turn + 1
    return posts


def _rooms(ranks: Ranks) -> tuple[str, Any]:
    """The group's name here, and its own part of the store."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    name = "/".join(map(str, dist.get_process_group_ranks(ranks.group)))
    return name, PrefixStore(f"lensview/{name}", _store())


# --- Digests --------------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """A short text that differs where values do: a tensor's with its dtype and shape before it.

    Of an object that is no container, tensor or plain value, its kind alone is looked at; of a
    function, its name and code.
    """
    hasher = hashlib.blake2b(digest_size=8)
    _feed(hasher, value)
    kind = ""
    if isinstance(value, Tensor):
        kind = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} "
    return kind + hasher.hexdigest()


def _feed(hasher: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        _tensor(hasher, value)
    elif isinstance(value, Mapping):
        hasher.update(b"{")
        for key, member in value.items():
            _feed(hasher, key)
            _feed(hasher, member)
        hasher.update(b"}")
    elif isinstance(value, Set):
        hasher.update("|".join(sorted(digest(member) for member in value)).encode())
    elif (members := children(value)) is not None:
        hasher.update(f"({type(value).__qualname__}".encode())
        for key, member in members:
            hasher.update(f"{key}=".encode())
            _feed(hasher, member)
        hasher.update(b")")
    else:
        hasher.update(_plain(value) + b";")


def _tensor(hasher: Any, tensor: Tensor) -> None:
    hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    split = dtensor_type()
    if split is not None and isinstance(tensor, split):
        # Its pieces differ from rank to rank, as they should.
        hasher.update(str(getattr(tensor, "placements", "")).encode())
    elif tensor.device.type != "meta" and tensor.layout is torch.strided:
        hasher.update(as_bytes(tensor).cpu().numpy())


def _plain(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    simple = (str, int, float, complex, slice, type(None), type(...), torch.dtype, torch.device)
    if isinstance(value, simple):
        return repr(value).encode()
    if hasattr(value, "dtype") and hasattr(value, "tobytes"):  # of numpy
        shape = getattr(value, "shape", ())
        return f"{value.dtype}{shape}".encode() + bytes(value.tobytes())
    name = getattr(value, "__qualname__", type(value).__qualname__)
    said = f"{type(value).__qualname__} {name} ".encode()
    if (code := getattr(value, "__code__", None)) is not None:
        # Code within code is left out: its repr tells where it lies in memory.
        constants = [c for c in code.co_consts if isinstance(c, simple)]
        said += code.co_code + repr((constants, code.co_names)).encode()
    return said
