"""Rows: the lines of the interventions table, and the interventions that they mean.

Owns the way from an `InterventionRow` (texts that a person edits) to an `Intervention` and back.
Whether a row fits the model is the session's to say; what it did is in the trace.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import InterventionError, LensError
from ..indices import index_text, parse_index
from ..interventions import (
    OPERATIONS,
    Intervention,
    add,
    clamp,
    noise,
    put,
    scale,
    zero,
)
from ..sites import Site
from ..sources import PatchSource
from .protocol import InterventionRow

MAX_ROWS = 100
MAX_TEXT = 400
"""Characters of a site, an index or a value in a row."""

_NUMBER = re.compile(
    r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)", re.ASCII
)
_FIELDS = {
    "id": str,
    "enabled": bool,
    "site": str,
    "operation": str,
    "index": str,
    "value": str,
}


@dataclass(frozen=True)
class Entry:
    """A row, and what it means: None where the row cannot be read (`row.error` says why).

    `base` is the intervention from code behind a locked row: it has the value that the row's text
    cannot hold. `origin` is what the value of a row that names a run or a variable was when the
    intervention was made from it (`origins.py`).
    """

    row: InterventionRow
    intervention: Intervention | None
    base: Intervention | None = None
    origin: Any = None

    @property
    def runs(self) -> bool:
        """Whether the next run has it."""
        return self.row.enabled and not self.row.error

    def failed(self, error: str) -> Entry:
        """The same entry, not to be run, for this reason; "" takes a reason back."""
        return replace(self, row=replace(self.row, error=error, changed=None))

    def did(self, changed: int | None) -> Entry:
        """The same entry after a run that changed so many elements by it."""
        return replace(self, row=replace(self.row, changed=changed))


def entry_of(intervention: Intervention) -> Entry:
    """The row that shows an intervention made in code, enabled."""
    value, locked = _value_text(intervention)
    row = InterventionRow(
        id=uuid.uuid4().hex[:12],
        enabled=True,
        site=intervention.site,
        operation=intervention.op,
        index=index_text(intervention.index),
        value=value,
        locked=locked,
    )
    return Entry(row, intervention, intervention if locked else None)


def read_rows(raw: Any) -> list[InterventionRow]:
    """The rows in a message of the page, which may hold anything.

    Raises:
        InterventionError: it is not a list of rows, or larger than a person would make.
    """
    if not isinstance(raw, list) or len(raw) > MAX_ROWS:
        raise InterventionError(f"The interventions are not a list of at most {MAX_ROWS} rows.")
    rows = [_read_row(r, i) for i, r in enumerate(raw)]
    ids = [r.id for r in rows]
    if len(set(ids)) < len(ids):
        raise InterventionError("Two rows of the interventions have one id.")
    return rows


def _read_row(raw: Any, position: int) -> InterventionRow:
    if not isinstance(raw, dict):
        raise InterventionError(f"Row {position} of the interventions is not an object.")
    for name, kind in _FIELDS.items():
        value = raw.get(name)
        if not isinstance(value, kind) or (isinstance(value, str) and len(value) > MAX_TEXT):
            raise InterventionError(
                f"Row {position} of the interventions: {name!r} is not a {kind.__name__} of at "
                f"most {MAX_TEXT} characters."
            )
    return InterventionRow(**{n: raw[n] for n in _FIELDS}, locked=bool(raw.get("locked")))


def entries_from(rows: Iterable[InterventionRow], before: Sequence[Entry]) -> list[Entry]:
    """What edited rows mean. A row that cannot be read carries its error and will not run."""
    known = {e.row.id: e for e in before}
    return [_entry_from(row, known.get(row.id)) for row in rows]


def _entry_from(row: InterventionRow, before: Entry | None) -> Entry:
    base = None if before is None else before.base
    if base is not None and before is not None:
        # What the page says of a locked row's value is not read.
        row = replace(row, operation=before.row.operation, value=before.row.value)
    row = replace(row, locked=base is not None, error="", changed=None)
    if before is not None and before.intervention and _texts(before.row) == _texts(row):
        return replace(before, row=row)
    try:
        if base is None and by_origin(row.operation, row.value):
            parse_index(row.index), _site(row)
            return Entry(row, None)  # made when it is looked up, at the run
        return Entry(row, _intervention(row, base), base)
    except LensError as error:
        return Entry(replace(row, error=str(error)), None, base)


def _texts(row: InterventionRow) -> tuple[str, ...]:
    return row.site, row.index, row.operation, row.value


def _intervention(row: InterventionRow, base: Intervention | None) -> Intervention:
    index = parse_index(row.index)
    if base is not None:
        return replace(base, site=str(Site.parse(row.site)), index=index)
    _site(row)
    make = _MAKERS.get(row.operation)
    if make is None:
        raise InterventionError(
            f"{row.operation!r} is not an operation that can be typed; use one of "
            f"{', '.join(_MAKERS)}, or make the intervention in code."
        )
    return make(row.site.strip(), row.value.strip(), index)


def _site(row: InterventionRow) -> str:
    if not row.site.strip():
        raise InterventionError("Name a site, for example 'model.layers.0.mlp'.")
    return str(Site.parse(row.site))


def by_origin(operation: str, value: str) -> bool:
    """Whether a row's value is the name of a variable or a run, to be looked up at each run."""
    text = value.strip()
    if operation in ("add", "put"):
        return text.isidentifier() and not _NUMBER.fullmatch(text)
    return operation in BY_ORIGIN


