"""Disks that are full, files that are damaged, items that come in between: the stated outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import lensview as lv
from lensview.datasets import shards
from lensview.datasets.manifests import read_state

from .conftest import assert_equal, finish, start
from .toy import SITES, Letters, item_by_hand, texts, toy


def extract(folder: Path, items: object, **options: object) -> lv.ActivationDataset:
    settings = {"tokenizer": Letters(), "shard_bytes": 6_000, "progress": False, **options}
    return lv.extract_dataset(toy(), items, SITES, folder, **settings)  # type: ignore[arg-type]


def shard_of(folder: Path, number: int = 1) -> Path:
    return sorted((folder / "shards").iterdir())[number]


@pytest.mark.parametrize("limit", [300, 4_000])
def test_a_full_disk_leaves_whole_shards_only(tmp_path: Path, limit: int) -> None:
    """A process that may write `limit` bytes to a file: less than the description, than a shard."""
    folder = tmp_path / "acts"
    process = start(folder, f"--fsize={limit}")
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "DatasetError" in err and "File too large" in err, err
    assert not list(folder.rglob("*.part"))
    for place in folder.glob("shards/*"):
        assert place.stat().st_size > 0
    assert "could not be written" in err and "run the same call again" in err
    finish(folder)
    reference = extract(tmp_path / "other", texts(300), keep={"layers.0": "last"}, batch_size=4)
    assert_equal(lv.open_dataset(folder), reference)


def test_a_shard_that_was_cut_short(tmp_path: Path) -> None:
    folder, items = tmp_path / "acts", texts(100)
    whole = extract(tmp_path / "whole", items)
    extract(folder, items)
    place = shard_of(folder)
    place.write_bytes(place.read_bytes()[:-10])
    with pytest.raises(lv.DatasetError, match=rf"(?s)items are missing.*{place.name}.*cut short"):
        lv.open_dataset(folder)
    with pytest.warns(lv.LensWarning, match=rf"(?s)done again.*{place.name}"):
        healed = extract(folder, items)
    assert_equal(healed, whole)


@pytest.mark.parametrize("where", [0.05, 0.5, 0.95])
def test_a_flipped_byte_is_told_before_a_value_is_read(tmp_path: Path, where: float) -> None:
    folder, items = tmp_path / "acts", texts(100)
    extract(folder, items)
    place = shard_of(folder)
    data = bytearray(place.read_bytes())
    data[int(len(data) * where)] ^= 1
    place.write_bytes(data)
    with pytest.raises(lv.DatasetError) as told:
        list(lv.open_dataset(folder))
    assert place.name in str(told.value)
    place.unlink()
    with pytest.warns(lv.LensWarning, match="is gone"):
        healed = extract(folder, items)
    assert_equal(healed, extract(tmp_path / "whole", items))


def test_unchecked_reading_does_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "acts"
    extract(folder, texts(20))

    def never(*_: object) -> None:
        raise AssertionError("a file was hashed")

    monkeypatch.setattr("lensview.datasets.contents.verify", never)
    assert len(list(lv.open_dataset(folder, checked=False))) == 20
    with pytest.raises(AssertionError):
        list(lv.open_dataset(folder))


def test_an_item_inserted_before_resuming(tmp_path: Path) -> None:
    """Only what is new is run; every item is where it is in the new input."""
    folder, items = tmp_path / "acts", texts(300)
    process = start(folder, "--die=list:4")
    process.communicate(timeout=240)
    done = sum(len(p.index.keys) for p in read_state(folder).parts)
    assert 0 < done < 300
    seen: list[int] = []
    model = toy()
    model.register_forward_hook(lambda _m, _a, out: seen.append(len(out)))
    longer = [*items[:7], "a new one", *items[7:]]
    dataset = lv.extract_dataset(
        model,
        longer,
        SITES,
        folder,
        tokenizer=Letters(),
        keep={"layers.0": "last"},
        stop=False,
        batch_size=4,
        progress=False,
    )
    assert sum(seen) == 301 - done + 3, "three rows are those that see how values lie"
    assert len(dataset) == 301
    for i, text in enumerate(longer):
        alone = item_by_hand(toy(), Letters()(text)["input_ids"], SITES)
        torch.testing.assert_close(dataset[i]["layers.1"], alone["layers.1"], rtol=1e-5, atol=1e-6)


def test_an_item_taken_away_before_resuming_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    process = start(folder, "--die=list:4")
    process.communicate(timeout=240)
    with pytest.raises(lv.DatasetError, match=r"of the \d+ items done are not among") as told:
        extract(folder, texts(300)[150:], keep={"layers.0": "last"})
    assert told.value.differs == ("items",)


def test_interrupted_by_hand_and_cancelled(tmp_path: Path) -> None:
    """What was done is there, although no shard was full; the bar's thread is gone."""
    items, whole = texts(64), extract(tmp_path / "whole", texts(64))
    for number, stop in enumerate((KeyboardInterrupt, lv.RunCancelled)):
        folder, model, calls = tmp_path / f"acts{number}", toy(), 0
        watch = lv.Watch()

        def hook(*_: object, stop: type = stop, watch: lv.Watch = watch) -> None:
            nonlocal calls
            calls += 1
            if calls == 6 and stop is KeyboardInterrupt:
                raise KeyboardInterrupt
            if calls == 6:
                watch.cancel()

        model.register_forward_hook(hook, always_call=True)
        options = {"tokenizer": Letters(), "progress": False, "watch": watch, "stop": False}
        with pytest.raises(stop):
            lv.extract_dataset(model, items, SITES, folder, **options)  # type: ignore[arg-type]
        assert len(read_state(folder).parts) == 1
        assert_equal(extract(folder, items), whole)


def test_the_writer_stops_the_forwards_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "write_whole", full)
    model, calls = toy(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(lv.DatasetError, match="No space left on device"):
        lv.extract_dataset(
            model,
            texts(4000),
            SITES,
            tmp_path / "acts",
            tokenizer=Letters(),
            shard_bytes=1,
            batch_size=4,
            progress=False,
            stop=False,
        )
    assert len(calls) < 500
