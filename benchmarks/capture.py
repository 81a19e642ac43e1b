"""What capture costs beside a plain forward and beside hooks that clone, in one interleaved run.

    python -m benchmarks.capture [--pairs 21] [--tokens 128]

Prints one table. Times are medians on this machine; ratios are medians of pairs that ran next to
each other, so that a machine that slows down slows both sides of a pair. Needs the demo model.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lensview as lv

RESIDUAL = [f"model.layers.{i}" for i in range(30)]
BLOCKS = [f"{layer}{part}" for layer in RESIDUAL for part in ("", ".self_attn", ".mlp")]
Way = Callable[[], Any]


def plain(model: nn.Module, ids: Tensor) -> Way:
    """A forward, nothing else."""

    def run() -> Any:
        with torch.no_grad():
            return model(ids)

    return run


def hooks(model: nn.Module, ids: Tensor, sites: list[str] | None) -> Way:
    """Hooks as people write them, cloning outputs; with None every module's, and its input."""

    def run() -> Any:
        kept: dict[str, Tensor] = {}
        handles = []
        for name, module in model.named_modules():
            if sites is not None and name not in sites:
                continue

            def keep(_m: nn.Module, args: Any, output: Any, name: str = name) -> None:
                value = output[0] if isinstance(output, tuple) else output
                if isinstance(value, Tensor):
                    kept[name] = value.detach().clone()
                if sites is None and args and isinstance(args[0], Tensor):
                    kept[f"{name}:input"] = args[0].detach().clone()

            handles.append(module.register_forward_hook(keep))
        try:
            with torch.no_grad():
                model(ids)
        finally:
            for handle in handles:
                handle.remove()
        return kept

    return run


def lens(model: nn.Module, ids: Tensor, sites: list[str]) -> Way:
    """The same by lensview."""
    return lambda: lv.trace(model, ids, sites)


def measure(ways: dict[str, Way], pairs: int) -> dict[str, list[float]]:
    """Seconds of each way, `pairs` rounds, each round running every way once.

    In an order of chance, each after a plain forward that is not counted: a way that frees much
    memory makes the one after it pay for fresh pages.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    settle = next(iter(ways.values()))
    for run in ways.values():
        run()
    for round_ in range(pairs):
        order = list(ways.items())
        random.Random(round_).shuffle(order)
        for name, run in order:
            settle()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], over: str, under: str) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(times[over], times[under], strict=True))


def main(arguments: list[str]) -> int:
    """Print the table; 1 where a ratio is above its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args(arguments)
    model, _ = lv.demo()
    torch.manual_seed(0)
    ids = torch.randint(0, 49_000, (1, options.tokens))
    ways = {
        "plain forward": plain(model, ids),
        "hooks, residual streams": hooks(model, ids, RESIDUAL),
        "lensview, residual streams": lens(model, ids, RESIDUAL),
        "hooks, layers + attention + mlp": hooks(model, ids, BLOCKS),
        "lensview, layers + attention + mlp": lens(model, ids, BLOCKS),
        "hooks, every module in and out": hooks(model, ids, None),
        "lensview, every module in and out": lens(model, ids, ["**", "**:input"]),
    }
    times = measure(ways, options.pairs)
    print(f"SmolLM2-135M, {options.tokens} tokens, float32, {torch.get_num_threads()} threads")
    print(f"{'':36}{'median ms':>10}{'/ plain':>10}{'/ hooks':>10}  limit")
    failed = False
    for name, seconds in times.items():
        peer = name.replace("lensview", "hooks")
        beside = ratio(times, name, peer) if peer != name else None
        over_plain = ratio(times, name, "plain forward")
        limit, value = None, 0.0
        if name == "lensview, residual streams":
            limit, value = 1.03, beside or 0
        elif name == "lensview, layers + attention + mlp":
            limit, value = 1.05, beside or 0
        elif name == "lensview, every module in and out":
            limit, value = 1.25, over_plain
        failed |= limit is not None and value > limit
        shown = "" if limit is None else f"  {limit:.2f} {'met' if value <= limit else 'MISSED'}"
        print(
            f"{name:36}{statistics.median(seconds) * 1e3:10.1f}{over_plain:10.3f}"
            f"{'' if beside is None else f'{beside:10.3f}':>10}{shown}"
        )
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
