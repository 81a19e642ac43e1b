"""Convert: a trace as arrays, labelled arrays and tables of other libraries.

Owns what becomes of dtypes that they do not have, and of names and tokens. numpy has no bfloat16
and no float8: such values are widened to float32, which holds each of them exactly, and that is
stated where the result has room for it. Everything is a copy in memory of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..extras import needed
from ..tensors.dense import SMALL_FLOATS, dense
from .dims import dims_of

if TYPE_CHECKING:
    from .trace import Trace

_WIDENED = SMALL_FLOATS | {torch.bfloat16}


def as_numpy(tensor: Tensor, where: str) -> tuple[np.ndarray, str]:
    """A numpy array of a tensor's values, in memory of its own, and a remark.

    Every dtype that numpy has is kept; bfloat16 and the float8s become float32, complex32 becomes
    complex64: both hold every value exactly. Sparse values are written out.

    Raises:
        TypeError: a nested tensor, or a dtype that cannot be read; `where` is named.
    """
    if tensor.is_nested:
        raise TypeError(
            f"{where} is a nested tensor, which has no one array: convert its parts, "
            "[part.numpy() for part in tensor.unbind()]."
        )
    plain, remark = dense(tensor)
    told = str(plain.dtype).removeprefix("torch.")
    wide = None
    if plain.dtype in _WIDENED:
        wide = torch.float32
    elif plain.dtype == torch.complex32:
        wide = torch.complex64
    if wide is not None:
        plain = plain.to(wide)
        widened = f"{told} widened to {str(wide).removeprefix('torch.')}, exactly"
        remark = "; ".join(filter(None, (remark, widened)))
    return np.array(plain.cpu().numpy()), remark


def to_xarray(trace: Trace, sites: str | Iterable[str] | None) -> Any:
    """See `Trace.to_xarray`."""
    xarray = needed("xarray", "xarray")
    names: dict[tuple[str, int], str] = {}
    variables = {}
    for site in trace.chosen(sites):
        array, remark = as_numpy(trace[site], site)
        dims = tuple(map(_sized(names), dims_of(trace, site), array.shape))
        variables[site] = (dims, array, _told(trace, site, remark))
    used = {dim for dims, _, _ in variables.values() for dim in dims}
    return xarray.Dataset(variables, _coordinates(trace, used), _attributes(trace))


def _sized(names: dict[tuple[str, int], str]) -> Any:
    """A dim's name in a dataset, where one name has one size: the first size of "feature" has the
    name alone, others are "feature_1536"."""

    def name(dim: str, size: int) -> str:
        taken = any(known == dim for known, _ in names)
        numbered = dim.startswith("dim")
        return names.setdefault((dim, size), f"{dim}_{size}" if taken or numbered else dim)

    return name


def _told(trace: Trace, site: str, remark: str) -> dict[str, str]:
    """What is said of one variable; texts, as every file format takes them."""
    record = trace.record(site)
    told = {
        "dtype": str(trace.dtype(site)).removeprefix("torch."),
        "remark": remark,
        "kept": record.part,
        "placement": record.placement,
        "rows": trace.rows(site),
    }
    return {name: text for name, text in told.items() if text}


def _coordinates(trace: Trace, used: set[str]) -> dict[str, Any]:
    """Batch rows and token positions, with ids, labels and which tokens are real."""
    tokens = trace.tokens
    if tokens is None:
        return {}
    rows, length = tokens.ids.shape
    labels = np.full((rows, length), "", dtype=object)
    for row in range(rows):
        labels[row, tokens.positions(row)] = tokens.labels[row]
    found: dict[str, Any] = {}
    of_dims = {"batch": np.arange(rows), "token": np.arange(length), "key": np.arange(length)}
    found |= {dim: (dim, values) for dim, values in of_dims.items() if dim in used}
    grid = {
        "token_id": tokens.ids.numpy().copy(),
        "token_label": labels.astype(str),
        "token_real": tokens.mask.numpy().copy(),
    }
    if {"batch", "token"} <= used:
        found |= {name: (("batch", "token"), values) for name, values in grid.items()}
    if "flat_token" in used:
        found |= {f"flat_{n}": ("flat_token", values.reshape(-1)) for n, values in grid.items()}
        found["flat_batch"] = ("flat_token", np.arange(rows).repeat(length))
        found["flat_position"] = ("flat_token", np.tile(np.arange(length), rows))
    return found


def _attributes(trace: Trace) -> dict[str, str]:
    return {
        "model": str(trace.meta.get("model", "")),
        "interventions": "\n".join(map(str, trace.interventions)),
        "checks": "\n".join(map(str, trace.checks)),
        "meta": json.dumps(trace.meta, ensure_ascii=False),
    }


def to_pandas(trace: Trace, sites: str | Iterable[str] | None) -> Any:
    """See `Trace.to_pandas`."""
    pandas = needed("pandas", "pandas")
    made = pandas.DataFrame(list(statistics(trace, sites)), columns=COLUMNS)
    return made.astype({name: kind for name, kind in _KINDS.items() if kind}).set_index("site")


def to_arrow(trace: Trace, sites: str | Iterable[str] | None) -> Any:
    """See `Trace.to_arrow`."""
    pyarrow = needed("pyarrow", "arrow")
    of_kind = {"Int64": pyarrow.int64(), "float64": pyarrow.float64(), "": pyarrow.string()}
    fields = [(name, of_kind[_KINDS[name]]) for name in COLUMNS if name != "shape"]
    fields.insert(1, ("shape", pyarrow.list_(pyarrow.int64())))
    return pyarrow.Table.from_pylist(list(statistics(trace, sites)), schema=pyarrow.schema(fields))


_KINDS = {
    "site": "",
    "shape": "",
    "dtype": "",
    **dict.fromkeys(("count", "finite", "nan", "posinf", "neginf", "zeros"), "Int64"),
    **dict.fromkeys(("mean", "std", "min", "max", "absmax", "rms"), "float64"),
    "note": "",
    "placement": "",
}
COLUMNS = tuple(_KINDS)
"""The columns of a table of statistics, as in `tensors.stats.Stats`."""


def statistics(trace: Trace, sites: str | Iterable[str] | None) -> Iterator[dict[str, Any]]:
    """One row of `COLUMNS` per record, in the trace's order; then those kept as statistics only."""
    kept = trace.statistics if sites is None else ()
    for site in (*trace.chosen(sites), *kept):
        figures = trace.stats(site)
        placement = trace.placement(site) if site in trace else ""
        row = {"site": site, **asdict(figures), "placement": placement}
        yield {**row, "shape": list(figures.shape)}
