"""Rows: what tensor parallelism adds to the lines of a model's tree.

Owns the remark on each row of a model that is split over ranks: its style, and how its weight lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from ..modules import ModuleRow
from .styles import Split, is_sharded, sharding, splits


def placed(
    rows: list[ModuleRow], model: nn.Module, modules: Mapping[str, nn.Module]
) -> list[ModuleRow]:
    """The rows with their remarks, "colwise, weight in 2 shards of dim 0"; unchanged for a model in
    one process. Shapes and counts are those of the whole in any case."""
    if not is_sharded(model):
        return rows
    how = sharding(model)
    return [
        replace(row, note=", ".join(_notes(row, modules[row.path], how.styles, how.ranks)))
        for row in rows
    ]


def _notes(
    row: ModuleRow, module: nn.Module, styles: Mapping[str, str], ranks: int
) -> Iterator[str]:
    if row.note:
        yield row.note
    if style := styles.get(row.path):
        yield style
    for name, split in splits(module).items():
        yield f"{name} in {ranks} {_kind(split)} of dim {split.dim}"


def _kind(split: Split) -> str:
    return "shards" if split.parts == 1 else f"packed shards ({split.parts} parts)"
