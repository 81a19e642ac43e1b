"""What every rank runs under torchrun: all checks of this folder in one process group.

Each check returns JSON; the report of a rank is one file, ``rank0.json`` and so on, which the tests
on the outside read. An error of a check is its report, so that one check does not hide the others.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import lensview as lv
from benchmarks.traffic import Traffic, counted

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90], [44, 2, 61, 7]])
"""The whole batch of three rows, and each rank's uneven part of it."""
PARTS = (slice(0, 2), slice(2, 3))
SITES = ["**", "model.layers.*.self_attn:input"]


def llama() -> Any:
    """The same tiny model in every process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=102,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def edits() -> list[lv.Intervention]:
    return [
        lv.scale("model.layers.1", 2.0),
        lv.add("model.layers.2.mlp", torch.arange(16.0), lv.at(token=-1)),
    ]


def mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


def hooks(model: nn.Module) -> list[tuple[int, int]]:
    return [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


def refused(model: nn.Module, inputs: Any = None, sites: Any = "**") -> dict[str, Any]:
    """A capture that must be refused: what it said, and whether anything of the model ran."""
    ran: list[str] = []
    handles = [
        m.register_forward_pre_hook(lambda m, _: ran.append(type(m).__name__))
        for m in model.modules()
    ]
    before = hooks(model)
    report: dict[str, Any] = {}
    try:
        lv.trace(model, IDS if inputs is None else inputs, sites)
        report["refused"] = False
    except RuntimeError as error:
        report["refused"] = isinstance(error, lv.DistributedCaptureUnsupportedError)
        report["text"] = str(error)
        report["findings"] = [(f.kind, f.where) for f in getattr(error, "findings", ())]
    report["left"] = hooks(model) != before
    for handle in handles:
        handle.remove()
    report["ran"] = ran
    told = lv.findings(model, inputs)
    report["told"] = [(f.kind, f.where) for f in told.refused]
    return report


def ddp(out: Path) -> Any:
    model = nn.parallel.DistributedDataParallel(llama())
    rank = dist.get_rank()
    trace = lv.trace(model, IDS[PARTS[rank]], SITES, edits())
    trace.save(out / f"part{rank}.safetensors")
    with torch.no_grad():
        logits = model(IDS[PARTS[rank]]).logits
    untouched = torch.equal(logits, llama()(IDS[PARTS[rank]]).logits.detach())
    return {"meta": trace.meta, "untouched": untouched, "sites": len(trace)}


def fsdp1(out: Path) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = llama()
    model.model.layers[1] = FullyShardedDataParallel(
        model.model.layers[1], device_id=torch.device("cpu")
    )
    return {
        "nested": refused(model),
        "whole": refused(
            FullyShardedDataParallel(llama(), device_id=torch.device("cpu")), sites="no.such.site"
        ),
    }


def fsdp2(out: Path) -> Any:
    """Before the first call ever, and with one layer of a plain model sharded."""
    from torch.distributed.fsdp import fully_shard

    whole, nested = llama(), llama()
    fully_shard(whole)
    fully_shard(nested.model.layers[1])
    sites = ["model.layers.0.mlp", "model.layers.1.mlp"]
    report = {"whole": refused(whole), "nested": refused(nested, sites=sites)}
    # The text says that this module can be captured by itself, and it can.
    layer = lv.trace(nested.model.layers[0].mlp, torch.ones(1, 2, 16), "**")
    return {**report, "alone": list(layer)}


def tensor_parallel(out: Path) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )
    from torch.distributed.tensor.placement_types import Replicate, Shard

    model, prepared = llama(), llama()
    plan = {"gate_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    parallelize_module(model.model.layers[0].mlp, mesh(), plan)
    # No parameter is split here: only hooks tell.
    style = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1))
    parallelize_module(prepared.model.layers[2].mlp, mesh(), style)
    return {"layers": refused(model), "hooks alone": refused(prepared)}


def tensors(out: Path) -> Any:
    """A buffer, an input and an attribute that are split, each in an otherwise plain model."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import init_from_local_shards
    from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[1].register_buffer("table", distribute_tensor(torch.ones(4, 4), mesh(), [Shard(0)]))
    rank = dist.get_rank()
    piece = LocalShard(torch.ones(2, 4), ShardMetadata([2 * rank, 0], [2, 4], f"rank:{rank}/cpu"))
    old = nn.Sequential(nn.Linear(4, 4))
    old[0].split = init_from_local_shards([piece], 4, 4)
    whole = distribute_tensor(torch.tensor([[1, 2]]), mesh(), [Replicate()])
    alone = {}
    if rank == 1:
        # On one rank alone: reading a DTensor would wait for the other for ever.
        alone = refused(llama(), {"input_ids": whole, "deep": [{"also": (whole,)}]})
    x = torch.ones(2, 4)
    return {"buffer": refused(model, x), "sharded": refused(old, x), "input": alone}


