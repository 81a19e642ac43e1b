"""What every rank runs under torchrun to compare a sharded model with the same model whole.

For each model type: every leaf of every module's input and output, on a prompt and on the step after
it, is put together from all ranks by what `Layout` decides, and compared with one process. Each
rank's report is one file, ``rank0.json`` and so on.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lensview.modules import index, only_holds
from lensview.parallel.layout import Layout
from lensview.parallel.placements import Local, Packed, Placement, Scaled, Shard, local_size
from lensview.parallel.weightless import CACHES
from lensview.taps.hooks import UNCHANGED, Point, taps
from lensview.taps.ops import OpWish
from lensview.values import leaves
from tests.ranks.tp_models import make

IDS = torch.tensor([[5, 17, 3, 9, 44], [8, 8, 11, 90, 12], [3, 2, 61, 7, 30], [9, 9, 1, 4, 77]])
MASK = torch.tensor([[1] * 5, [1] * 4 + [0], [1] * 5, [1] * 5])
TOLERANCE = 1e-5
OPS = bool(os.environ.get("LENSVIEW_EXAM_OPS"))

Seen = dict[tuple[str, str, int, tuple[str | int, ...]], Tensor]


def record(model: nn.Module, call: dict[str, Any]) -> tuple[Any, Seen, dict[str, int]]:
    """One forward: its output, every tensor leaf of every visit, and each module's calls."""
    seen: Seen = {}
    counts: dict[str, int] = {}
    points, known = [], set()
    for path, module in index(model).items():
        if id(module) in known or only_holds(module):
            continue
        known.add(id(module))
        point = Point(module)
        for side in ("input", "output"):

            def visit(number: int, value: Any, path: str = path, side: str = side) -> Any:
                counts[path] = max(counts.get(path, 0), number + 1)
                for leaf, tensor in leaves(value):
                    if isinstance(tensor, Tensor):
                        seen[path, side, number, leaf] = tensor.detach().clone()
                return UNCHANGED

            point.records[side].append(visit)  # type: ignore[index]
        if OPS:
            for side in ("input", "output"):
                point.op_point().records[side].append(op_wish(seen, path, side))  # type: ignore[index]
        points.append(point)
    with taps(model, points):
        output = model(**call)
    return output, seen, counts


def op_wish(seen: Seen, path: str, side: str) -> OpWish:
    """Every op of a module, kept under ``path/op.k``."""

    def visitor(name: str, k: int) -> Any:
        def visit(call: int, value: Any) -> Any:
            for leaf, tensor in leaves(value):
                if isinstance(tensor, Tensor):
                    seen[f"{path}/{name}.{k}", side, call, leaf] = tensor.detach().clone()
            return UNCHANGED

        return visit

    return OpWish(lambda name, k: True, visitor)


def calls(model: nn.Module) -> tuple[dict[str, Any], Any]:
    """The call of the prompt, and a function that makes the next step's from its output."""
    import inspect

    takes = set(inspect.signature(type(model).forward).parameters)
    first: dict[str, Any] = {"input_ids": IDS, "attention_mask": MASK}
    if "use_cache" in takes:
        first["use_cache"] = True
    if "attention_mask" not in takes:
        del first["attention_mask"]
    if "decoder_input_ids" in takes:
        first["decoder_input_ids"] = IDS[:, :3]

    def following(output: Any) -> dict[str, Any] | None:
        kept = next((output[n] for n in CACHES if n in output), None)
        name = next((n for n in CACHES if n in takes), None)
        if kept is None or name is None or "decoder_input_ids" in first:
            return None
        step = {**first, name: kept, "input_ids": IDS[:, :1]}
        if "attention_mask" in step:
            step["attention_mask"] = torch.cat([MASK, torch.ones_like(MASK[:, :1])], 1)
        return step

    return first, following


def forwards(model: nn.Module) -> list[tuple[Seen, dict[str, int], Any]]:
    """The prompt and, where the model has a cache, the step after it."""
    first, following = calls(model)
    with torch.no_grad():
        output, seen, counts = record(model, first)
        found = [(seen, counts, output)]
        step = following(output)
        if step is not None:
            output, seen, counts = record(model, step)
            found.append((seen, counts, output))
    return found


