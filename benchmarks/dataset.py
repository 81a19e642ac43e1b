"""What a dataset of activations costs beside a plain loop of forwards, nnsight and torchlens.

    make bench-dataset      (makes .venv-bench, which holds the peers; nothing else needs them)
    python -m benchmarks.dataset [--rounds 5] [--items 128] [--tokens 32] [--limit 900]

One residual stream of the demo model, each way in a process of its own. Ratios are medians over
rounds, each beside a plain loop over the same batches in the same process; of CPU time on one
thread, the writer's included, and of wall time, which on a busy machine means less. Then the
memory of one process over many short items, and bytes on disk beside those of the values.
A peer that is not installed has a row that says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lensview as lv
from benchmarks.children import figures

SITE = "model.layers.3"
BATCH = 8
Way = Callable[[Path], Any]
"""Takes a folder of its own and fills it."""


def plain(model: nn.Module, ids: Tensor) -> Way:
    """Forwards, nothing else."""

    def run(_folder: Path) -> None:
        with torch.no_grad():
            for batch in torch.split(ids, BATCH):
                model(input_ids=batch, attention_mask=torch.ones_like(batch))

    return run


def lens(model: nn.Module, ids: Tensor, stop: bool) -> Way:
    """By lensview; with `stop` each forward ends at the site."""

    def run(folder: Path) -> Any:
        return lv.extract_dataset(
            model, ids, [SITE], folder, batch_size=BATCH, stop=stop, progress=False
        )

    return run


def nnsight(model: Any, ids: Tensor) -> Way:
    """By a loop of nnsight that saves each batch with torch.save."""
    from nnsight import NNsight  # type: ignore[import-not-found]

    wrapped: Any = NNsight(model)
    envoy = wrapped.get(SITE)

    def run(folder: Path) -> None:
        folder.mkdir(parents=True)
        with torch.no_grad():
            for number, batch in enumerate(torch.split(ids, BATCH)):
                mask = torch.ones_like(batch)
                with wrapped.trace(input_ids=batch, attention_mask=mask):
                    kept = envoy.output.save()
                value = kept if isinstance(kept, Tensor) else kept[0]
                torch.save(value, folder / f"{number}.pt")

    return run


def torchlens(model: nn.Module, ids: Tensor) -> Way:
    """By torchlens' own extract_dataset, with a shard for each batch."""
    import torchlens as tl  # type: ignore[import-not-found]

    def run(folder: Path) -> Any:
        return tl.extract_dataset(
            model, ids, tl.module(SITE), batch_size=BATCH, output_dir=folder, progress=False
        )

    return run


WAYS: dict[str, Callable[[nn.Module, Tensor], Way]] = {
    "lensview, whole forwards": lambda model, ids: lens(model, ids, False),
    "lensview": lambda model, ids: lens(model, ids, True),
    "nnsight + torch.save": nnsight,
    "torchlens": torchlens,
}
NEEDS = {"nnsight + torch.save": "nnsight", "torchlens": "torchlens"}


