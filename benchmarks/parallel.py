"""What reading costs between ranks, beside nnsight in the same process group.

    make bench-parallel        (makes .venv-bench, which holds nnsight; nothing else needs it)
    python -m benchmarks.parallel [--rounds 7] [--tokens 64] [--ranks 2]

Collectives and bytes are those of a forward that is read, less those of a plain one, counted at
torch's own entry points. Bytes are what one rank gives; "shards" are those of the values that were
read. The first read of a site compares fingerprints of whole values once (the witness): it has a
column of its own. Ratios are medians over rounds, each beside a plain forward of the same round.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lensview as lv
from benchmarks.traffic import Traffic, counted

Way = Callable[[], Any]
LAYERS = 6
WHATS = {
    "every layer": ("model.layers.{}",),
    "every o_proj and down_proj": (
        "model.layers.{}.self_attn.o_proj",
        "model.layers.{}.mlp.down_proj",
    ),
    "every q_proj": ("model.layers.{}.self_attn.q_proj",),
}
COLLECTIVES = {"every layer": 0, "every o_proj and down_proj": 0, "every q_proj": 1}
"""How many collectives lensview may add to one forward."""
PADDING = 64
"""How many bytes a forward's pieces may be padded by."""


def sites(what: str) -> list[str]:
    """The sites to read, in the order in which they pass."""
    return [name.format(i) for i in range(LAYERS) for name in WHATS[what]]


def make(place: Path) -> None:
    """Write a model with biases, of a size whose weights are made in a moment."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        attention_bias=True,
        mlp_bias=True,
    )
    LlamaForCausalLM(config).save_pretrained(place)


def sharded(place: Path) -> Any:
    """The model of `place`, split over the ranks."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    ranks = int(os.environ["WORLD_SIZE"])
    split = DistributedConfig(tp_size=ranks)
    return AutoModelForCausalLM.from_pretrained(place, distributed_config=split).eval()


def plain(model: nn.Module, ids: Tensor) -> Way:
    """A forward, nothing else."""

    def run() -> Any:
        with torch.no_grad():
            return model(ids)

    return run


def nnsight(model: nn.Module, ids: Tensor, names: list[str]) -> Way:
    """By nnsight 0.8.1, with the one name that transformers moved put where nnsight imports it."""
    from nnsight import NNsight  # type: ignore[import-not-found]
    from nnsight.intervention.interleaver import Interleaver  # type: ignore[import-not-found]
    from nnsight.modeling.tp import TPFragments  # type: ignore[import-not-found]
    from transformers.distributed import tensor_parallel

    name = "_get_parameter_plan"
    if not hasattr(tensor_parallel, name):
        from transformers.distributed import parallel_utils

        setattr(tensor_parallel, name, getattr(parallel_utils, name))
    wrapped: Any = NNsight(model, interleaver=Interleaver(fragments=TPFragments()))
    envoys = [wrapped.get(path) for path in names]

    def run() -> Any:
        with torch.no_grad():  # noqa: SIM117 (nnsight reads the source of its own block)
            with wrapped.trace(ids):
                kept = list().save()  # type: ignore[attr-defined]
                for envoy in envoys:
                    kept.append(envoy.output)
        return kept

    return run


