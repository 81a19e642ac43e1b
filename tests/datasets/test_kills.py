"""Workers that are killed, and go on: nothing lost, doubled or shifted, bit for bit."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import lensview as lv
from lensview.datasets.manifests import read_state

from .conftest import assert_equal, finish, start, wait_ready
from .toy import SITES, Letters, item_by_hand, texts, toy


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> lv.ActivationDataset:
    """The dataset as one process makes it that nobody stops."""
    folder = tmp_path_factory.mktemp("whole") / "acts"
    finish(folder)
    return lv.open_dataset(folder)


def no_row_is_doubled(folder: Path) -> None:
    keys = read_state(folder).keys
    assert len(np.unique(keys)) == len(keys)


def kill_and_go_on(folder: Path, kills: int, seed: int, pause: float) -> int:
    """Kill workers until `kills` were stopped before their end; how many shards that left."""
    draw = random.Random(seed)
    stopped = 0
    while stopped < kills:
        workers = draw.choice([1, 2, 3])
        some = [start(folder, f"--pause={pause}", rank=r, workers=workers) for r in range(workers)]
        for process in some:
            wait_ready(process)
        for process in draw.sample(some, len(some)):
            time.sleep(draw.uniform(0.0, 0.5) / workers)
            process.kill()
        for process in some:
            process.wait()
        stopped += sum(process.returncode == -9 for process in some)
        for process in some:
            process.communicate()
    return len(list((folder / "shards").glob("*.safetensors")))


def test_the_whole_is_each_items_own_run(whole: lv.ActivationDataset) -> None:
    model, all_texts = toy(), texts(300)
    assert len(whole) == 300
    for i, text in enumerate(all_texts):
        ids = Letters()(text)["input_ids"]
        alone = item_by_hand(model, ids, SITES)
        torch.testing.assert_close(whole[i]["layers.1"], alone["layers.1"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(whole[i]["layers.0"], alone["layers.0"][-1:])
        assert whole.tokens(i).tolist() == ids


def test_five_kills(whole: lv.ActivationDataset, tmp_path: Path) -> None:
    folder = tmp_path / "acts"
    left = kill_and_go_on(folder, 5, seed=1, pause=0.01)
    assert left > 0, "no worker lived long enough to write a shard"
    finish(folder, workers=2)
    no_row_is_doubled(folder)
    assert_equal(lv.open_dataset(folder), whole)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10, 16))
def test_thirty_kills(whole: lv.ActivationDataset, tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "acts"
    kill_and_go_on(folder, 5, seed=seed, pause=0.01)
    finish(folder, workers=1 + seed % 3)
    no_row_is_doubled(folder)
    assert_equal(lv.open_dataset(folder), whole)


@pytest.mark.parametrize("place", ["rename:0", "rename:3", "list:0", "list:1", "list:3"])
def test_killed_between_two_steps(whole: lv.ActivationDataset, tmp_path: Path, place: str) -> None:
    """Where a file is written and not named, or a shard is there and not listed."""
    folder = tmp_path / "acts"
    process = start(folder, f"--die={place}")
    process.communicate(timeout=240)
    assert process.returncode == -9
    finish(folder)
    no_row_is_doubled(folder)
    assert not list(folder.rglob("*.part"))
    listed = {part.place for part in read_state(folder).parts}
    assert set((folder / "shards").iterdir()) == listed, "a shard that nobody lists was left"
    assert_equal(lv.open_dataset(folder), whole)


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers(whole: lv.ActivationDataset, tmp_path: Path, workers: int) -> None:
    folder = tmp_path / "acts"
    finish(folder, workers=workers)
    no_row_is_doubled(folder)
    assert len(list((folder / "manifests").iterdir())) == workers
    assert_equal(lv.open_dataset(folder), whole)


def test_a_torn_manifest_is_read_up_to_the_tear(
    whole: lv.ActivationDataset, tmp_path: Path
) -> None:
    folder = tmp_path / "acts"
    finish(folder)
    manifest = next((folder / "manifests").iterdir())
    manifest.write_bytes(manifest.read_bytes()[:-20])
    with pytest.raises(lv.DatasetError, match="items are missing"):
        lv.open_dataset(folder)
    finish(folder)
    assert_equal(lv.open_dataset(folder), whole)
