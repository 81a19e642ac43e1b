"""The forms in which items come: each gives the same dataset, and the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import lensview as lv
from lensview.datasets.items import read_item
from lensview.datasets.keys import Counter

from .conftest import assert_equal
from .toy import SITES, Letters, texts, toy

TEXTS = texts(30)
IDS = [Letters()(text)["input_ids"] for text in TEXTS]


def extract(folder: Path, items: Any, **more: Any) -> lv.ActivationDataset:
    more = {"tokenizer": Letters(), "progress": False, **more}
    return lv.extract_dataset(toy(), items, SITES, folder, **more)


class Mapped(Dataset[Any]):
    """A map-style dataset of torch, which ends by no IndexError."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i % len(self.rows)]


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(TEXTS)


def padded(ids: list[int], side: str = "right") -> dict[str, Any]:
    missing = [0] * (24 - len(ids))
    real = [1] * len(ids)
    row, mask = ([*ids, *missing], [*real, *missing])
    if side == "left":
        row, mask = ([*missing, *ids], [*missing, *real])
    return {"input_ids": torch.tensor(row), "attention_mask": torch.tensor(mask)}


def hub() -> Any:
    from datasets import Dataset as HubDataset

    return HubDataset.from_dict({"text": TEXTS, "label": list(range(30))})


OF_TEXT = {
    "a tuple": lambda: tuple(TEXTS),
    "a generator": lambda: (text for text in TEXTS),
    "dicts": lambda: [{"text": text, "label": i} for i, text in enumerate(TEXTS)],
    "datasets.Dataset": hub,
    "Dataset": lambda: Mapped(list(TEXTS)),
    "Dataset of dicts": lambda: Mapped([{"text": text} for text in TEXTS]),
    "IterableDataset": Streamed,
    "DataLoader": lambda: DataLoader(Mapped(list(TEXTS)), batch_size=7),
    "DataLoader without batches": lambda: DataLoader(Mapped(list(TEXTS)), batch_size=None),
    "DataLoader of dicts": lambda: DataLoader(Mapped([{"text": t} for t in TEXTS]), batch_size=4),
    "DataLoader of lists": lambda: DataLoader(Mapped(list(TEXTS)), batch_size=4, collate_fn=list),
}
OF_IDS = {
    "lists": lambda: IDS,
    "tensors": lambda: [torch.tensor(ids) for ids in IDS],
    "a row each": lambda: [torch.tensor([ids]) for ids in IDS],
    "arrays": lambda: [np.array(ids) for ids in IDS],
    "padded on the right": lambda: [padded(ids) for ids in IDS],
    "padded on the left": lambda: [padded(ids, "left") for ids in IDS],
    "DataLoader of padded ones": lambda: DataLoader(Mapped([padded(i) for i in IDS]), batch_size=8),
}


@pytest.fixture(scope="module")
def by_texts(tmp_path_factory: pytest.TempPathFactory) -> lv.ActivationDataset:
    return extract(tmp_path_factory.mktemp("items") / "texts", TEXTS)


@pytest.fixture(scope="module")
def by_ids(tmp_path_factory: pytest.TempPathFactory) -> lv.ActivationDataset:
    items = [{"input_ids": ids} for ids in IDS]
    return extract(tmp_path_factory.mktemp("items") / "ids", items)


@pytest.mark.parametrize("form", OF_TEXT)
def test_texts(by_texts: lv.ActivationDataset, tmp_path: Path, form: str) -> None:
    found = extract(tmp_path / "a", OF_TEXT[form]())
    assert_equal(found, by_texts)
    assert extract(tmp_path / "a", OF_TEXT[form]()).keys() == found.keys()


@pytest.mark.parametrize("form", OF_IDS)
def test_ids(by_ids: lv.ActivationDataset, tmp_path: Path, form: str) -> None:
    assert_equal(extract(tmp_path / "a", OF_IDS[form]()), by_ids)


