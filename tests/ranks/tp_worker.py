"""What every rank runs under torchrun to compare a sharded model with the same model whole.

For each model type: every leaf of every module's input and output, on a prompt and on the step
after it, is put together from all ranks by what `Layout` decides, and compared with one process.
Each rank's report is one file, ``rank0.json`` and so on.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lensview.modules import index
from lensview.parallel.layout import Layout
from lensview.parallel.placements import Local, Packed, Placement, Scaled, Shard, local_size
from tests.ranks.tp_models import CASES, PRECISE, Case, make
from tests.ranks.tp_record import IDS, calls, forwards

TOLERANCE = 1e-5


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
    if one.is_complex():
        return equal(torch.view_as_real(one), torch.view_as_real(other))
    if not one.is_floating_point():
        return torch.equal(one, other)
    finite = other[torch.isfinite(other)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=TOLERANCE * scale, equal_nan=True)


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


def untouched(model: nn.Module) -> None:
    """A plain call: a model that does not run when it is split fails here, and not in a tap."""
    try:
        with torch.no_grad():
            model(**calls(model)[0])
    except Exception as error:
        raise RuntimeError(f"without taps too: {type(error).__name__}: {error}") from error


def compare(model: nn.Module, reference: nn.Module) -> dict[str, Any]:
    """What the layout makes of every value of `model`, beside `reference`, which is not split."""
    layout = Layout(model)
    modules = index(model)
    untouched(model)
    expected, again, got = forwards(reference), forwards(reference), forwards(model)
    assert len(expected) == len(got)
    report = Report()
    report.same_output = equal(got[0].output, expected[0].output)
    report.twin = layout.twin.reason
    for step, (one, true) in enumerate(zip(got, expected, strict=True)):
        layout.begin(len(IDS), 1, IDS.shape[1]) if step else layout.begin(*IDS.shape)
        refused = layout.check_calls(one.calls, bool(step))
        assert len(set(gathered(tuple(one.seen)))) == 1, "ranks saw different visits"
        placed = {
            key: Local(refused[key[0]])
            if key[0] in refused
            else decided(layout, modules, key, tensor, bool(step))
            for key, (_, tensor) in one.seen.items()
        }
        everyone = gathered([str(p) * (not isinstance(p, Local)) for p in placed.values()])
        pieces = gathered({key: local for key, (local, _) in one.seen.items()})
        report.missing += [f"{key}" for key in true.seen if key not in one.seen]
        for number, (key, placement) in enumerate(placed.items()):
            where = f"{key[0]}:{key[1]}{list(key[3])}@{key[2]}, forward {step}"
            if len(told := {one[number] for one in everyone}) != 1:
                report.wrong.append(f"{where}: ranks disagree: {told}")
            elif isinstance(placement, Local):
                report.labelled[placement.reason] += 1
            elif key not in true.seen:
                report.missing.append(where)
            else:
                value, same = true.seen[key][0], again[step].seen[key][0]
                put = whole(placement, [p[key] for p in pieces])
                report.count(where, placement, put, value, written=equal(same, value))
    return dict(vars(report))


@dataclass
class Report:
    """How many leaves of one model type are right, and which are not.

    Attributes:
        labelled: how many are rank-local, by reason.
        unwritten: memory that no one has written yet, which is in no run as in another.
        same_output: whether the sharded model gives what the whole one gives.
    """

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    labelled: Counter[str] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    unwritten: int = 0
    same_output: bool = True
    twin: str = ""

    def count(
        self, where: str, placement: Placement, put: Tensor, value: Tensor, written: bool
    ) -> None:
        if not written:
            self.unwritten += 1
        elif equal(put, value):
            self.right += 1
            self.kinds[type(placement).__name__] += 1
        else:
            far = f"{(put - value).abs().max()}" if put.shape == value.shape else "another shape"
            self.wrong.append(f"{where}: {placement}: {tuple(put.shape)}, off by {far}")


def check(name: str, out: Path) -> dict[str, Any]:
    """One row of the table."""
    from transformers.distributed.configuration_utils import DistributedConfig

    case = CASES.get(name) or PRECISE.get(name) or Case(name)
    place = out / name
    made = make(case)
    if dist.get_rank() == 0:
        made.save_pretrained(place)  # type: ignore[operator]
    dist.barrier()
    kind: Any = type(made)
    load = kind.from_pretrained
    reference: nn.Module = load(place, **case.load).eval()
    split = DistributedConfig(**{"tp_size": dist.get_world_size(), **case.split})
    model: nn.Module = load(place, distributed_config=split, **case.load).eval()
    return compare(model.get_submodule(case.part), reference.get_submodule(case.part))


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
            report[kind] = {"error": f"{type(error).__name__}: {error}"[:400]}
            report[kind]["trace"] = traceback.format_exc()
        (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
