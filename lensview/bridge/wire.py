"""Wire: messages between the kernel and the ranks.

Owns the frames (a JSON header, then one raw buffer per tensor, sent without a copy) and their
limits. Sockets are `line.py`'s; what messages mean is `team.py`'s and `rank.py`'s. Nothing is
unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq
from torch import Tensor

from ..errors import InputError
from .parcel import pack, unpack

TO_RANKS = frozenset(
    "load trace generate extract extract_dataset tree check tile difference_tile stats sizes value "
    "fetch tokenizer drop ping pause go end where stop beat over".split()
)
TO_KERNEL = frozenset("hello progress reply failed paused where told beat attached refused".split())
TO_HUB = frozenset("attach detach over".split())
LONG = frozenset("ping trace generate extract extract_dataset".split())
"""What ranks do in step; the rest is answered beside it."""
MAX_HEADER = 64 << 20
MAX_TENSORS = 1 << 16
ALIGNED = 8
_DTYPES = {
    str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)
}


class WireError(ValueError):
    """A message is not what this side sends or takes."""


@dataclass(frozen=True)
class Message:
    """One message: its kind, the number of the command that it belongs to, and what it holds."""

    kind: str
    id: int = 0
    body: Any = None


def frames(message: Message) -> list[Any]:
    """The frames of a message.

    Raises:
        InputError: it holds something that cannot travel.
    """
    tensors: list[Tensor] = []
    body = pack(message.body, tensors)
    ready = [_dense(tensor) for tensor in tensors]
    header = {
        "kind": message.kind,
        "id": message.id,
        "body": body,
        "tensors": [[str(t.dtype).removeprefix("torch."), list(t.shape)] for t in ready],
    }
    return [json.dumps(header, allow_nan=False).encode(), *map(_buffer, ready)]


def message_of(parts: Sequence[Any], kinds: frozenset[str]) -> Message:
    """The inverse of `frames`, for a side that takes `kinds`.

    Raises:
        WireError: the frames are no message, or one of another kind.
    """
    if not parts or len(parts[0]) > MAX_HEADER or len(parts) - 1 > MAX_TENSORS:
        raise WireError("A message with no header, or a larger one than is taken.")
    try:
        header = json.loads(bytes(parts[0]))
        kind, number, specs = header["kind"], header["id"], header["tensors"]
        if kind not in kinds or not isinstance(number, int) or len(specs) != len(parts) - 1:
            raise WireError(f"A message of kind {kind!r:.40} with {len(parts)} frames.")
        tensors = [_tensor(s, f) for s, f in zip(specs, parts[1:], strict=True)]
        return Message(kind, number, unpack(header["body"], tensors))
    except (KeyError, TypeError, IndexError, ValueError, AttributeError, RecursionError) as error:
        raise WireError(f"A message that cannot be read: {error!r:.200}") from error


def _dense(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise InputError(f"A {kind} tensor cannot be sent between processes: make it dense.")
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def _buffer(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _tensor(spec: Sequence[Any], frame: zmq.Frame) -> Tensor:
    name, shape = spec
    dtype = _DTYPES[name]
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise WireError(f"{shape} is no shape.")
    if len(frame) != math.prod(shape) * dtype.itemsize:
        raise WireError(f"{len(frame)} bytes are no {name} tensor of shape {shape}.")
    if not len(frame):
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(frame.buffer, dtype=torch.uint8)
    # ZeroMQ puts large frames at multiples of 8, small ones anywhere.
    if raw.data_ptr() % min(dtype.itemsize, ALIGNED):
        raw = raw.clone()
    return raw.view(dtype).reshape(shape)
