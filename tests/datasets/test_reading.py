"""Reading a dataset: by position, name and token, in workers, from several folders, as tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import lensview as lv
from lensview.datasets.shards import verify

from .conftest import assert_equal, finish
from .toy import SITES, Letters, item_by_hand, texts, toy

TEXTS = [*texts(40), ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reading") / "acts"
    with pytest.warns(lv.LensWarning):
        extract(place)
    return place


@pytest.fixture
def dataset(folder: Path) -> lv.ActivationDataset:
    return lv.open_dataset(folder)


def extract(place: Path, **more: Any) -> lv.ActivationDataset:
    more = {"tokenizer": Letters(), "shard_bytes": 6_000, "progress": False, **more}
    return lv.extract_dataset(toy(), TEXTS, SITES, place, **more)


def alone(i: int) -> dict[str, torch.Tensor]:
    return item_by_hand(toy(), Letters()(TEXTS[i])["input_ids"], SITES)


def test_by_position(dataset: lv.ActivationDataset) -> None:
    assert len(dataset) == 41 == len(list(dataset))
    torch.testing.assert_close(dataset[-2], alone(39), rtol=1e-5, atol=1e-6)
    assert torch.equal(dataset[-2]["layers.1"], dataset[39]["layers.1"])
    for i in (41, -42):
        with pytest.raises(IndexError, match="the dataset has 41"):
            dataset[i]
    assert "41 items" in repr(dataset) and "skipped 1" in repr(dataset)


def test_by_token(dataset: lv.ActivationDataset) -> None:
    for token in range(-len(TEXTS[3]), len(TEXTS[3])):
        row = dataset.token(3, token)["layers.1"]
        torch.testing.assert_close(row, alone(3)["layers.1"][token], rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError, match=f"Item 3 has {len(TEXTS[3])} rows"):
        dataset.token(3, len(TEXTS[3]))
    with pytest.raises(lv.NotRecordedError, match=r"no 'layers.2'.*Did you mean"):
        dataset.read("layers.2")


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_the_workers_of_a_loader(dataset: lv.ActivationDataset, start: str) -> None:
    dataset[0]  # a file is open here already
    loader: Any = DataLoader(
        dataset, batch_size=None, num_workers=2, multiprocessing_context=start, shuffle=False
    )
    for i, item in enumerate(loader):
        assert all(torch.equal(item[site], dataset[i][site]) for site in SITES)
    batches: Any = DataLoader(dataset, batch_size=6, shuffle=True, collate_fn=list)
    assert sum(len(batch) for batch in batches) == 41


def test_a_dataset_reads_what_it_is_asked_for(
    dataset: lv.ActivationDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One item opens one shard and verifies that one alone."""
    verified: list[Path] = []

    def look(place: Path, said: Any) -> None:
        verified.append(place)
        verify(place, said)

    monkeypatch.setattr("lensview.datasets.contents.verify", look)
    dataset[0], dataset[0]
    assert len(verified) == 1


def test_folders_of_several_machines_are_read_together(tmp_path: Path, folder: Path) -> None:
    with pytest.warns(lv.LensWarning):
        for rank in range(3):
            extract(tmp_path / f"machine{rank}", rank=rank, world_size=3)
    places = [tmp_path / f"machine{rank}" for rank in range(3)]
    assert_equal(lv.open_dataset(places), lv.open_dataset(folder))
    with pytest.raises(lv.DatasetError, match="items are missing"):
        lv.open_dataset(places[:2])
    extract(tmp_path / "other", keep="last")
    with pytest.raises(lv.DatasetError, match="another call"):
        lv.open_dataset([places[0], tmp_path / "other"])


def test_rows_that_two_wrote_are_there_once(tmp_path: Path, folder: Path) -> None:
    with pytest.warns(lv.LensWarning):
        extract(tmp_path / "acts")
    assert_equal(lv.open_dataset([tmp_path / "acts", folder]), lv.open_dataset(folder))


def test_more_shards_than_are_kept_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dataset: lv.ActivationDataset
) -> None:
    first = [item["layers.1"].clone() for item in dataset]
    monkeypatch.setattr("lensview.datasets.contents.OPEN", 1)
    few = lv.open_dataset(folder)
    for i in [*range(41), *range(40, -1, -1)]:
        assert torch.equal(few[i]["layers.1"], first[i])
    assert len(few._files._open) == 1


