"""What capture costs beside nnsight and torchlens, each way in a process of its own.

    make bench-peers        (makes .venv-bench, which holds the peers; nothing else needs them)
    python -m benchmarks.peers [--rounds 7] [--tokens 128] [--limit 300]

Ratios are medians over rounds of CPU time on one thread, each round beside a plain forward of the
same process. Peaks are the process's largest resident size above that of plain forwards. A peer
that is not installed has a row that says so. Needs the demo model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import lensview as lv
from benchmarks.capture import RESIDUAL, hooks, lens, plain
from benchmarks.children import figures

Way = Callable[[], Any]
WHATS = {
    "residual": "residual streams of all layers",
    "all": "every module, in and out",
    "ops": "all ops of one attention",
}
ATTENTION = "model.layers.0.self_attn"
SITES = {"residual": RESIDUAL, "all": ["**", "**:input"], "ops": [f"{ATTENTION}/*"]}
OPS = (
    "view_0 transpose_0 view_1 transpose_1 view_2 transpose_2 apply_rotary_pos_emb_0 "
    "cache_update_0 attention_interface_1 attn_output_reshape_0 contiguous_0"
).split()
"""What nnsight calls the steps of that forward; it does not look into the helpers it calls."""


def nnsight(model: Any, ids: Tensor, what: str) -> Way:
    """By nnsight, which wants values in the order in which they pass."""
    from nnsight import NNsight  # type: ignore[import-not-found]

    wrapped: Any = NNsight(model)
    if what == "ops":
        return nnsight_ops(wrapped, ids)
    steps = [(path, "output") for path in RESIDUAL] if what == "residual" else order(model, ids)
    envoys = [(wrapped.get(path) if path else wrapped, side) for path, side in steps]

    def run() -> Any:
        with torch.no_grad():  # noqa: SIM117 (nnsight reads the source of its own block)
            with wrapped.trace(ids):
                kept = list().save()  # type: ignore[attr-defined]
                for envoy, side in envoys:
                    value = envoy.output if side == "output" else envoy.input
                    kept.append(value)
        return kept

    return run


def nnsight_ops(wrapped: Any, ids: Tensor) -> Way:
    """Every step of one attention's own forward."""
    source = wrapped.get(ATTENTION).source
    steps = [getattr(source, name) for name in OPS]

    def run() -> Any:
        with torch.no_grad():  # noqa: SIM117 (nnsight reads the source of its own block)
            with wrapped.trace(ids):
                kept = list().save()  # type: ignore[attr-defined]
                for step in steps:
                    kept.append(step.output)
        return kept

    return run


def order(model: nn.Module, ids: Tensor) -> list[tuple[str, str]]:
    """Every module's input and output in the order in which they pass, each module once."""
    seen: dict[tuple[str, str], None] = {}
    handles = []
    for name, module in model.named_modules():
        if type(module).forward is nn.Module.forward or not name:
            continue
        handles.append(
            module.register_forward_pre_hook(lambda _m, _a, n=name: seen.setdefault((n, "input")))
        )
        handles.append(
            module.register_forward_hook(lambda _m, _a, _o, n=name: seen.setdefault((n, "output")))
        )
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return list(seen)


def torchlens(model: nn.Module, ids: Tensor, what: str) -> Way:
    """By torchlens, in its cheaper way: a recording of all modules, or of all ops."""
    import torchlens as tl  # type: ignore[import-not-found]

    if what == "ops":
        return lambda: tl.record(model, ids, default_op=True)
    return lambda: tl.record(model, ids, default_module=True)


def way(name: str, what: str, model: nn.Module, ids: Tensor) -> Way:
    """The function to measure."""
    if name == "plain":
        return plain(model, ids)
    if name == "hooks":
        return hooks(model, ids, RESIDUAL if what == "residual" else None)
    if name == "lensview":
        return lens(model, ids, SITES[what])
    return {"nnsight": nnsight, "torchlens": torchlens}[name](model, ids, what)


def child(name: str, what: str, rounds: int, tokens: int) -> dict[str, float]:
    """Measure one way in this process."""
    torch.set_num_threads(1)
    model, _ = lv.demo()
    torch.manual_seed(0)
    ids = torch.randint(0, 49_000, (1, tokens))
    base, run = plain(model, ids), way(name, what, model, ids)
    ratios, seconds = [], []
    base(), run()
    for _ in range(rounds):
        start = time.process_time()
        base()
        middle = time.process_time()
        run()
        seconds.append(time.process_time() - middle)
        ratios.append(seconds[-1] / (middle - start))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "seconds": statistics.median(seconds),
        "ratio": statistics.median(ratios),
        "peak": peak,
    }


def measured(name: str, what: str, options: argparse.Namespace) -> dict[str, float] | str:
    """The figures of one way, from a process of its own, or why there are none."""
    if name in ("nnsight", "torchlens") and importlib.util.find_spec(name) is None:
        return "not installed (make bench-peers)"
    settings = [f"--rounds={options.rounds}", f"--tokens={options.tokens}"]
    return figures("benchmarks.peers", ["--child", name, what, *settings], options.limit)


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, default=300, help="seconds for one way")
    parser.add_argument("--child", nargs=2, metavar=("WAY", "WHAT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        print(json.dumps(child(options.child[0], options.child[1], options.rounds, options.tokens)))
        return 0
    print(f"SmolLM2-135M, {options.tokens} tokens, float32, 1 thread, CPU time")
    base = measured("plain", "all", options)
    if isinstance(base, str):
        print(base)
        return 1
    print(f"{'':34}{'way':12}{'ms':>9}{'/ plain':>9}{'peak MiB above plain':>22}")
    for what, title in WHATS.items():
        for name in ("hooks", "lensview", "nnsight", "torchlens"):
            if (name, what) == ("hooks", "ops"):
                continue  # hooks stand at modules
            found = measured(name, what, options)
            if isinstance(found, str):
                print(f"{title:34}{name:12}  {found}")
                continue
            print(
                f"{title:34}{name:12}{found['seconds'] * 1e3:9.1f}{found['ratio']:9.2f}"
                f"{found['peak'] - base['peak']:22.0f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