def merged(interventions: Iterable[Intervention], before: Sequence[Entry]) -> list[Entry]:
    """The table after code set the interventions that are on: rows that mean one of them stay
    (with their ids), rows that are off or cannot be read stay too, the others go."""
    fresh = list(interventions)
    kept: list[Entry] = []
    for entry in before:
        if not entry.row.enabled or entry.intervention is None:
            kept.append(entry)
            continue
        same = next((i for i in fresh if i is entry.intervention or _same(i, entry)), None)
        if same is not None:
            fresh.remove(same)
            base = None if entry.base is None else same
            kept.append(replace(entry, intervention=same, base=base))
    return [*kept, *(entry_of(i) for i in fresh)]


def _same(intervention: Intervention, entry: Entry) -> bool:
    value, locked = _value_text(intervention)
    texts = (intervention.site, index_text(intervention.index), intervention.op, value)
    return not locked and not entry.row.locked and texts == _texts(entry.row)


# --- values as text --------------------------------------------------------------------------


def _number(text: str, what: str) -> int | float:
    if not _NUMBER.fullmatch(text):
        raise InterventionError(f"{what} takes a number, such as 0.5 or -2, not {text!r}.")
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def _clamp(site: str, text: str, index: Any) -> Intervention:
    ends = [t.strip() for t in text.split(",")]
    if len(ends) != 2:
        raise InterventionError(f"clamp takes 'low, high', such as -1, 1; not {text!r}.")
    low, high = (_number(t, "clamp") if t else None for t in ends)
    return clamp(site, low, high, index)


def _noise(site: str, text: str, index: Any) -> Intervention:
    std, _, seed = (t.strip() for t in text.partition(","))
    if not re.fullmatch(r"[+-]?[0-9]+", seed):
        raise InterventionError(f"noise takes 'std, seed', such as 0.1, 0; not {text!r}.")
    return noise(site, _number(std, "noise"), int(seed), index)


def _zero(site: str, text: str, index: Any) -> Intervention:
    return zero(site, index)  # what stands in the value field of a zero means nothing


_MAKERS: dict[str, Callable[[str, str, Any], Intervention]] = {
    "zero": _zero,
    "scale": lambda site, text, index: scale(site, _number(text, "scale"), index),
    "add": lambda site, text, index: add(site, _number(text, "add"), index),
    "put": lambda site, text, index: put(site, _number(text, "put"), index),
    "clamp": _clamp,
    "noise": _noise,
}

BY_ORIGIN = ("patch", "project_out", "mean")
"""The operations that take a run or a variable, and no number."""

TYPED = tuple(op for op in OPERATIONS if op in _MAKERS or op in BY_ORIGIN)
"""The operations whose value a person can type; the others come from code."""


def _value_text(intervention: Intervention) -> tuple[str, bool]:
    """The value as text, and whether the row is locked since it has none."""
    args: Mapping[str, Any] = intervention.args
    if not all(v is None or isinstance(v, (int, float)) for v in args.values()):
        return ", ".join(map(_shown, args.values())), True
    texts = ["" if v is None else _write(v) for v in args.values()]
    return ", ".join(texts), intervention.op not in _MAKERS


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor {tuple(value.shape)}"
    return "a recorded run" if isinstance(value, PatchSource) else str(value)


def _write(value: Any) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))
