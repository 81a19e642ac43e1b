"""Storage: a trace as one safetensors file, and back.

Owns the file: each record's tensor under its site's text, tensors that belong to the run under
``//…`` names, everything else as JSON in the file's metadata. Nothing is ever unpickled. A file is
complete or absent: it is written beside its place and renamed. Tensors are read when they are
looked at, out of a memory map of the file.

`trace.output`, an arbitrary object, is not stored.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LensError, TraceFileError
from .description import FORMAT, describe, parts_of
from .layouts import NAMES, put_together
from .parts import Parts

MAX_HEADER = 64 << 20
"""Bytes of names and description that a file may have; a trace of 10,000 sites has under 8 MiB."""
_MAX_CONTAINERS = 4_000_000
"""Lists and objects in a description: each takes far more memory than its two bytes of text."""


def write(parts: Parts, path: str | PathLike[str]) -> None:
    """Write a trace to `path`.

    Tensors come back bit for bit, in their dtype, on the CPU; ones at several sites are stored
    once. A link is followed to the file that it names.

    Raises:
        TraceFileError: a record's kind of tensor cannot be stored; names the site.
        OSError: the place cannot be written.
    """
    from safetensors.torch import save_file

    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; name the file that the trace goes into.")
    table = _Table()
    body = json.dumps(describe(parts, table.put), ensure_ascii=False, allow_nan=False)
    # A lone surrogate, which a file name or a decoder can leave in a text, has no UTF-8.
    body = body.encode("utf-8", "backslashreplace").decode("utf-8")
    size = len(body.encode()) + sum(len(name.encode()) + 120 for name in table.tensors)
    if size > MAX_HEADER:
        raise TraceFileError(
            f"The description of this trace takes {size >> 20} MiB, and a file holds "
            f"{MAX_HEADER >> 20} MiB of it: capture fewer sites."
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    replacing(target, lambda part: save_file(table.tensors, part, {"lensview": body}))


def read(path: str | PathLike[str], tokenizer: Any, device: str | torch.device) -> Parts:
    """Read what `write` wrote; see `lensview.load`."""
    from safetensors import SafetensorError

    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no file {place}.")
    _check_header(place)
    try:
        file = _File(place, torch.device(device))
    except SafetensorError as error:
        raise TraceFileError(
            f"{place} is no whole safetensors file ({error}): it was cut short, or is something "
            "else. Nothing was read."
        ) from error
    body = _body(place, file.metadata)
    try:
        return parts_of(body, file.tensor, file.stored, tokenizer)
    except (
        LensError,
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise TraceFileError(
            f"{place} is not a trace as lensview writes it: {error!r:.300}."
        ) from error


class _Table:
    """The tensors of a file by name; the same values under two names are stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[object, ...], str] = {}
        self._held: list[Tensor] = []

    def put(self, name: str, tensor: Tensor) -> str:
        """Take a plain `tensor` in; the name under which the file has it."""
        # Held, so that the memory of one tensor is not given to another.
        self._held.append(tensor)
        flags = tensor.is_conj(), tensor.is_neg()
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        name = name.encode("utf-8", "backslashreplace").decode("utf-8")
        while name in self.tensors or name == "__metadata__":  # safetensors' own
            name += "'"
        known = self._known.setdefault((*key, *flags), name)
        if known == name:
            self.tensors[name] = _contiguous(tensor)
        return known


def _contiguous(tensor: Tensor) -> Tensor:
    """A contiguous tensor over memory of its own size, which is what safetensors can write."""
    ready = tensor.resolve_conj().resolve_neg().cpu().contiguous()
    whole = ready.untyped_storage().nbytes() == ready.nbytes
    return ready if whole else ready.clone()


