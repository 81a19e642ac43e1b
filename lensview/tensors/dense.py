"""Any tensor as a plain, strided one; one element as text; two tensors as their difference.

Owns what it takes to read a tensor of an unusual kind (nested, sparse, quantized, eight-bit
floats, unsigned ints, complex) and the refusal of those that cannot be read. What is shown of the
numbers is up to the neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

MAX_SPARSE_ELEMENTS = 1 << 28
"""A sparse tensor with more elements than this is not written out: 1 GiB in float32."""

_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_SMALL_FLOATS = {
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
}
_COMPLEX = {torch.complex32, torch.complex64, torch.complex128}
_SMALL_INTS = {torch.uint8, torch.int8, torch.int16, torch.uint16, torch.bool}
_LARGE_INTS = {torch.int32, torch.int64, torch.uint32, torch.uint64}
_READABLE = _FLOATS | _SMALL_FLOATS | _COMPLEX | _SMALL_INTS | _LARGE_INTS

_ROUND_TRIP_DIGITS = 17
"""Decimal digits that tell any two float64 apart."""


def dtype_text(tensor: Tensor) -> str:
    """The dtype as people write it: ``float32``, without ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")


def full_shape(tensor: Tensor) -> tuple[int, ...]:
    """The shape, with the longest component's sizes where a nested tensor is ragged."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    parts = tensor.unbind()
    sizes = [tuple(p.shape) for p in parts] or [(0,) * (tensor.dim() - 1)]
    return (len(parts), *(max(dim) for dim in zip(*sizes, strict=True)))


def dense(tensor: Tensor) -> tuple[Tensor, str]:
    """`tensor` as a plain strided tensor of a dtype that can be read, and a remark.

    Nothing is copied where the tensor is plain already. Nested tensors are for the caller: their
    components (``unbind``) are plain.

    Returns:
        the tensor, on its own device, detached; and what was done to it ("dequantized from
        qint8"), or "".

    Raises:
        TypeError: a kind of tensor, or a dtype, that cannot be read.
        ValueError: a sparse tensor too large to be written out.
    """
    if hasattr(tensor, "placements"):
        raise TypeError(
            f"A {type(tensor).__name__} of shape {tuple(tensor.shape)} lies over several ranks. "
            "Gather it first: what one rank holds is not the whole."
        )
    if tensor.is_meta:
        raise TypeError(
            f"A tensor of shape {tuple(tensor.shape)} on the meta device has no values to show."
        )
    tensor, remark = _strided(tensor.detach())
    if tensor.dtype not in _READABLE:
        raise TypeError(
            f"Tensors of dtype {dtype_text(tensor)} (shape {tuple(tensor.shape)}) cannot be read "
            "element by element. Unpack or dequantize the tensor first."
        )
    return tensor.resolve_conj().resolve_neg(), remark


def _strided(tensor: Tensor) -> tuple[Tensor, str]:
    if tensor.is_nested:
        raise TypeError("A nested tensor has no single dense form: read its components.")
    if tensor.is_quantized:
        return tensor.dequantize(), f"dequantized from {dtype_text(tensor)}"
    if tensor.layout == torch.strided:
        return tensor, ""
    layout = str(tensor.layout).removeprefix("torch.")
    if tensor.numel() > MAX_SPARSE_ELEMENTS:
        raise ValueError(
            f"A {layout} tensor of shape {tuple(tensor.shape)} is too large to be written out "
            f"({tensor.numel():,} elements; the limit is {MAX_SPARSE_ELEMENTS:,}). "
            "Slice it first."
        )
    return tensor.to_dense(), f"{layout} tensor, written out"


def components(tensor: Tensor) -> Iterator[Tensor]:
    """The dense tensors that hold `tensor`'s values: itself, or a nested tensor's components."""
    if not tensor.is_nested:
        yield dense(tensor)[0]
        return
    for part in tensor.detach().unbind():
        yield from components(part)


def real(tensor: Tensor) -> Tensor:
    """A dense tensor in float32 or float64, whichever loses nothing worth seeing.

    Floats up to 32 bits and ints up to 16 become float32 (exact); larger ones float64 (ints
    beyond 2^53 are rounded), or float32 on devices that have no float64. Complex numbers become
    their magnitudes.
    """
    if tensor.dtype in _COMPLEX:
        single = tensor.to(torch.complex64) if tensor.dtype == torch.complex32 else tensor
        return single.abs()
    if tensor.dtype == torch.float64 or tensor.dtype in _LARGE_INTS:
        return tensor.to(widest(tensor.device))
    return tensor.to(torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """The widest float that `device` computes in."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_integral(tensor: Tensor) -> bool:
    """Whether the dtype is one of the ints (bool is not)."""
    return tensor.dtype in (_SMALL_INTS | _LARGE_INTS) - {torch.bool}


def is_magnitude(tensor: Tensor) -> bool:
    """Whether `real` shows magnitudes in place of the numbers."""
    return tensor.dtype in _COMPLEX


# --- two tensors -----------------------------------------------------------------------------


def difference(a: Tensor, b: Tensor) -> Tensor:
    """``a - b``, exact enough to be shown.

    Ints are subtracted in int64 (in float64 where that would overflow), bools and small floats
    in float32, float64 in float64, complex in complex. Two infinities of one sign differ by 0,
    so that the masked places of an attention mask do not show as NaN; NaN differs from everything
    by NaN. `b` is moved to the device of `a`. Two nested tensors give a nested one.

    Raises:
        ValueError: the shapes differ.
        TypeError: a kind of tensor that cannot be read.
    """
    if a.is_nested and b.is_nested:
        left, right = a.detach().unbind(), b.detach().unbind()
        if [p.shape for p in left] == [p.shape for p in right]:
            parts = [difference(p, q) for p, q in zip(left, right, strict=True)]
            return torch.nested.as_nested_tensor(parts, layout=a.layout)
    if a.is_nested or b.is_nested or a.shape != b.shape:
        raise ValueError(
            f"Tensors of shapes {full_shape(a)} and {full_shape(b)} have no difference: it is "
            "taken element by element. Runs on prompts of different length differ in shape."
        )
    x, y = dense(a)[0], dense(b)[0].to(a.device)
    if is_integral(x) and is_integral(y):
        return _int_difference(x, y)
    kind = _difference_dtype(x, y)
    x, y = x.to(kind), y.to(kind)
    result = x - y
    if not kind.is_complex:
        result.masked_fill_(x.isinf() & (x == y), 0)
    return result


def _difference_dtype(x: Tensor, y: Tensor) -> torch.dtype:
    wide = any(
        t.dtype in {torch.float64, torch.complex128} or t.dtype in _LARGE_INTS for t in (x, y)
    )
    wide = wide and widest(x.device) == torch.float64
    if x.is_complex() or y.is_complex():
        return torch.complex128 if wide else torch.complex64
    return torch.float64 if wide else torch.float32


def _int_difference(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.to(torch.int64), y.to(torch.int64)
    result = a - b
    wrapped = ((a ^ b) & (a ^ result)) < 0
    if wrapped.any() or torch.uint64 in (x.dtype, y.dtype):
        wide = widest(x.device)
        return x.to(wide) - y.to(wide)
    return result


# --- one element -----------------------------------------------------------------------------


def element(tensor: Tensor, index: Sequence[int]) -> str:
    """One element exactly: the shortest text that reads back as the same value of its dtype.

    Args:
        index: one int per dim; negatives count from the end.

    Returns:
        ``"0.1"`` (a float32 too), ``"-0.0"``, ``"nan"``, ``"inf"``, ``"12"``, ``"True"``,
        ``"(1.5-2j)"``.

    Raises:
        IndexError: out of range, or not one int per dim.
        TypeError: a kind of tensor that cannot be read.
    """
    shape = full_shape(tensor)
    if len(index) != len(shape):
        raise IndexError(
            f"An element of a tensor of shape {shape} has {len(shape)} indices, not "
            f"{len(index)}: {tuple(index)}."
        )
    if tensor.is_nested:
        checked = within(index[0], 0, shape)
        return element(tensor.detach().unbind()[checked], index[1:])
    plain, _ = dense(tensor)
    cell = plain[tuple(within(i, dim, shape) for dim, i in enumerate(index))]
    if cell.is_complex():
        wide = cell.to(torch.complex128).item()
        part = {torch.complex32: torch.float16, torch.complex64: torch.float32}.get(cell.dtype)
        parts = [_shortest(x, part or torch.float64) for x in (wide.real, wide.imag)]
        return f"({parts[0]}{'' if parts[1].startswith('-') else '+'}{parts[1]}j)"
    if cell.dtype in _FLOATS | _SMALL_FLOATS:
        return _shortest(float(cell.item()), cell.dtype)
    return str(cell.item())


def within(index: int, dim: int, shape: Sequence[int]) -> int:
    """`index` counted from the front.

    Raises:
        IndexError: it is out of range for `dim`.
    """
    size = shape[dim]
    if not -size <= index < size:
        raise IndexError(
            f"Index {index} is out of range for dim {dim} of size {size} (shape {tuple(shape)}). "
            "Indices are never clipped."
        )
    return index % size


def _shortest(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return str(value)
    for digits in range(1, _ROUND_TRIP_DIGITS):
        text = f"{value:.{digits}g}"
        back = torch.tensor(float(text), dtype=torch.float64).to(dtype)
        if back.to(torch.float64).item() == value:
            return repr(float(text))
    return repr(value)
