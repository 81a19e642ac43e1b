"""Any tensor as a plain, strided one.

Owns what it takes to read a tensor of an unusual kind (nested, sparse, quantized, eight-bit
floats, unsigned ints, complex) and the refusal of those that cannot be read. What is shown of the
numbers is up to the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

MAX_SPARSE_ELEMENTS = 1 << 28
"""A sparse tensor with more elements than this is not written out: 1 GiB in float32."""

CACHED_ELEMENTS = 1 << 18
"""Elements that a processor's cache holds as float64: work on pieces of these is several times
quicker than on pieces of millions (stats of 4096 x 4096: 38 ms against 235)."""
DEVICE_ELEMENTS = 1 << 24
"""Elements per piece elsewhere, where each piece costs a wait for the device."""

_FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
SMALL_FLOATS = {
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
_READABLE = _FLOATS | SMALL_FLOATS | _COMPLEX | _SMALL_INTS | _LARGE_INTS


def piece_elements(tensor: Tensor) -> int:
    """How many elements of a tensor are best worked on at a time."""
    return CACHED_ELEMENTS if tensor.device.type == "cpu" else DEVICE_ELEMENTS


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


def held_bytes(tensor: Tensor) -> int:
    """The bytes of memory that a tensor's values take, a sparse one's indices included."""
    if tensor.layout == torch.strided:
        return tensor.numel() * tensor.element_size()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        pointers = (tensor.crow_indices(), tensor.col_indices())
        return tensor.values().nbytes + sum(p.nbytes for p in pointers)
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        pointers = (tensor.ccol_indices(), tensor.row_indices())
        return tensor.values().nbytes + sum(p.nbytes for p in pointers)
    return tensor.numel() * tensor.element_size()


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
    if is_wide(tensor):
        return tensor.to(widest(tensor.device))
    return tensor.to(torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """The widest float that `device` computes in."""
    return torch.float32 if device.type == "mps" else torch.float64


def is_float(tensor: Tensor) -> bool:
    """Whether the dtype is one of the real floats, eight-bit ones included."""
    return tensor.dtype in _FLOATS | SMALL_FLOATS


def is_integral(tensor: Tensor) -> bool:
    """Whether the dtype is one of the ints (bool is not)."""
    return tensor.dtype in (_SMALL_INTS | _LARGE_INTS) - {torch.bool}


def is_wide(tensor: Tensor) -> bool:
    """Whether the dtype holds numbers that float32 cannot tell apart."""
    return tensor.dtype in {torch.float64, torch.complex128} | _LARGE_INTS


def is_magnitude(tensor: Tensor) -> bool:
    """Whether `real` shows magnitudes in place of the numbers."""
    return tensor.dtype in _COMPLEX


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
