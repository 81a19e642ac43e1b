"""Parcel: what a message may hold, as JSON and a list of tensors, both ways.

Owns the kinds of values that travel between processes: plain ones, containers, tensors, dtypes,
arrays. Anything else is refused by name where it is packed; nothing that is unpacked runs code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..capture.inputs import Args
from ..errors import InputError


def pack(value: Any, tensors: list[Tensor]) -> Any:
    """`value` as JSON; its tensors are added to `tensors`.

    Raises:
        InputError: it holds something that cannot travel; names it.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"number": str(float(value))}
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, Args):
        return {"args": pack(value.args, tensors), "kwargs": pack(value.kwargs, tensors)}
    if isinstance(value, Mapping):
        return {"map": [[pack(k, tensors), pack(v, tensors)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [pack(v, tensors) for v in value]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, bytes):
        return (
            {"bytes": pack(torch.frombuffer(bytearray(value), dtype=torch.uint8), tensors)}
            if (value)
            else {"bytes": None}
        )
    return _of_numpy(value, tensors)


def _of_numpy(value: Any, tensors: list[Tensor]) -> Any:
    if type(value).__module__.partition(".")[0] == "numpy":
        if getattr(value, "ndim", 0) or hasattr(value, "__array_interface__"):
            try:
                return {"array": pack(torch.as_tensor(value), tensors)}
            except TypeError:
                pass
        elif hasattr(value, "item"):
            return pack(value.item(), tensors)
    raise InputError(
        f"A {type(value).__name__} cannot be sent to the ranks: {value!r:.80}. They take numbers, "
        "texts, tensors, and lists, tuples, mappings or lv.Args of these."
    )


def unpack(body: Any, tensors: Sequence[Tensor]) -> Any:
    """The inverse of `pack`.

    Raises:
        KeyError, IndexError, TypeError, ValueError: `body` is not what `pack` makes.
    """
    if isinstance(body, list):
        return [unpack(v, tensors) for v in body]
    if not isinstance(body, dict):
        return body
    if "kwargs" in body:
        return Args(*unpack(body["args"], tensors), **unpack(body["kwargs"], tensors))
    ((kind, held),) = body.items()
    if kind == "map":
        return {_key(unpack(k, tensors)): unpack(v, tensors) for k, v in held}
    if kind == "tensor":
        return tensors[_index(held)]
    if kind == "tuple":
        return tuple(unpack(v, tensors) for v in held)
    if kind == "number":
        return float(held)
    if kind == "array":
        return unpack(held, tensors).numpy()
    if kind == "bytes":
        return b"" if held is None else unpack(held, tensors).numpy().tobytes()
    if kind == "dtype" and isinstance(found := getattr(torch, str(held), None), torch.dtype):
        return found
    raise ValueError(f"{kind!r} is no kind of value.")


def _index(held: Any) -> int:
    if not isinstance(held, int) or held < 0:
        raise ValueError(f"{held!r} is no number of a tensor.")
    return held


def _key(key: Any) -> Any:
    hash(key)
    return key
