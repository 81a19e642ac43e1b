"""One worker, to be killed: extracts the toy's dataset, and can die at a place by itself.

    python tests/datasets/extract.py FOLDER [--items N] [--front TEXT] [--die NAME:K] [--pause S]

``--die rename:2`` ends the process by SIGKILL where it would rename its third file, ``list:2``
where it would write the third line of its manifest: between the two a shard is there and not
listed. ``--fsize N`` limits a file's bytes, as a full disk does.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import lensview as lv
from lensview.datasets import files, manifests
from tests.datasets.toy import SITES, Letters, texts, toy

torch.set_num_threads(1)


def dying(call: Callable[..., Any], after: int) -> Callable[..., Any]:
    """`call`, at whose call number `after` the process is killed instead."""
    left = [after]

    def wrapped(*args: Any) -> Any:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return call(*args)

    return wrapped


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--front", default="")
    parser.add_argument("--die", default="")
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fsize", type=int, default=0)
    options = parser.parse_args()
    if options.die:
        name, _, after = options.die.partition(":")
        if name == "rename":
            files.os.replace = dying(os.replace, int(after))  # type: ignore[attr-defined]
        else:
            manifests.Manifest.add = dying(manifests.Manifest.add, int(after))  # type: ignore[method-assign]
    if options.fsize:
        resource.setrlimit(resource.RLIMIT_FSIZE, (options.fsize, resource.RLIM_INFINITY))
    items = [*([options.front] if options.front else []), *texts(options.items)]
    print("ready", flush=True)
    lv.extract_dataset(
        toy(pause=options.pause),
        items,
        SITES,
        options.folder,
        tokenizer=Letters(),
        batch_size=4,
        keep={"layers.0": "last"},
        shard_bytes=6_000,
        progress=False,
    )
    print("done", flush=True)


if __name__ == "__main__":
    main()
