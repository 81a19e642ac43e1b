"""Weights: digests of a model's parameters and buffers, to know a model again.

Owns the hash of every byte of them, by name. What was hashed before in this process, and has not
been written to since, is not hashed again.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from ..parallel.agreement import exchange
from ..parallel.group import Ranks
from ..parallel.mesh import held
from ..parallel.pack import as_bytes

CHUNK = 1 << 26
"""Bytes of a weight that are brought to the CPU at a time."""
_SAMPLES = 256
_known: dict[int, tuple[weakref.ref[Tensor], Any, str]] = {}
"""By id of a tensor that lives: what it was when it was hashed, and its digest."""


def weight_digests(module: nn.Module) -> dict[str, str]:
    """A digest of each parameter and buffer by name; of a model that is split over ranks, of all
    ranks' parts (then every rank has to call this).

    Raises:
        InputError: weights that are not in memory and that nobody can bring.
    """
    named = dict(_weights(module))
    with ThreadPoolExecutor(4) as pool:  # hashing lets go of the GIL
        found = dict(zip(named, pool.map(_digest, named.values()), strict=True))
    ranks = Ranks.of(module)
    if ranks is None:
        return found
    posts = [json.loads(p) for p in exchange(ranks, "digest of weights", json.dumps(found))]
    return {
        n: hashlib.blake2b("".join(p[n] for p in posts).encode(), digest_size=8).hexdigest()
        for n in found
    }


def _weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, owner in module.named_modules():
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is None:
                continue
            full = f"{path}.{name}" if path else name
            yield full, _brought(owner, name, full) if tensor.is_meta else tensor


def _brought(owner: nn.Module, name: str, full: str) -> Tensor:
    """The weight that accelerate's hook keeps elsewhere."""
    hook = getattr(owner, "_hf_hook", None)
    for one in getattr(hook, "hooks", (hook,)):
        kept = getattr(one, "weights_map", None)
        if kept is not None:
            try:
                weight: Tensor = kept[name]
            except KeyError:
                continue
            return weight
    raise InputError(
        f"The weight {full} has no values here (it is on the meta device), so that the model "
        "could not be known again. Load it before a dataset is extracted."
    )


def _digest(tensor: Tensor) -> str:
    tensor = held(tensor)
    state = _state(tensor)
    known = _known.get(id(tensor))
    counted = not tensor.is_inference()  # without a counter of writes nothing is known later
    if counted and known is not None and known[0]() is tensor and known[1] == state:
        return known[2]
    hasher = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    data = as_bytes(tensor)
    for start in range(0, data.numel(), CHUNK):
        hasher.update(data[start : start + CHUNK].cpu().numpy().data)
    found = hasher.hexdigest()[:16]
    if not counted:
        return found
    key = id(tensor)
    _known[key] = (weakref.ref(tensor, lambda _: _known.pop(key, None)), state, found)
    return found


def _state(tensor: Tensor) -> Any:
    """What changes when a weight is written to. A write through ``.data`` leaves the counter as it
    is, so some values are looked at too."""
    version = None if tensor.is_inference() else tensor._version
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _SAMPLES)
    sample = as_bytes(flat[::step].contiguous()).cpu().numpy().tobytes() if flat.numel() else b""
    return version, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), sample