def whole(placement: Placement, pieces: list[Tensor]) -> Tensor:
    """The whole of all ranks' pieces, by hand."""
    first = pieces[0]
    if isinstance(placement, Scaled):
        return first * placement.ranks
    if isinstance(placement, Shard):
        for rank, piece in enumerate(pieces):
            assert piece.shape[placement.dim] == local_size(placement.size, len(pieces), rank)
        return torch.cat(pieces, placement.dim)
    if isinstance(placement, Packed):
        cut = [piece.chunk(placement.parts, placement.dim) for piece in pieces]
        return torch.cat([c[i] for i in range(placement.parts) for c in cut], placement.dim)
    return first


def equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = other[torch.isfinite(other)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * scale, equal_nan=True)


def plain(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def decided(
    layout: Layout, modules: dict[str, nn.Module], key: Any, tensor: Tensor, cached: bool
) -> Placement:
    where, side, call, leaf = key
    path, _, op = where.partition("/")
    name, _, k = op.rpartition(".")
    return layout.of(
        path,
        modules[path],
        side,
        call,
        leaf,
        tensor,
        op=name or None,
        op_index=int(k or 0),
        cached=cached,
    )


def gathered(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def compare(model: nn.Module, reference: nn.Module) -> dict[str, Any]:
    layout = Layout(model)
    modules = index(model)
    expected = forwards(reference)
    got = forwards(model)
    report: dict[str, Any] = {
        "right": 0,
        "wrong": [],
        "labelled": Counter(),
        "missing": [],
        "kinds": Counter(),
    }
    assert len(expected) == len(got)
    logits = equal(got[0][2][0], expected[0][2][0])
    for cached, ((seen, counts, _), (true, _, _)) in enumerate(zip(got, expected, strict=True)):
        layout.begin(4, 1, 5) if cached else layout.begin(4, 5)
        refused = layout.check_calls(counts, bool(cached))
        assert len(set(gathered(tuple(seen)))) == 1, "ranks saw different visits"
        placed = {}
        for key, tensor in seen.items():
            placement = decided(layout, modules, key, tensor, bool(cached))
            path = key[0]
            placed[key] = Local(refused[path]) if path in refused else placement
        everyone = gathered(
            [type(p).__name__ + str(p) * (not isinstance(p, Local)) for p in placed.values()]
        )
        pieces = gathered({k: plain(t) for k, t in seen.items()})
        for number, (key, placement) in enumerate(placed.items()):
            path, side, call, leaf = key
            text = f"{path}:{side}{list(leaf)}@{call}#{cached}"
            if len({one[number] for one in everyone}) != 1:
                report["wrong"].append(
                    f"{text}: ranks disagree: {[one[number] for one in everyone]}"
                )
            elif isinstance(placement, Local):
                report["labelled"][
                    f"{placement.reason} {path.rpartition('.')[2]}:{side}{list(leaf)}"
                ] += 1
            elif key not in true:
                report["missing"].append(text)
            else:
                put = whole(placement, [p[key] for p in pieces])
                report["kinds"][type(placement).__name__] += 1
                if equal(put, true[key]):
                    report["right"] += 1
                else:
                    far = (
                        float((put - true[key]).abs().max()) if put.shape == true[key].shape else ""
                    )
                    report["wrong"].append(
                        f"{text}: {placement} {tuple(put.shape)} {tuple(true[key].shape)} {far}"
                    )
        report["missing"] += [f"-{k}" for k in true if k not in seen]
    report["same_logits"] = logits
    report["twin"] = layout.twin.reason
    return report


def check(kind: str, out: Path) -> dict[str, Any]:
    from transformers.distributed.configuration_utils import DistributedConfig

    place = out / kind
    if dist.get_rank() == 0:
        model = make(kind)
        model.save_pretrained(place)
        (place / "class.txt").write_text(type(model).__name__)
    dist.barrier()
    import transformers

    factory: Any = type(make(kind))
    assert transformers is not None
    reference = factory.from_pretrained(place).eval()
    model = factory.from_pretrained(
        place, distributed_config=DistributedConfig(tp_size=dist.get_world_size())
    ).eval()
    return compare(model, reference)


def main(out: Path, kinds: list[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    report = {}
    for kind in kinds:
        try:
            report[kind] = check(kind, out)
        except Exception as error:
            report[kind] = {
                "error": f"{type(error).__name__}: {error}"[:400],
                "trace": traceback.format_exc(),
            }
        (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
