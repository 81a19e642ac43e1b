"""Another call than the one that began a dataset: refused, and what differs is named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lensview as lv

from .toy import SITES, Letters, texts, toy

ITEMS = texts(30)


def extract(folder: Path, model: nn.Module | None = None, **changed: Any) -> lv.ActivationDataset:
    call: dict[str, Any] = {"items": ITEMS, "sites": SITES, "tokenizer": Letters()}
    call |= {"progress": False, **changed}
    return lv.extract_dataset(toy() if model is None else model, path=folder, **call)


def altered(change: Callable[[nn.Module], object]) -> nn.Module:
    model = toy()
    change(model)
    return model


class Capitals(Letters):
    def __call__(self, text: str) -> dict[str, list[int]]:
        return super().__call__(text.upper())


def one_weight(model: Any) -> None:
    with torch.no_grad():
        model.layers[1].out.weight[3, 4] += 1e-3


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"sites": ["layers.0"]}, ["sites", "keep"]),
        ({"keep": "last"}, ["keep"]),
        ({"dtype": torch.bfloat16}, ["keep"]),
        ({"tokenizer": Capitals()}, ["tokenizer"]),
        ({"max_tokens": 5}, ["reading"]),
        ({"interventions": lv.zero("layers.0", 0)}, ["interventions"]),
        ({"items": ITEMS[:-1]}, ["items"]),
        ({"items": [*ITEMS, "new"]}, ["items"]),
        ({"items": [ITEMS[1], ITEMS[0], *ITEMS[2:]]}, ["items"]),
        ({"model": altered(one_weight)}, ["weights"]),
        ({"model": altered(lambda m: m.train())}, ["train or eval mode"]),
        ({"model": altered(lambda m: m.double())}, ["weights"]),
    ],
)
def test_a_different_call(tmp_path: Path, changed: dict[str, Any], named: list[str]) -> None:
    extract(tmp_path / "acts")
    before = {p: p.read_bytes() for p in (tmp_path / "acts").rglob("*") if p.is_file()}
    with pytest.raises(lv.DatasetError) as told:
        extract(tmp_path / "acts", **changed)
    assert [part.partition(" (")[0] for part in told.value.differs] == named
    if "weights" in named and changed["model"].embed.weight.dtype == torch.float32:
        assert "layers.1.out.weight" in str(told.value)
    assert {p: p.read_bytes() for p in (tmp_path / "acts").rglob("*") if p.is_file()} == before


def test_the_config_is_named_by_its_members(tmp_path: Path, tiny_gpt2: Any) -> None:
    call = (["abc"], ["transformer.h.1"], tmp_path / "acts")
    options: dict[str, Any] = {"tokenizer": Letters(), "progress": False}
    lv.extract_dataset(tiny_gpt2, *call, **options)
    other = copy.deepcopy(tiny_gpt2)
    other.config.layer_norm_epsilon = 1e-3
    with pytest.raises(lv.DatasetError, match=r"config \(layer_norm_epsilon\)"):
        lv.extract_dataset(other, *call, **options)


def test_the_same_call_runs_nothing(tmp_path: Path) -> None:
    model, calls = toy(), []
    first = extract(tmp_path / "acts", model)
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "acts").rglob("*")}
    again = extract(tmp_path / "acts", model, batch_size=3)
    assert calls == []
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "acts").rglob("*")}
    assert torch.equal(first[3]["layers.1"], again[3]["layers.1"])


def test_weights_that_change_between_two_calls_in_one_process(tmp_path: Path) -> None:
    """In every way in which weights are written to."""
    for number, change in enumerate(
        (
            one_weight,
            lambda m: m.load_state_dict(toy(seed=1).state_dict()),
            lambda m: m.embed.weight.data.mul_(1.01),
            lambda m: setattr(m, "embed", nn.Embedding(101, 16)),
        )
    ):
        model, folder = toy(), tmp_path / f"acts{number}"
        extract(folder, model)
        extract(folder, model)
        change(model)
        with pytest.raises(lv.DatasetError, match="weights"):
            extract(folder, model)


def test_overwriting_is_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    extract(folder)
    fresh = extract(folder, items=ITEMS[:4], keep="last", overwrite=True)
    assert len(fresh) == 4 and fresh[0]["layers.0"].shape == (1, 16)
    with pytest.raises(lv.InputError, match="overwrite=True is for one process"):
        extract(folder, overwrite=True, rank=0, world_size=2)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    for overwrite in (False, True):
        with pytest.raises(lv.DatasetError, match="no dataset"):
            extract(tmp_path, overwrite=overwrite)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(lv.DatasetError, match=r"has no dataset\.json"):
        lv.open_dataset(tmp_path)


def test_a_function_that_nobody_can_know_again(tmp_path: Path) -> None:
    here = 3.0
    with pytest.raises(lv.InputError, match="cannot be told from another"):
        extract(tmp_path / "acts", interventions=lv.call("layers.0", lambda x: x * here))


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"keep": "frist"}, lv.InputError, "keep='frist'"),
        ({"keep": []}, lv.InputError, "positions"),
        ({"keep": {"layers.7": "last"}}, lv.SiteError, r"none of the sites.*Did you mean"),
        ({"dtype": torch.int32}, lv.InputError, "floating dtype"),
        ({"sites": ["layers.9"]}, lv.SiteError, "no module"),
        ({"items": "a text"}, TypeError, "items is a str"),
        ({"items": [("a", 1)]}, TypeError, "Item 0 is a tuple"),
        ({"items": [{"prompt": "a"}]}, lv.InputError, "text_key"),
        ({"items": [torch.tensor([500])]}, lv.InputError, "Item 0: token id 500"),
        ({"tokenizer": None}, lv.InputError, "no tokenizer"),
        ({"batch_size": 0}, lv.InputError, "batch_size"),
        ({"rank": 1}, lv.InputError, "go together"),
        ({"rank": 2, "world_size": 2}, lv.InputError, "not one of"),
    ],
)
def test_what_cannot_be_asked_for(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        extract(tmp_path / "acts", **changed)


def test_a_newer_format(tmp_path: Path) -> None:
    extract(tmp_path / "acts")
    place = tmp_path / "acts" / "dataset.json"
    place.write_text(place.read_text().replace('"format": 1', '"format": 9'))
    with pytest.raises(lv.DatasetError, match="format 9; this lensview reads up to 1"):
        lv.open_dataset(tmp_path / "acts")
