"""Layouts: a tensor of any layout as the plain tensors that a safetensors file can hold, and back.

Owns the forms: how sparse, nested and wide complex tensors are taken apart, and the refusal of
what cannot be. Bits are kept; devices are not (a file holds the CPU's).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import TraceFileError
from ..tensors.dense import full_shape, held_bytes

NAMES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    **{
        name: getattr(torch, dtype)
        for name, dtype in (
            ("F8_E4M3FNUZ", "float8_e4m3fnuz"),
            ("F8_E5M2FNUZ", "float8_e5m2fnuz"),
            ("F8_E8M0", "float8_e8m0fnu"),
        )
        if hasattr(torch, dtype)
    },
}
"""The dtypes that safetensors holds, by its names for them."""
_PLAIN = frozenset(NAMES.values())
_WIDE = {torch.complex128: torch.float64, torch.complex32: torch.float16}
"""Complex numbers that safetensors has no name for, and what their parts are stored as."""
_POINTERS: Mapping[torch.layout, tuple[str, str]] = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}

Put = Callable[[str, Tensor], str]
"""Stores a plain tensor under a name like the one given; the name it was stored under."""
Get = Callable[[str], Tensor]


def take_apart(name: str, tensor: Tensor, put: Put) -> str | dict[str, Any]:
    """Store `tensor` by plain ones; what `put_together` needs to make it again, as JSON: a name
    alone where it is plain itself.

    Raises:
        TraceFileError: a kind of tensor that cannot be stored; names it.
    """
    tensor = tensor.detach()
    if why := _why_not(tensor):
        raise TraceFileError(
            f"{name} is {why}, which a trace file cannot hold: leave the site out, or make it a "
            "plain tensor."
        )
    if tensor.is_nested:
        form = {"layout": "jagged" if tensor.layout == torch.jagged else "nested"}
        parts: Any = [take_apart(f"{name}//{i}", p, put) for i, p in enumerate(tensor.unbind())]
    elif tensor.layout == torch.sparse_coo:
        form = {"layout": "sparse_coo"}
        pieces = (tensor._indices(), tensor._values())
        parts = [take_apart(f"{name}//{i}", p, put) for i, p in enumerate(pieces)]
    elif tensor.layout in _POINTERS:
        form = {"layout": str(tensor.layout).removeprefix("torch.")}
        pointers = (getattr(tensor, p)() for p in _POINTERS[tensor.layout])
        pieces = (*pointers, tensor.values())
        parts = [take_apart(f"{name}//{i}", p, put) for i, p in enumerate(pieces)]
    elif tensor.dtype in _WIDE:
        form, parts = {"layout": "complex"}, [put(f"{name}//0", _halves(tensor))]
    else:
        return put(name, tensor)
    return {
        **form,
        "parts": parts,
        "size": list(full_shape(tensor)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "bytes": held_bytes(tensor),
        **({"coalesced": tensor.is_coalesced()} if tensor.layout == torch.sparse_coo else {}),
    }


def _why_not(tensor: Tensor) -> str:
    """What a tensor is, where it cannot be stored; else ""."""
    kind = type(tensor).__name__
    if hasattr(tensor, "placements"):
        return f"a {kind} that lies over several ranks"
    if tensor.is_meta:
        return "a tensor on the meta device, without values"
    if tensor.is_quantized:
        return f"a quantized tensor ({tensor.dtype})"
    if tensor.is_nested:
        ragged = getattr(tensor, "_ragged_idx", 1)
        lengths = getattr(tensor, "_lengths", None)
        return "" if ragged == 1 and lengths is None else "a jagged tensor seen as a view"
    if tensor.layout not in (torch.strided, torch.sparse_coo, *_POINTERS):
        return f"a {tensor.layout} tensor"
    if tensor.dtype not in _PLAIN and tensor.dtype not in _WIDE:
        return f"a tensor of dtype {tensor.dtype}"
    return ""


def _halves(tensor: Tensor) -> Tensor:
    """Real and imaginary parts in a last dim of 2."""
    return torch.view_as_real(tensor.resolve_conj())


def put_together(form: Any, get: Get) -> Tensor:
    """The inverse of `take_apart`.

    Raises:
        TypeError, ValueError, KeyError, RuntimeError: no form that `take_apart` makes.
    """
    if isinstance(form, str):
        return get(form)
    kind, size = form["layout"], tuple(form["size"])
    parts = [put_together(part, get) for part in form["parts"]]
    if kind == "complex":
        return torch.view_as_complex(parts[0].contiguous())
    if kind in ("nested", "jagged"):
        layout = torch.jagged if kind == "jagged" else torch.strided
        return torch.nested.as_nested_tensor(parts, layout=layout)
    if kind == "sparse_coo":
        made = torch.sparse_coo_tensor(parts[0], parts[1], size, check_invariants=True)
        return made._coalesced_(bool(form["coalesced"]))
    layouts = {str(layout).removeprefix("torch."): layout for layout in _POINTERS}
    outer, inner, values = parts
    return torch.sparse_compressed_tensor(
        outer, inner, values, size, layout=layouts[kind], check_invariants=True
    )