def test_texts_and_their_ids_have_the_same_values(
    by_texts: lv.ActivationDataset, by_ids: lv.ActivationDataset
) -> None:
    """Where batches are the same: items of either kind are sorted by a length of their own."""
    for i in range(30):
        for site in SITES:
            torch.testing.assert_close(by_texts[i][site], by_ids[i][site], rtol=1e-5, atol=1e-6)


def test_a_shuffled_loader_is_refused(tmp_path: Path) -> None:
    data = Mapped(list(TEXTS))
    with pytest.raises(lv.InputError, match="shuffles"):
        extract(tmp_path / "a", DataLoader(data, shuffle=True))
    part: Any = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(lv.InputError, match="on every rank"):
        extract(tmp_path / "a", DataLoader(data, sampler=part))


def test_tuples_have_no_names(tmp_path: Path) -> None:
    pairs = Mapped([(torch.tensor([1, 2]), 0), (torch.tensor([3, 4]), 1)])
    with pytest.raises(TypeError, match="samples are tuples"):
        extract(tmp_path / "a", DataLoader(pairs, batch_size=2))
    with pytest.raises(TypeError, match="Item 0 is a tuple"):
        extract(tmp_path / "a", pairs)


def test_a_mask_with_holes_is_refused(tmp_path: Path) -> None:
    item = {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}
    with pytest.raises(lv.InputError, match="Item 1: its mask hides tokens between"):
        extract(tmp_path / "a", [{"input_ids": [1, 2]}, item])


def test_the_key_is_what_an_item_is() -> None:
    def content(sample: Any) -> bytes:
        return read_item(sample, 0, "text", "input_ids").content()

    same = [[1, 2], torch.tensor([1, 2]), {"input_ids": np.array([1, 2])}]
    assert len({content(sample) for sample in same}) == 1
    assert content({"text": "a", "id": 1}) == content({"text": "a", "id": 2}) == content("a")
    others = ["a", "b", "", [1, 2], [2, 1], [[1, 2], [3, 4]], {"inputs_embeds": [1, 2]}]
    floats = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]).half()]
    assert len({content(sample) for sample in [*others, *floats]}) == len(others) + 2
    counter = Counter()
    keys = [counter.key(content(text)) for text in ("a", "b", "a", "a", "b")]
    assert len(set(keys)) == 5
    again = Counter()
    assert [again.key(content(text)) for text in ("b", "a", "b", "a", "a")] == [
        keys[1], keys[0], keys[4], keys[2], keys[3],
    ]  # fmt: skip


def test_names_of_items(tmp_path: Path) -> None:
    items = [{"text": text, "id": f"doc {i // 2}" if i < 2 else i} for i, text in enumerate(TEXTS)]
    dataset = extract(tmp_path / "a", items)
    assert dataset.position(5) == 5
    assert torch.equal(dataset.item(5)["layers.1"], dataset[5]["layers.1"])
    assert dataset.position(dataset.keys()[7]) == 7
    with pytest.raises(lv.NotRecordedError, match="2 items are named 'doc 0'"):
        dataset.item("doc 0")
    with pytest.raises(KeyError, match=r"No item is named 'dok 0'.*Did you mean 'doc 0'"):
        dataset.item("dok 0")


def test_a_generator_is_known_again_at_its_end(tmp_path: Path) -> None:
    """It can be gone through once, so what differs is told after the pass, and changes nothing."""
    whole = extract(tmp_path / "a", TEXTS)
    with pytest.raises(lv.DatasetError, match="31 given, 30 in the dataset") as told:
        extract(tmp_path / "a", (text for text in [*TEXTS, "one more"]))
    assert told.value.differs == ("items",)
    assert_equal(lv.open_dataset(tmp_path / "a"), whole)


def test_items_are_read_as_a_stream(tmp_path: Path) -> None:
    """Of an endless source, no more than a window is held before the first forward."""
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "abc"

    model = toy()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    model.register_forward_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        lv.extract_dataset(
            model, endless(), SITES, tmp_path / "a", tokenizer=Letters(), batch_size=2,
            progress=False, stop=False,
        )  # fmt: skip
    assert read == 128