def hidden(out: Path) -> Any:
    """A mesh and a pipeline stage in containers of a module, and a stage's own module."""
    from dataclasses import dataclass
    from functools import partial

    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import ScheduleGPipe

    @dataclass
    class Helpers:
        groups: dict[str, Any]

    own: Any = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    stage = PipelineStage(own, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    model: Any = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    model[0].helpers = Helpers({"tp": [None, mesh()]})
    model[1].later = (partial(print, stage),)
    model[2].schedule = {"schedule": ScheduleGPipe(stage, 1)}
    x = torch.ones(2, 4)
    trace = lv.trace(own, x, "**")
    return {
        "hidden": refused(model, x),
        "own": {
            "fragment": trace.meta.get("fragment"),
            "warned": [f.what for f in lv.findings(own).warnings],
            "right": torch.equal(trace["0"], nn.functional.linear(x, own[0].weight, own[0].bias)),
        },
        "plain": lv.trace(nn.Sequential(nn.Linear(4, 4)), x, "**").meta.get("fragment"),
        "stage": str(lv.findings(stage)),
    }


def split_llama(out: Path) -> Any:
    """The same model, split by transformers over the ranks."""
    from transformers import LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    place = out / "model"
    if dist.get_rank() == 0:
        llama().save_pretrained(place)
    dist.barrier()
    split = DistributedConfig(tp_size=dist.get_world_size())
    return LlamaForCausalLM.from_pretrained(place, distributed_config=split).eval()


def transformers_tp(out: Path) -> Any:
    return refused(split_llama(out))


def reading(out: Path) -> Any:
    """What a read adds to a forward, at its first run and at the next, and whether it is right."""
    model, whole = split_llama(out), llama()
    reads = {
        "layers": ["model.layers.{}"],
        "sums": ["model.layers.{}.self_attn.o_proj", "model.layers.{}.mlp.down_proj"],
        "shards": ["model.layers.{}.self_attn.q_proj"],
    }
    base = traffic(lambda: model(IDS))
    report = {}
    for name, patterns in reads.items():
        sites = [pattern.format(i) for i in range(3) for pattern in patterns]
        traces: list[lv.Trace] = []

        def read(sites: list[str] = sites, traces: list[lv.Trace] = traces) -> None:
            traces.append(lv.trace(model, IDS, sites))

        first, later = traffic(read).beyond(base), traffic(read).beyond(base)
        expected = lv.trace(whole, IDS, sites)
        right = [
            torch.allclose(t[s], expected[s], 1e-5, 1e-6) for t in traces for s in sites if s in t
        ]
        report[name] = {"first": asdict(first), "later": asdict(later), "right": right}
    return report


def traffic(run: Callable[[], Any]) -> Traffic:
    with counted() as found, torch.no_grad():
        run()
    return found


CHECKS: tuple[Callable[[Path], Any], ...] = (
    ddp,
    fsdp1,
    fsdp2,
    tensor_parallel,
    tensors,
    hidden,
    transformers_tp,
    reading,
)


def main(out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    report = {}
    for check in CHECKS:
        try:
            report[check.__name__] = check(out)
        except Exception:
            report[check.__name__] = {"error": traceback.format_exc()}
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
