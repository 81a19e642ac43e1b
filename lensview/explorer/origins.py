"""Origins: where a row's value comes from when it is no number.

Owns the texts ``run 3`` and ``run 3 baseline`` and the names of the user's variables, and the
look-up of both at the moment of a run. Whether the value fits is for the run to say.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InterventionError, LensError, near
from ..indices import parse_index
from ..interventions import Intervention, add, mean, patch, project_out, put
from ..traces.trace import Trace
from .bodies import NamedValue
from .rows import Entry, by_origin
from .timeline import Timeline

MAX_NAMES = 60
RUN_TEXT = re.compile(r"run\s*(\d{1,9})(\s+baseline)?", re.IGNORECASE)
_MAKERS: Mapping[str, Callable[[str, Any, Any], Intervention]] = {
    "add": add,
    "put": put,
    "patch": patch,
    "mean": mean,
    "project_out": project_out,
}
_FROM_RUNS = ("patch", "mean")


def namespace() -> Mapping[str, Any]:
    """The variables of the user's notebook; none outside IPython."""
    return _names() or {}


def keep(name: str, value: Any) -> None:
    """Leave a value in the user's notebook under a name; outside IPython there is none."""
    names = _names()
    if names is not None:
        names[name] = value


def _names() -> dict[str, Any] | None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return None if shell is None else shell.user_ns


class Origins:
    """What rows of one explorer may take their values from."""

    def __init__(
        self, timeline: Timeline, names: Callable[[], Mapping[str, Any]] = namespace
    ) -> None:
        self._timeline = timeline
        self._names = names

    def settle(self, entry: Entry) -> Entry:
        """The entry with its intervention made from what its value names *now*. One whose value is
        the same as before keeps its intervention."""
        row = entry.row
        if entry.base is not None or not by_origin(row.operation, row.value):
            return entry
        try:
            value = self._value(row.operation, row.value.strip())
            if entry.intervention is not None and _same(entry.origin, value):
                return entry
            held = value.detach().clone() if isinstance(value, Tensor) else value
            made = _MAKERS[row.operation](row.site.strip(), held, parse_index(row.index))
        except LensError as error:
            failed = replace(row, error=str(error), changed=None)
            return replace(entry, row=failed, intervention=None, origin=None)
        origin = held if isinstance(held, Tensor) else weakref.ref(held)
        return replace(entry, row=replace(row, error=""), intervention=made, origin=origin)

    def _value(self, operation: str, text: str) -> Tensor | Trace:
        if (run := RUN_TEXT.fullmatch(text)) and operation in _FROM_RUNS:
            return self._timeline.held(int(run[1]), bool(run[2]))
        if not text.isidentifier():
            wanted = "the name of a tensor in your notebook, such as direction"
            if operation in _FROM_RUNS:
                wanted = "an earlier run, such as 'run 1', or the name of a variable"
            raise InterventionError(f"{operation} takes {wanted}; not {text!r}.")
        names = self._names()
        if text not in names:
            raise InterventionError(
                f"{operation}: there is no variable {text!r} in your notebook."
                f"{near(text, [n for n, v in names.items() if _offers(operation, v)])}"
            )
        return _usable(operation, text, names[text])

    def fitting(self, operation: str, size: int | None) -> list[NamedValue]:
        """Variables that `operation` may take where a value's last dim has `size` elements (None:
        nobody knows); those that fit come first, no more than `MAX_NAMES`."""
        found = []
        for name, value in list(self._names().items()):
            if not isinstance(name, str) or name.startswith("_") or not _offers(operation, value):
                continue
            fits = isinstance(value, Trace) or size is None or value.shape[-1:] == (size,)
            single = isinstance(value, Tensor) and value.dim() == 1
            if not fits and single:
                continue
            found.append(((not fits, not single, name), NamedValue(name[:200], _about(value))))
        return [named for _, named in sorted(found, key=lambda pair: pair[0])][:MAX_NAMES]


def _same(origin: Any, value: Tensor | Trace) -> bool:
    if isinstance(origin, weakref.ref):
        return origin() is value
    alike = isinstance(origin, Tensor) and isinstance(value, Tensor)
    return (
        alike
        and (origin.shape, origin.dtype, origin.device) == (value.shape, value.dtype, value.device)  # type: ignore[union-attr]
        and torch.equal(origin, value.detach())  # type: ignore[union-attr]
    )


def _offers(operation: str, value: Any) -> bool:
    if isinstance(value, Trace):
        return operation in _FROM_RUNS
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
        return False
    if value.device.type == "meta" or not (value.is_floating_point() or value.is_complex()):
        return False
    return value.dim() == 1 if operation == "project_out" else value.dim() >= 1


def _usable(operation: str, name: str, value: Any) -> Tensor | Trace:
    if _offers(operation, value):
        return value  # type: ignore[no-any-return]
    wants = "a tensor of 1 dim" if operation == "project_out" else "a tensor of floats"
    if operation in _FROM_RUNS:
        wants = "a Trace, a run such as 'run 1', or a tensor of floats"
    hint = ""
    if type(value).__module__.partition(".")[0] == "numpy":
        hint = f" Make one: torch.from_numpy({name})."
    raise InterventionError(f"{operation}: {name} is {_about(value)}; it takes {wants}.{hint}")


def _about(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype} {' x '.join(map(str, value.shape)) or 'scalar'}"
    if isinstance(value, Trace):
        return f"a trace of {len(value.sites)} sites"
    return f"a {type(value).__name__}"
