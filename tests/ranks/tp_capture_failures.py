"""Checks of runs on a split model that fail: on all ranks alike, and the next run works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lensview as lv
from tests.ranks.tp_capture_edits import ACT, LAST, Q, times
from tests.ranks.tp_capture_pair import IDS, Found, Pair, alike, hooks, pair, raises, report, traced


class Alone(Exception):
    """What one rank raises by itself."""


def after(two: Pair, found: Found, name: str, before: Any, state: Any) -> None:
    """The model is as it was, the random state as said, and the next run is right."""
    assert hooks(two.split) == before, name
    assert torch.equal(torch.get_rng_state(), state), f"{name}: another random state"
    edits = [lv.scale(Q, 2.0), lv.call(ACT, times)]
    found.runs(f"after {name}", two, lambda m: lv.trace(m, IDS, [Q, LAST], edits))
    dist.barrier()


def failing(
    two: Pair, found: Found, name: str, kind: type[Exception], run: Any, *texts: str
) -> Any:
    before = hooks(two.split)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    with raises(kind, *texts) as said:
        run(two.split)
    after(two, found, name, before, state)
    return said


def boom(tensor: Tensor) -> Tensor:
    raise ValueError("boom")


def shorter(tensor: Tensor) -> Tensor:
    return tensor[..., :-1]


def talking(tensor: Tensor) -> Tensor:
    dist.all_reduce(tensor.clone())
    return tensor


def alike_everywhere(out: Path) -> Any:
    """Errors of functions, sites and interventions are the same on every rank."""
    two, found = pair("llama", out), Found()
    trace = lv.trace
    cases: list[tuple[str, type[Exception], Callable[[Any], Any], tuple[str, ...]]] = []

    def case(name: str, kind: type[Exception], run: Callable[[Any], Any], *texts: str) -> None:
        cases.append((name, kind, run, texts))

    wrong = lv.InterventionError
    for site in (Q, "model.layers.1"):
        case("boom", wrong, traced(IDS, [LAST], lv.call(site, boom)), "boom", site)
        short = lv.call(site, shorter)
        case("shape", wrong, traced(IDS, [LAST], short), site)
        talk = lv.call(site, talking)
        case("talk", wrong, traced(IDS, [LAST], talk), "ranks='all'")
    two_fail = [lv.call(Q, boom), lv.call(ACT, boom)]
    case("two", wrong, lambda m: trace(m, IDS, [LAST], two_fail), Q)
    case("step", wrong, lambda m: lv.generate(m, IDS, [LAST], lv.call(Q, boom)), "boom")
    case("range", wrong, lambda m: trace(m, IDS, [LAST], lv.zero(Q, lv.at(feature=99))), Q)
    case("no head", wrong, lambda m: trace(m, IDS, [LAST], lv.zero(Q, lv.at(head=4))), Q)
    case("size", wrong, lambda m: trace(m, IDS, [LAST], lv.add(Q, torch.ones(16))), Q)
    case("no site", lv.SiteError, lambda m: trace(m, IDS, ["model.layers.1.q_prj"]), "q_prj")
    idle = lv.zero("model.layers.1@3")
    case(
        "idle", lv.IdleInterventionError, lambda m: trace(m, IDS, [LAST], idle), "model.layers.1@3"
    )
    inside = lv.zero("model.embed_tokens/embedding")
    if hasattr(two.split.model.embed_tokens.weight, "placements"):  # old versions copy it
        case("rank-local", wrong, lambda m: trace(m, IDS, [], inside), "added up")
    said = {}
    for number, (name, kind, run, texts) in enumerate(cases):
        said[f"{name} {number}"] = failing(two, found, name, kind, run, *texts)
    alike(said)
    return report(found) | {"said": said}


def diverging(out: Path) -> Any:
    """Another plan, other inputs, another option or another random state on one rank: told on
    every rank before anything runs."""
    two, found = pair("llama", out), Found()
    rank = dist.get_rank()
    ran: list[int] = []
    handle = two.split.register_forward_pre_hook(lambda *_: ran.append(1))
    sites = [LAST] if rank else [Q]
    edit = lv.scale(Q, 2.0 + rank)
    kind = lv.RankDivergenceError
    trace, generate = lv.trace, lv.generate
    other = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS) * (1 - rank)}
    for name, run in {
        "sites": lambda m: trace(m, IDS, sites),
        "edit": lambda m: trace(m, IDS, [LAST], edit),
        "function": lambda m: trace(m, IDS, [LAST], lv.call(Q, boom if rank else times)),
        "input": lambda m: trace(m, IDS + rank, [LAST]),
        "mask": lambda m: trace(m, other, [LAST]),
        "rows": lambda m: trace(m, IDS[: 2 - rank], [LAST]),
        "kind": lambda m: (trace if rank else generate)(m, IDS, [LAST]),
        "tokens": lambda m: generate(m, IDS, [LAST], max_new_tokens=2 + rank),
        "option": lambda m: generate(m, IDS, [LAST], use_cache=bool(rank)),
        "records": lambda m: trace(m, IDS, [LAST], records="all" if rank else "rank0"),
    }.items():
        ran.clear()
        said = failing(two, found, name, kind, run)
        alike(said)
    torch.manual_seed(rank)
    ran.clear()
    with raises(kind, "random state"):
        generate(two.split, IDS, [LAST], do_sample=True)
    assert not ran
    from transformers import GenerationConfig

    with raises(kind, "random state"):
        generate(two.split, IDS, [LAST], generation_config=GenerationConfig(do_sample=True))
    handle.remove()
    return report(found)


def one_alone(out: Path) -> Any:
    """One rank raises by itself, in a hook of its own at the end of the forward."""
    two, found = pair("llama", out), Found()
    rank = dist.get_rank()
    last = dist.get_world_size() - 1

    def raising(module: nn.Module, *_: Any) -> None:
        if rank == last:
            raise Alone("only here")

    edits = [lv.scale(Q, 2.0)]
    runs: dict[str, Callable[[Any], Any]] = {
        "edit": lambda m: lv.trace(m, IDS, [LAST], edits),
        "no edit": lambda m: lv.trace(m, IDS, ["model.layers.0"]),
        "gather": lambda m: lv.trace(m, IDS, [Q], edits, stop=False),
        "step": lambda m: lv.generate(m, IDS, [LAST], edits, max_new_tokens=2),
    }
    for name, run in runs.items():
        before = hooks(two.split)
        handle = two.split.register_forward_hook(raising, prepend=True)
        with raises(Alone if rank == last else lv.RankDivergenceError, "only here"):
            run(two.split)
        handle.remove()
        assert hooks(two.split) == before, name
        after(two, found, name, before, torch.get_rng_state())
    return report(found)


def wrapped(out: Path) -> Any:
    """FSDP inside a split model is refused, and told apart from the splitting."""
    from torch.distributed.fsdp import fully_shard

    two = pair("llama", out)
    two.split.model.extra = fully_shard(nn.Linear(4, 4))
    with raises(lv.DistributedCaptureUnsupportedError, "model.extra") as said:
        lv.trace(two.split, IDS, [LAST])
    alike(said)
    del two.split.model.extra
    lv.trace(two.split, IDS, [LAST])
    return {"said": said}


CHECKS = (alike_everywhere, diverging, one_alone, wrapped)