def shards(model: nn.Module, ids: Tensor, names: list[str]) -> int:
    """The bytes of this rank's own pieces of what passes at `names`, by plain hooks."""
    held: list[int] = []

    def keep(_module: nn.Module, _args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        held.append(tensor.nbytes)

    handles = [model.get_submodule(name).register_forward_hook(keep) for name in names]
    try:
        plain(model, ids)()
    finally:
        for handle in handles:
            handle.remove()
    return sum(held)


def traffic(run: Way) -> Traffic:
    """What one run makes this rank do."""
    with counted() as found:
        run()
    return found


def own_counts(model: nn.Module) -> tuple[int, int]:
    """What lensview says that its runs made this rank do so far, by its own counters."""
    from lensview.capture.spread import Spread

    spread = Spread.over(model, "first")
    assert spread is not None
    return spread.ranks.counts.collectives, spread.ranks.counts.bytes


def measured(model: nn.Module, ids: Tensor, run: Way, rounds: int) -> dict[str, Any]:
    """What `run` adds to a plain forward: at its first run, and at a later one, with times."""
    base = plain(model, ids)
    beside = traffic(base)
    first = traffic(run).beyond(beside)
    before = own_counts(model)
    later = traffic(run).beyond(beside)
    own = tuple(a - b for a, b in zip(own_counts(model), before, strict=True))
    ratios, reads = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        base()
        middle = time.perf_counter()
        run()
        reads.append(time.perf_counter() - middle)
        ratios.append(reads[-1] / (middle - start))
    return {
        "first": asdict(first),
        "later": asdict(later),
        "own": own,
        "seconds": statistics.median(reads),
        "ratio": statistics.median(ratios),
    }


def rank(place: Path, rounds: int, tokens: int) -> None:
    """What every rank runs; each writes its figures to a file beside the model."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    model = sharded(place / "model")
    torch.manual_seed(0)
    ids = torch.randint(0, 1000, (1, tokens))
    found: dict[str, Any] = {}
    for what in WHATS:
        names = sites(what)

        def lens(names: list[str] = names) -> Any:
            return lv.trace(model, ids, names)

        found[what] = {"shards": shards(model, ids, names)}
        found[what]["lensview"] = measured(model, ids, lens, rounds)
    for what in WHATS:  # after lensview: nnsight replaces forwards
        found[what]["nnsight"] = peer(model, ids, sites(what), rounds)
    (place / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def peer(model: nn.Module, ids: Tensor, names: list[str], rounds: int) -> dict[str, Any] | str:
    """nnsight's figures, or why there are none."""
    if importlib.util.find_spec("nnsight") is None:
        return "not installed (make bench-parallel)"
    try:
        return measured(model, ids, nnsight(model, ids, names), rounds)
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}".splitlines()[0][:90]


def launch(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the ranks; the figures of each."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        make(place / "model")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={options.ranks}", "-m", "benchmarks.parallel"]
        command += ["--place", folder, f"--rounds={options.rounds}", f"--tokens={options.tokens}"]
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        files = [place / f"rank{number}.json" for number in range(options.ranks)]
        return [json.loads(file.read_text()) for file in files]


def verdict(what: str, figures: dict[str, Any], shard: int) -> str:
    """What lensview's figures on one rank miss; "" where nothing."""
    later, limit = figures["later"], COLLECTIVES[what]
    if later["collectives"] > limit:
        return f"{later['collectives']} collectives, not {limit}"
    most = shard + PADDING if limit else 0
    if later["bytes"] > most:
        return f"{later['bytes']} bytes, not {most}"
    if [later["collectives"], later["bytes"]] != list(figures["own"]):
        return f"its own counters say {figures['own']}"
    return ""


def main(arguments: list[str]) -> int:
    """Print the table; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.place:
        rank(options.place, options.rounds, options.tokens)
        return 0
    ranks = launch(options)
    print(
        f"A llama of {LAYERS} layers, hidden size 256, over {options.ranks} gloo ranks, "
        f"{options.tokens} tokens, float32. Added to one plain forward, on the rank that adds most:"
    )
    print(
        f"{'reading':28}{'by':10}{'collectives':>12}{'bytes':>9}{'shards':>9}{'first read':>12}"
        f"{'ms':>9}{'/ plain':>9}  limit"
    )
    failed = False
    for what in WHATS:
        for name in ("lensview", "nnsight"):
            rows = [found[what][name] for found in ranks]
            said = [row for row in rows if isinstance(row, str)]
            if said:
                print(f"{what:28}{name:10}  {said[0]}")
                continue
            top = max(rows, key=lambda row: (row["later"]["collectives"], row["later"]["bytes"]))
            shown = ""
            if name == "lensview":
                missed = [
                    text
                    for found in ranks
                    if (text := verdict(what, found[what][name], found[what]["shards"]))
                ]
                failed |= bool(missed)
                shown = f"  {COLLECTIVES[what]} " + (f"MISSED: {missed[0]}" if missed else "met")
            print(
                f"{what:28}{name:10}{top['later']['collectives']:12}{top['later']['bytes']:9}"
                f"{ranks[0][what]['shards']:9}{top['first']['collectives']:12}"
                f"{top['seconds'] * 1e3:9.1f}{top['ratio']:9.2f}{shown}"
            )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
