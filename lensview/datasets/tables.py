"""Tables: a dataset of activations as Arrow and as xarray, for programs that know no lensview.

Owns the two conversions. Both are in memory: convert some positions at a time where a dataset is
large. bfloat16 and float8, which neither library has, become float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..extras import needed

if TYPE_CHECKING:
    from .reading import ActivationDataset


def arrow(dataset: ActivationDataset, positions: Sequence[int] | None = None) -> Any:
    """A ``pyarrow.Table`` with a row for each item.

    Columns: ``position`` int64, ``id`` (the caller's name as text, else the key), ``tokens`` (how
    many), and for each site a list over its rows of fixed-size lists of the values of one row, in
    C order where a row has several dims. The shape of a row and the dtype that was kept are in the
    column's metadata.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    pa = needed("pyarrow", "arrow")
    chosen = _chosen(dataset, positions)
    names, lengths = _names(dataset, chosen), dataset.lengths[chosen].numpy()
    fields = [("position", pa.int64()), ("id", pa.string()), ("tokens", pa.int64())]
    columns = [pa.array(chosen, pa.int64()), pa.array(names), pa.array(lengths)]
    schema = [pa.field(name, kind) for name, kind in fields]
    for site in dataset.sites:
        column, field = _column(pa, dataset, site, chosen)
        columns.append(column)
        schema.append(field)
    return pa.table(columns, schema=pa.schema(schema))


def _column(pa: Any, dataset: ActivationDataset, site: str, chosen: list[int]) -> tuple[Any, Any]:
    about = dataset.about_site(site)
    rows = _as_rows(dataset.read(site, chosen), about)
    counts = [len(one) for one in rows]
    flat = _numbers(torch.cat(rows) if rows else torch.zeros(0, *about["shape"]))
    width = int(np.prod(about["shape"], dtype=np.int64))
    values = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), max(width, 1))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    column = pa.LargeListArray.from_arrays(pa.array(starts), values)
    told = {"shape": str(about["shape"]), "dtype": about["dtype"]}
    return column, pa.field(site, column.type, metadata=told)


def xarray(dataset: ActivationDataset, positions: Sequence[int] | None = None) -> Any:
    """An ``xarray.Dataset`` with the items one after another.

    Each site is a variable over ``row`` and its features; where all tokens are kept everywhere the
    rows are those of all sites, with the coordinates ``item`` (the position in the input),
    ``token`` (within the item) and ``id``. Sites that keep something else have rows of their own,
    named ``row of <site>``.

    Raises:
        MissingExtraError: xarray is not installed.
    """
    xr = needed("xarray", "xarray")
    chosen = _chosen(dataset, positions)
    names = np.array(_names(dataset, chosen), dtype=object)
    common: list[int] | None = None
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for site in dataset.sites:
        about = dataset.about_site(site)
        rows = _as_rows(dataset.read(site, chosen), about)
        counts = [len(one) for one in rows]
        common = counts if common is None else common
        row, suffix = ("row", "") if counts == common else (f"row of {site}", f" of {site}")
        if f"item{suffix}" not in coordinates:
            at = np.repeat(np.arange(len(chosen)), counts)
            within = [np.arange(count) for count in counts]
            coordinates[f"item{suffix}"] = (row, np.array(chosen, dtype=np.int64)[at])
            coordinates[f"token{suffix}"] = (row, np.concatenate([[], *within]).astype(np.int64))
            coordinates[f"id{suffix}"] = (row, names[at].astype(str))
        features = [f"{site} {axis}" for axis in range(len(about["shape"]))]
        flat = torch.cat(rows) if rows else torch.zeros(0, *about["shape"])
        variables[site] = ([row, *features], _numbers(flat), {"dtype": about["dtype"]})
    return xr.Dataset(variables, coordinates)


def _as_rows(values: Sequence[Tensor], about: dict[str, Any]) -> list[Tensor]:
    """Each item's rows; an item's own value is one row, and none where it was skipped."""
    if about["form"] != "item":
        return list(values)
    width = len(about["shape"])
    return [value[None] if value.dim() == width else value for value in values]


def _chosen(dataset: ActivationDataset, positions: Sequence[int] | None) -> list[int]:
    length = len(dataset)
    chosen = range(length) if positions is None else positions
    return [int(i) % length if -length <= i < length else _refused(i, length) for i in chosen]


def _refused(position: int, length: int) -> int:
    raise IndexError(f"There is no item {position}: the dataset has {length}.")


def _names(dataset: ActivationDataset, chosen: Sequence[int]) -> list[str]:
    keys, ids = dataset.keys(), dataset.ids
    return [str(ids.get(i, keys[i])) for i in chosen]


def _numbers(tensor: Tensor) -> Any:
    plain = tensor.float() if tensor.dtype.is_floating_point and tensor.itemsize < 4 else tensor
    half = tensor.dtype == torch.float16
    return (tensor if half else plain).numpy()
