"""Guard: no collective while only one rank runs.

Owns the mode that makes a collective raise. It stands where every call of torch.distributed ends,
below whatever name it was imported under; code on other threads is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import InterventionError

_ROOMS = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "_dtensor")


class OneRankAlone(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, a collective raises `InterventionError`: the other ranks would not come to it."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace in _ROOMS and "wait_tensor" not in func.__name__:
            raise InterventionError(
                f"This function runs on the first rank alone, with the whole value, and it called "
                f"{func.name()}, which waits for all ranks. Give lv.call ranks='all' for code that "
                "every rank is to run."
            )
        # A split tensor first turns into collectives of its pieces, which are then seen here.
        if any(t.__name__ == "DTensor" for t in types):
            return NotImplemented
        run: Callable[..., Any] = func
        return run(*args, **kwargs or {})