def replacing(target: Path, write: Callable[[Path], object]) -> None:
    """Write beside `target` and rename: whoever looks finds the old file or the new one, also
    after the power went."""
    part = target.with_name(f".{target.name[-100:]}.{secrets.token_hex(6)}.part")
    try:
        with open(part, "xb") as file:  # an ordinary file's rights, by the umask
            rights = os.stat(file.fileno()).st_mode & 0o777
        write(part)
        os.chmod(part, rights)  # safetensors puts a file of its own there, for its owner alone
        _sync(part)
        os.replace(part, target)
        if os.name == "posix":
            _sync(target.parent)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ----------------------------------------------------------------------------------


def _check_header(place: Path) -> None:
    """Refuse a file that says it begins with more than a description can be, before reading it."""
    with open(place, "rb") as file:
        first = file.read(8)
    size = int.from_bytes(first, "little")
    if len(first) == 8 and size > MAX_HEADER:
        raise TraceFileError(
            f"{place} is no trace: it says that it begins with a header of {size:,} bytes, and "
            f"those of traces have at most {MAX_HEADER:,}. Nothing was read."
        )


class _File:
    """The tensors of an open file, read out of its memory map."""

    def __init__(self, place: Path, device: torch.device) -> None:
        from safetensors import safe_open

        self._place = place
        self._device = device
        self._made = _stamp(place)
        opened: Any = safe_open(place, framework="pt", device="cpu")
        self._open = opened
        self._names = frozenset(self._open.keys())
        self.metadata: dict[str, str] | None = self._open.metadata()

    def tensor(self, form: Any) -> Tensor:
        """The tensor of a stored form.

        Raises:
            TraceFileError: the file was written into, or its parts make no tensor.
        """
        self._check_unchanged()
        try:
            return put_together(form, self._plain).to(self._device)
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise TraceFileError(
                f"{self._place} holds parts that make no tensor: {error!r:.300}."
            ) from error

    def _plain(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(f"the file has no tensor {name!r:.80}")
        tensor: Tensor = self._open.get_tensor(name)
        return tensor

    def stored(self, form: Any) -> tuple[tuple[int, ...], torch.dtype, int]:
        """Shape, dtype and bytes of a stored form, its tensor unread."""
        if not isinstance(form, str):
            size, dtype = tuple(map(int, form["size"])), getattr(torch, form["dtype"])
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"{form['dtype']!r:.80} is no dtype")
            return size, dtype, int(form["bytes"])
        if form not in self._names:
            raise KeyError(f"the file has no tensor {form!r:.80}")
        told = self._open.get_slice(form)
        shape, dtype = tuple(told.get_shape()), NAMES[told.get_dtype()]
        return shape, dtype, math.prod(shape) * dtype.itemsize

    def _check_unchanged(self) -> None:
        """A file that was replaced is still there for us; one that was written into is not.

        Raises:
            TraceFileError: it was.
        """
        try:
            now = _stamp(self._place)
        except OSError:
            return
        if now[:2] == self._made[:2] and now != self._made:
            raise TraceFileError(
                f"{self._place} was written into since it was loaded, and what it holds now is "
                "not what was there. Load it again."
            )


def _stamp(place: Path) -> tuple[int, ...]:
    """Which file stands at a place, and when it was written."""
    found = os.stat(place)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _body(place: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    text = (metadata or {}).get("lensview")
    if text is None:
        raise TraceFileError(f"{place} is a safetensors file, but not a trace of lensview.")
    if text.count("[") + text.count("{") > _MAX_CONTAINERS:
        raise TraceFileError(f"{place} is no trace: its description has too many parts to be one.")
    try:
        body = json.loads(text, parse_constant=_no_number)
        written = body["format"]
        if type(written) is not int:
            raise TypeError(f"its format is {written!r:.80}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceFileError(
            f"{place}: its description cannot be read ({error!r:.200})."
        ) from error
    if written > FORMAT:
        raise TraceFileError(
            f"{place} has format {written}; this lensview reads up to {FORMAT}. Upgrade lensview."
        )
    return dict(body)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number in JSON")
