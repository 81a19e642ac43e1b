"""Portable: the arguments of an intervention as JSON and a table of tensors, both ways.

Owns how each kind of argument is written. What cannot travel is written as such and read back as
something that says so when it is used; nothing that is read runs code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .functions import Function
from .sources import INPUT, Given, PatchSource


class Foreign:
    """A value that could not be written where it was made; `text` is what it looked like."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def portable(value: Any) -> bool:
    """Whether an argument means the same in another process."""
    if isinstance(value, Function):
        return value.portable
    if isinstance(value, Given):
        return _plain(value.value)
    return not isinstance(value, Foreign)


def write(value: Any, tensors: dict[str, Tensor]) -> Any:
    """One argument as JSON; its tensors are added to `tensors`."""

    def kept(tensor: Tensor) -> str:
        name = f"tensor.{len(tensors)}"
        tensors[name] = tensor
        return name

    if isinstance(value, Tensor):
        return {"tensor": kept(value)}
    if isinstance(value, PatchSource):
        return {
            "records": {site: kept(t) for site, t in value.records.items()},
            "mask": None if value.mask is None else kept(value.mask),
            "whole": None if value.whole is None else kept(value.whole),
        }
    if isinstance(value, Function):
        if value.portable:
            told = {"function": value.name, "path": value.path, "source": value.source}
            return {**told, **({"ranks": "all"} if value.on_all else {})}
        return {"function": str(value), "portable": False}
    if isinstance(value, Given) and portable(value):
        return {"given": _write_part(value.value, tensors)}
    if isinstance(value, (Given, Foreign)):
        return {"value": str(value), "portable": False}
    if value is None or isinstance(value, int):
        return value
    # JSON has no NaN and no infinities.
    return float(value) if math.isfinite(value) else {"number": str(float(value))}


def read(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `write`."""
    if not isinstance(value, Mapping):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "number" in value:
        return float(value["number"])
    if "function" in value:
        path, source = value.get("path", ""), value.get("source", "")
        return Function(value["function"], path, source, on_all=value.get("ranks") == "all")
    if "given" in value:
        return Given(_read_part(value["given"], tensors))
    if "value" in value:
        return Foreign(value["value"])

    def named(name: str | None) -> Tensor | None:
        return None if name is None else tensors[name]

    records = {site: tensors[name] for site, name in value["records"].items()}
    return PatchSource(records, named(value["mask"]), named(value["whole"]))


def _plain(value: Any) -> bool:
    if type(value) in (tuple, list):
        return all(map(_plain, value))
    return value is None or isinstance(value, Tensor) or (isinstance(value, str) and value == INPUT)


def _write_part(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, (tuple, list)):
        return {type(value).__name__: [_write_part(v, tensors) for v in value]}
    return value if isinstance(value, str) else write(value, tensors)


def _read_part(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Mapping) and "tuple" in value:
        return tuple(_read_part(v, tensors) for v in value["tuple"])
    if isinstance(value, Mapping) and "list" in value:
        return [_read_part(v, tensors) for v in value["list"]]
    return read(value, tensors)