def test_a_worker_that_is_done_before_the_others(tmp_path: Path, folder: Path) -> None:
    first = extract(tmp_path / "acts", rank=0, world_size=2)
    assert not first.complete and "not complete" in repr(first)
    with pytest.raises(lv.DatasetError, match="or wait for the other workers"):
        len(first)
    with pytest.warns(lv.LensWarning):
        second = extract(tmp_path / "acts", rank=1, world_size=2)
    assert first.complete and second.complete
    assert_equal(first, lv.open_dataset(folder))


def test_arrow(dataset: lv.ActivationDataset) -> None:
    table = dataset.to_arrow()
    assert table.num_rows == 41
    assert table.column("tokens").to_pylist() == [len(text) for text in TEXTS]
    for i, values in enumerate(table.column("layers.1").to_pylist()):
        assert torch.equal(torch.tensor(values).reshape(-1, 16), dataset[i]["layers.1"])
    some = dataset.to_arrow([3, -1])
    assert some.column("position").to_pylist() == [3, 40]
    assert table.schema.field("layers.1").metadata == {b"shape": b"[16]", b"dtype": b"float32"}


def test_arrow_and_xarray_are_read_without_lensview(
    dataset: lv.ActivationDataset, tmp_path: Path
) -> None:
    """A process that has never heard of lensview reads the shards, an Arrow file, and the same
    rows come out; so does the safetensors package from a shard."""
    import pyarrow.feather as feather

    feather.write_feather(dataset.to_arrow(), str(tmp_path / "acts.arrow"))
    program = f"""
import json, sys
import pyarrow.feather as feather
from safetensors import safe_open
table = feather.read_table({str(tmp_path / "acts.arrow")!r})
found = [sum(map(sum, item)) for item in table.column("layers.1").to_pylist()]
with safe_open({str(dataset._there.state.parts[0].place)!r}, "np") as shard:
    keys = [bytes(key).hex() for key in shard.get_tensor("//key")]
    rows, values = shard.get_tensor("//rows/layers.1"), shard.get_tensor("layers.1")
ends = rows.cumsum()
shards = {{k: float(values[e - n:e].sum()) for k, n, e in zip(keys, rows, ends)}}
assert not any(name.startswith("lensview") for name in sys.modules)
print(json.dumps([found, shards]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    found, shards = json.loads(done.stdout)
    sums = [float(item["layers.1"].double().sum()) for item in dataset]
    np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-5)
    for key, total in shards.items():
        np.testing.assert_allclose(total, sums[dataset.position(key)], rtol=1e-4, atol=1e-4)


def test_xarray(tmp_path: Path) -> None:
    with pytest.warns(lv.LensWarning):
        dataset = extract(tmp_path / "acts", keep={"layers.0": "last"}, dtype=torch.bfloat16)
    table = dataset.to_xarray()
    assert table["layers.1"].sizes == {"row of layers.1": sum(map(len, TEXTS)), "layers.1 0": 16}
    for i in range(41):
        mine = table["layers.1"].values[table["item of layers.1"].values == i]
        assert np.array_equal(mine, dataset[i]["layers.1"].float().numpy())
        last = table["layers.0"].values[table["item"].values == i]
        assert np.array_equal(last, dataset[i]["layers.0"].float().numpy())
    assert table["layers.1"].dtype == np.float32
    tokens = table["token of layers.1"].values[table["item of layers.1"].values == 3]
    assert tokens.tolist() == list(range(len(TEXTS[3])))


@pytest.mark.parametrize("package", ["pyarrow", "xarray"])
def test_a_missing_extra_says_the_line_to_type(
    dataset: lv.ActivationDataset, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    extra = {"pyarrow": "arrow"}.get(package, package)
    with pytest.raises(lv.MissingExtraError, match=rf"pip install 'lensview\[{extra}\]'"):
        dataset.to_arrow() if package == "pyarrow" else dataset.to_xarray()


def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn):
        place = tmp_path / str(dtype)
        with pytest.warns(lv.LensWarning):
            dataset = extract(place, dtype=dtype)
        kept = extract(tmp_path / "plain") if (tmp_path / "plain").exists() else None
        if kept is None:
            with pytest.warns(lv.LensWarning):
                kept = extract(tmp_path / "plain")
        for i in (0, 7, 39):
            expected = kept[i]["layers.1"].to(dtype)
            found = dataset[i]["layers.1"]
            assert found.dtype == dtype
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def test_an_unfinished_dataset_says_what_is_missing(tmp_path: Path) -> None:
    finish(tmp_path / "acts", workers=1)
    next((tmp_path / "acts" / "shards").iterdir()).unlink()
    with pytest.raises(lv.DatasetError, match=r"\d+ of 300 items are missing") as told:
        lv.open_dataset(tmp_path / "acts")
    assert "is gone" in str(told.value) and "extract_dataset" in str(told.value)
