"""Names of ops: what a torch function is called in a site.

Owns the table from Python's special methods to public names, and the list of what is no op. Methods
and functions of one op share a name; an in-place op ends in an underscore.
"""

from __future__ import annotations

from typing import Any

_SPECIAL = {
    "__abs__": "abs",
    "__add__": "add",
    "__and__": "bitwise_and",
    "__div__": "div",
    "__eq__": "eq",
    "__floordiv__": "floor_divide",
    "__ge__": "ge",
    "__getitem__": "getitem",
    "__gt__": "gt",
    "__iadd__": "add_",
    "__iand__": "bitwise_and_",
    "__idiv__": "div_",
    "__ifloordiv__": "floor_divide_",
    "__ilshift__": "bitwise_left_shift_",
    "__imod__": "remainder_",
    "__imul__": "mul_",
    "__invert__": "bitwise_not",
    "__ior__": "bitwise_or_",
    "__ipow__": "pow_",
    "__irshift__": "bitwise_right_shift_",
    "__isub__": "sub_",
    "__itruediv__": "div_",
    "__ixor__": "bitwise_xor_",
    "__le__": "le",
    "__lshift__": "bitwise_left_shift",
    "__lt__": "lt",
    "__matmul__": "matmul",
    "__mod__": "remainder",
    "__mul__": "mul",
    "__ne__": "ne",
    "__neg__": "neg",
    "__or__": "bitwise_or",
    "__pos__": "positive",
    "__pow__": "pow",
    "__radd__": "add",
    "__rand__": "bitwise_and",
    "__rmul__": "mul",
    "__ror__": "bitwise_or",
    "__rshift__": "bitwise_right_shift",
    "__rxor__": "bitwise_xor",
    "__setitem__": "setitem",
    "__sub__": "sub",
    "__truediv__": "div",
    "__xor__": "bitwise_xor",
    # These take their operands the other way round, so they are not the same op.
    "__rdiv__": "rdiv",
    "__rfloordiv__": "rfloor_divide",
    "__rlshift__": "rbitwise_left_shift",
    "__rmatmul__": "rmatmul",
    "__rmod__": "rremainder",
    "__rpow__": "rpow",
    "__rrshift__": "rbitwise_right_shift",
    "__rsub__": "rsub",
    "__rtruediv__": "rdiv",
}

_QUESTIONS = frozenset(
    "_set_grad_enabled allclose backward data_ptr dense_dim dim element_size equal get_device "
    "has_names is_coalesced is_complex is_conj is_contiguous is_distributed is_floating_point "
    "is_inference is_neg is_nonzero is_pinned is_same_size is_set_to is_shared is_signed item "
    "ndimension nelement numel numpy register_hook retain_grad size sparse_dim storage "
    "storage_offset storage_type stride tolist type_as_string untyped_storage".split()
)
"""Functions whose result is never a tensor; any other that returns none is passed over when it
does."""


def op_name(function: Any) -> str | None:
    """The name of a torch function's op, or None: what reads a property or asks a question."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or name in _QUESTIONS:
        return None
    if name.startswith("__") and name.endswith("__"):
        return _SPECIAL.get(name)
    # An overload of a registered op is called add.Tensor; some public functions are thin names for
    # a private one (_grouped_mm).
    return name.partition(".")[0].lstrip("_")


def op_text(name: str, k: int) -> str:
    """The op as a site writes it: ``matmul``, ``matmul.1``."""
    return f"{name}.{k}" if k else name
