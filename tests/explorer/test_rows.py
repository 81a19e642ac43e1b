"""The table's lines and what they mean."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

import lensview as lv
from lensview.explorer.rows import Entry, entries_from, entry_of, merged, read_rows

SITE = "model.layers.1.mlp"


@pytest.mark.parametrize(
    ("edit", "value", "index"),
    [
        (lv.zero(SITE), "", ""),
        (lv.scale(SITE, 0.1), "0.1", ""),
        (lv.scale(SITE, -2, (0, slice(1, 3))), "-2", "0, 1:3"),
        (lv.add(SITE, 1e-7, (Ellipsis, -1)), "1e-07", "..., -1"),
        (lv.put(SITE, float("inf")), "inf", ""),
        (lv.clamp(SITE, -1, 1.5), "-1, 1.5", ""),
        (lv.clamp(SITE, None, 3), ", 3", ""),
        (lv.noise(SITE, 0.1, -3), "0.1, -3", ""),
        (lv.zero(SITE, lv.at(token=-1)), "", "at(token=-1)"),
        (lv.zero(r"a\.b:input[x]@1"), "", ""),
    ],
)
def test_there_and_back(edit: lv.Intervention, value: str, index: str) -> None:
    row = entry_of(edit).row
    assert (row.value, row.index, row.locked, row.enabled) == (value, index, False, True)
    (back,) = entries_from(read_rows([asdict(row)]), [])
    assert back.intervention is not None and back.runs
    assert (back.intervention.op, back.intervention.site) == (edit.op, edit.site)
    assert back.intervention.index == edit.index
    assert dict(back.intervention.args) == dict(edit.args)
    assert entry_of(back.intervention).row.value == value


def test_an_untouched_row_keeps_its_intervention() -> None:
    before = [entry_of(lv.scale(SITE, 0.5))]
    row = asdict(before[0].row)
    (same,) = entries_from(read_rows([{**row, "enabled": False}]), before)
    assert same.intervention is before[0].intervention and not same.runs
    (other,) = entries_from(read_rows([{**row, "value": "0.25"}]), before)
    assert other.intervention is not before[0].intervention
    assert other.row.id == before[0].row.id


@pytest.mark.parametrize("text", ["", "1_000", "0x10", "1e", "--1", "1 2", "one", "٣", "1,5"])
def test_what_is_no_number(text: str) -> None:
    row = {**asdict(entry_of(lv.scale(SITE, 1)).row), "value": text}
    (entry,) = entries_from(read_rows([row]), [])
    assert entry.intervention is None and "takes a number" in entry.row.error and not entry.runs


@pytest.mark.parametrize("text", ["", "0.1", "0.1, ", "0.1, 1.5", "a, 1", "-1, 0", "1, 2, 3"])
def test_what_is_no_noise(text: str) -> None:
    row = {**asdict(entry_of(lv.noise(SITE, 1, 0)).row), "value": text}
    (entry,) = entries_from(read_rows([row]), [])
    assert entry.intervention is None and "noise" in entry.row.error


@pytest.mark.parametrize(
    "make",
    [
        lambda: lv.add(SITE, torch.ones(3)),
        lambda: lv.put(SITE, torch.tensor(2.0)),
        lambda: lv.patch(SITE, torch.ones(2, 3)),
        lambda: lv.patch(SITE, {SITE: torch.ones(2, 3)}),
        lambda: lv.project_out(SITE, torch.ones(3)),
        lambda: lv.mean(SITE, torch.ones(2, 3)),
        lambda: lv.call(SITE, lambda t: t),
        lambda: lv.skip(SITE, ("input", None)),
    ],
)
def test_a_locked_row_survives_an_index_that_cannot_be_read(make: Any) -> None:
    edit = make()
    entry = entry_of(edit)
    assert entry.row.locked
    row = asdict(entry.row)
    (broken,) = entries_from(read_rows([{**row, "index": "?"}]), [entry])
    assert broken.intervention is None and broken.row.locked and broken.row.error
    (mended,) = entries_from(read_rows([{**row, "index": "0"}]), [broken])
    assert mended.intervention is not None
    assert mended.intervention.args is edit.args


def ids(entries: list[Entry]) -> list[str]:
    return [e.row.id for e in entries]


def test_merging_what_code_set() -> None:
    a, b, c = lv.zero("a"), lv.scale("b", 2), lv.add("c", torch.ones(1))
    before = merged((a, b, c), [])
    off = entries_from([], before)
    assert off == []
    assert ids(merged((a, b, c), before)) == ids(before)
    assert ids(merged((c, lv.scale("b", 2)), before)) == ids(before)[1:]
    changed = merged((a, lv.scale("b", 3)), before)
    assert ids(changed)[0] == ids(before)[0] and ids(changed)[1] not in ids(before)
    twice = merged((a, a), before)
    assert len(twice) == 2 and len(set(ids(twice))) == 2