def child(name: str, options: argparse.Namespace) -> dict[str, float]:
    """The figures of one way."""
    torch.set_num_threads(1)
    model, _ = lv.demo()
    model.model.layers = model.model.layers[: options.layers]
    torch.manual_seed(0)
    ids = torch.randint(0, 49_000, (options.items, options.tokens))
    base, way = plain(model, ids), WAYS[name](model, ids)
    cpu, wall = [], []
    with tempfile.TemporaryDirectory() as place:
        for round_ in range(options.rounds + 1):
            marks = [(time.process_time(), time.perf_counter())]
            for number, run in enumerate((base, way)):
                run(Path(place) / f"{round_}-{number}")
                marks.append((time.process_time(), time.perf_counter()))
            spent = [[b[i] - a[i] for a, b in pairwise(marks)] for i in (0, 1)]
            if round_ == 0:  # weights are hashed, code is warmed up
                continue
            cpu.append(spent[0][0] / spent[0][1])
            wall.append((spent[1][0] / spent[1][1], ids.numel() / spent[1][1]))
        files = [p for p in (Path(place) / f"{options.rounds}-1").rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
    return {
        "cpu": statistics.median(cpu),
        "wall": statistics.median(ratio for ratio, _ in wall),
        "rate": statistics.median(rate for _, rate in wall),
        "disk": size / (ids.numel() * 576 * 4),
        "files": len(files),
    }


def memory(count: int) -> dict[str, float]:
    """Resident MiB of one process over many short items: after a fifth of them, and the most."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 256), nn.Linear(256, 256)).eval()
    lengths = torch.randint(4, 24, (count,)).tolist()
    seen: list[float] = []

    def look(done: int, _total: int, _text: str) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        if done >= count / 5:
            seen.append(pages * 4096 / 2**20)

    with tempfile.TemporaryDirectory() as place:
        items = (torch.randint(0, 1000, (n,)) for n in lengths)
        lv.extract_dataset(
            model, items, ["1"], Path(place) / "acts", batch_size=32, shard_bytes=8 << 20,
            progress=False, watch=lv.Watch(look),
        )  # fmt: skip
        size = sum(p.stat().st_size for p in Path(place).rglob("*.safetensors"))
    theory = sum(lengths) * 256 * 4
    return {"early": seen[0], "most": max(seen), "last": seen[-1], "disk": size / theory}


def rates() -> dict[str, float]:
    """What does not depend on the model's speed: MB/s written to shards (hashed, and put on the
    disk), and per second of a core MB of weights hashed and texts given a key."""
    from lensview.datasets.items import Item
    from lensview.datasets.keys import Counter
    from lensview.datasets.shards import Piece, Shard
    from lensview.datasets.weights import weight_digests

    rows = torch.randn(32_768, 1024)
    keys = [number.to_bytes(16, "big") for number in range(64)]
    shard = Shard()
    shard.add(Piece(keys, [512] * 64, None, {SITE: rows}, {SITE: [512] * 64}))
    with tempfile.TemporaryDirectory(dir=".") as place:
        start = time.perf_counter()
        for number in range(4):
            shard.write(Path(place) / f"{number}.safetensors")
        written = 4 * rows.nbytes / 1e6 / (time.perf_counter() - start)
    model = nn.Linear(8192, 8192)
    start = time.process_time()
    weight_digests(model)
    hashed = model.weight.nbytes / 1e6 / (time.process_time() - start)
    texts = [Item(f"{number} " + "a text of some words " * 100) for number in range(20_000)]
    counter = Counter()
    start = time.process_time()
    for item in texts:
        counter.key(item.content())
    return {
        "written": written,
        "hashed": hashed,
        "keys": len(texts) / (time.process_time() - start),
    }


def measured(options: argparse.Namespace, *child: str) -> dict[str, float] | str:
    """The figures of one child process, or why there are none."""
    if len(child) > 1 and (need := NEEDS.get(child[1])) and not importlib.util.find_spec(need):
        return "not installed (make bench-dataset)"
    given = ("rounds", "layers", "items", "tokens", "short")
    settings = [f"--{name}={getattr(options, name)}" for name in given]
    return figures("benchmarks.dataset", [*child, *settings], options.limit)


def main(arguments: list[str]) -> int:
    """Print the table; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--items", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--short", type=int, default=10_000, help="short items, for memory")
    parser.add_argument("--limit", type=int, default=900, help="seconds for one way")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rates", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child or options.memory or options.rates:
        found = rates() if options.rates else memory(options.short) if options.memory else None
        print(json.dumps(found or child(options.child, options)))
        return 0
    print(f"SmolLM2-135M, its first {options.layers} layers, float32, 1 thread; {SITE},")
    print(f"{options.items} items of {options.tokens} tokens in batches of {BATCH};")
    print("tokens per second beside those of a plain loop")
    head = f"{'':28}{'/ plain, CPU':>13}{'/ plain, wall':>14}{'tokens/s':>10}"
    print(f"{head}{'disk / values':>15}{'files':>7}")
    missed = False
    for name in WAYS:
        one = measured(options, "--child", name)
        if isinstance(one, str):
            print(f"{name:28}  {one}")
            continue
        print(
            f"{name:28}{one['cpu']:13.3f}{one['wall']:14.3f}{one['rate']:10.0f}"
            f"{one['disk']:15.4f}{one['files']:7.0f}"
        )
        if name.startswith("lensview"):
            missed |= one["cpu"] < 0.95 or one["disk"] > 1.01
    flat = measured(options, "--memory")
    if isinstance(flat, str):
        print(f"memory: {flat}")
        return 1
    print(
        f"memory over {options.short:,} short items of a generator: {flat['early']:.0f} MiB after "
        f"a fifth, at most {flat['most']:.0f}, {flat['last']:.0f} at the end; disk / values "
        f"{flat['disk']:.4f}"
    )
    fast = measured(options, "--rates")
    if not isinstance(fast, str):
        print(
            f"shards written at {fast['written']:.0f} MB/s; a core hashes {fast['hashed']:.0f} MB "
            f"of weights and gives {fast['keys']:,.0f} texts of 2 kB a key per second"
        )
    return int(missed or flat["disk"] > 1.01)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
