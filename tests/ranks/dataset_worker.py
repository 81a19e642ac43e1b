"""What every rank runs under torchrun for `test_datasets.py`.

    dataset_worker.py FOLDER plain | group | crash | split

``plain`` knows its rank from the environment alone; ``group`` has a process group and a model in
DDP; in ``crash`` rank 1 is killed at its third line of the manifest, once, while rank 0 still runs,
and torchrun starts all ranks again; ``split`` is one model over all ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lensview as lv
from lensview.datasets.manifests import Manifest
from tests.datasets.toy import SITES, Letters, texts, toy

RANK = int(os.environ["RANK"])
SPLIT = ["model.layers.*", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj:input"]
ITEMS = texts(60)


def extract(folder: Path, model: nn.Module, sites: list[str], **more: Any) -> lv.ActivationDataset:
    return lv.extract_dataset(
        model,
        ITEMS,
        sites,
        folder,
        tokenizer=Letters(),
        batch_size=4,
        shard_bytes=6_000,
        progress=False,
        **more,
    )


def is_first(out: Path) -> bool:
    """Whether this rank was not started before; torchrun counts only its own rank's failures."""
    mark = out / f"started{RANK}"
    before = mark.exists()
    mark.touch()
    return not before


def crash(out: Path) -> None:
    true, lines = Manifest.add, [0]

    def add(self: Manifest, line: Any) -> None:
        lines[0] += 1
        if lines[0] == 3:
            while not (out / "started0").exists():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        true(self, line)

    Manifest.add = add  # type: ignore[method-assign]


def split(out: Path) -> dict[str, Any]:
    """A tensor-parallel model beside the same one whole, which rank 0 alone extracts after."""
    from tests.ranks.tp_capture_pair import pair

    two = pair("llama", out)
    dataset = extract(out / "split", two.split, SPLIT)
    report: dict[str, Any] = {"manifests": len(list((out / "split" / "manifests").iterdir()))}
    again = extract(out / "split", two.split, SPLIT)
    dist.barrier()
    if RANK == 0:
        whole = extract(out / "whole", two.whole, SPLIT, rank=0, world_size=1)
        report["far"] = max(
            float((dataset[i][site] - whole[i][site]).abs().max())
            for i in range(len(whole))
            for site in whole.sites
        )
        report["sites"] = list(dataset.sites)
        report["items"] = len(again)
    dist.barrier()
    with torch.no_grad():
        if RANK == 1:  # a part that rank 0 does not have
            parameter: Any = two.split.model.layers[0].mlp.up_proj.weight
            getattr(parameter, "_local_tensor", parameter).add_(1.0)
    try:
        extract(out / "split", two.split, SPLIT)
    except lv.DatasetError as error:
        report["changed"] = str(error)
    return report


def main(out: Path, mode: str) -> None:
    torch.set_num_threads(1)
    report: dict[str, Any] = {"restarts": os.environ.get("TORCHELASTIC_RESTART_COUNT")}
    if mode in ("group", "split"):
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    first = mode == "crash" and is_first(out)
    if first and RANK == 1:
        crash(out)
    if mode == "split":
        report |= split(out)
    else:
        model = nn.parallel.DistributedDataParallel(toy()) if mode == "group" else toy()
        dataset = extract(out / "acts", model, SITES)
        report["complete"] = dataset.complete
        if first:  # an agent whose rank has ended joins no restart
            time.sleep(600)
    (out / f"rank{RANK}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
