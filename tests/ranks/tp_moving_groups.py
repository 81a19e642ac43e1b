"""Checks on every rank: which ranks belong together, and what they agree on over the store."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lensview.errors import (
    RankDivergenceError,
)
from lensview.parallel import agreement
from lensview.parallel.agreement import agree, digest, exchange
from lensview.parallel.group import Ranks
from lensview.parallel.placements import Shard, Whole
from tests.ranks.tp_capture_pair import raises
from tests.ranks.tp_moving_values import ranks, same

SHORT = timedelta(seconds=1)


def part_of_the_world(out: Path) -> Any:
    """A group whose first rank is not the world's, where there are three."""
    size = dist.get_world_size()
    members = [size - 2, size - 1]
    group = dist.new_group(members)
    if dist.get_rank() in members:
        here = Ranks(group, torch.device("cpu"))
        at = members.index(dist.get_rank())
        assert (here.rank, here.size) == (at, 2)
        whole = torch.arange(14.0).reshape(2, 7)
        local = whole.chunk(2, 1)[at].clone().requires_grad_()
        found = here.to_first([(local, Shard(1, 7))])
        assert (found is not None) == (at == 0)
        same(here.to_all([(local, Shard(1, 7))])[0], whole)
        ours, error = here.on_first(local, Shard(1, 7), lambda w: w.flip(1) ** 2)
        assert error is None
        ours.sum().backward()
        same(ours.detach(), (whole.flip(1) ** 2).chunk(2, 1)[at])
        assert local.grad is not None
        same(local.grad, 2 * whole.chunk(2, 1)[at])
        noisy, _ = here.on_first(torch.zeros(3), Whole(), lambda w: w.normal_())
        assert len({str(n.tolist()) for n in here.to_all([(noisy, Whole())])}) == 1
        agree(here, "trace", {"ids": "i"})
        with raises(RankDivergenceError, "rank 1 has another 'ids'"):
            agree(here, "trace", {"ids": str(at)})
    dist.barrier()


def meshes(out: Path) -> Any:
    """Which mesh a model's tensors are split over, of all that it may have."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    size = dist.get_world_size()
    both = init_device_mesh("cpu", (1, size), mesh_dim_names=("fsdp", "tp"))
    plain = nn.Sequential(nn.Linear(6, 6))
    assert Ranks.of(plain) is None
    for mesh in (both["tp"], init_device_mesh("cpu", (size,))):
        by_parameters = parallelize_module(
            nn.Sequential(nn.Linear(6, 6)), mesh, {"0": ColwiseParallel()}
        )
        found = Ranks.of(by_parameters)
        assert found is not None and (found.rank, found.size) == (dist.get_rank(), size)
    marked: Any = nn.Sequential(nn.Linear(6, 6))
    marked._device_mesh = both
    found = Ranks.of(nn.Sequential(marked))
    assert found is not None and found.size == size
    marked._device_mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("fsdp",))
    assert Ranks.of(marked) is None
    sharded: Any = nn.Sequential(nn.Linear(6, 6))
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    assert Ranks.of(sharded) is None


def split_inside(out: Path) -> Any:
    """A DTensor's own collectives are seen too, where a function uses a split weight."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard as TheirShard
    from torch.distributed.tensor import distribute_tensor

    here = ranks()
    mesh = init_device_mesh("cpu", (here.size,))
    split = distribute_tensor(torch.eye(6), mesh, [TheirShard(0)])
    _, error = here.on_first(torch.ones(2, 6), Whole(), lambda w: w @ split.full_tensor())
    assert error is not None and "ranks='all'" in error, error
    dist.barrier()


def agreement_check(out: Path) -> Any:
    here = ranks()
    ids = torch.arange(6).reshape(2, 3)
    for _ in range(3):
        agree(here, "trace", {"plan": digest(["a", 1]), "input_ids": digest(ids)})
    agree(here, "trace", digest(ids))

    start = time.monotonic()
    mine = ids + (here.rank == 1)
    with raises(RankDivergenceError, "rank 1 has another 'input_ids' (int64 [2, 3] ", "trace"):
        agree(here, "trace", {"plan": "p", "input_ids": digest(mine), "mask": digest(mine)})
    with raises(RankDivergenceError, "rank 1 has no 'mask'"):
        parts = {"input_ids": digest(ids)} | ({} if here.rank == 1 else {"mask": "m"})
        agree(here, "trace", parts)
    with raises(RankDivergenceError, "rank 1 has 'mask', which rank 0 has not"):
        agree(here, "trace", {"ids": "i"} | ({"mask": "m"} if here.rank == 1 else {}))
    with raises(RankDivergenceError, "rank 1 has a generation, where rank 0 has a trace"):
        agree(here, "generation" if here.rank == 1 else "trace", {"ids": "i"})
    assert time.monotonic() - start < 5

    # One that does not come is named, and what follows is as if nothing had been asked.
    if here.rank:
        with raises(RankDivergenceError, "Rank 0 of", "did not come to this trace within 1 s"):
            agree(here, "trace", {"ids": "i"}, timeout=SHORT)
    dist.barrier()
    agree(here, "trace", {"ids": "i"})

    told = exchange(here, "end of a run", f"rank {here.rank}")
    assert told == [f"rank {rank}" for rank in range(here.size)]
    return time.monotonic() - start


def many_rounds(out: Path) -> Any:
    here = ranks()
    store = agreement._store()
    agree(here, "trace", {"ids": "i"})
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    start = time.monotonic()
    for _ in range(500):
        agree(here, "trace", {"ids": "i"})
        exchange(here, "end of a run", "")
    took = (time.monotonic() - start) / 1000
    # The barrier's own keys are few; those of a thousand rounds would be thousands.
    dist.barrier()
    assert store.num_keys() <= before + 20, (before, store.num_keys())
    return {"keys": [before, store.num_keys()], "seconds": took}
