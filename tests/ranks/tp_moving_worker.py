"""What every rank runs under torchrun for `test_tp_moving.py`: the moving of values between ranks.

Each check asserts on its own rank; the report of a rank is a JSON file, and ends with the first
check that failed there.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lensview.errors import (
    DegreeError,
    InputError,
    PlacementError,
    RankDivergenceError,
    SiteError,
)
from lensview.parallel import agreement, byhand
from lensview.parallel.agreement import agree, digest, share_errors
from lensview.parallel.degrees import check_degree, unplanned
from lensview.parallel.group import Grads, Ranks
from lensview.parallel.placements import Local, Packed, Placement, Scaled, Shard, Whole
from lensview.parallel.weights import weight
from tests.ranks.tp_models import VOCABULARY, WIDTH

SHORT = timedelta(seconds=1)
BOTH: tuple[Grads, ...] = ("sum", "same")


def ranks() -> Ranks:
    group = dist.group.WORLD
    assert group is not None
    return Ranks(group, torch.device("cpu"))


def cut(whole: Tensor, placement: Placement) -> Tensor:
    """This rank's piece, by `torch.chunk` alone."""
    count, rank = dist.get_world_size(), dist.get_rank()

    def chunk(value: Tensor, dim: int) -> Tensor:
        chunks = value.chunk(count, dim)
        return chunks[rank] if rank < len(chunks) else value.narrow(dim, 0, 0)

    if isinstance(placement, Shard):
        return chunk(whole, placement.dim)
    if isinstance(placement, Packed):
        dim = placement.dim
        parts = whole.split(whole.shape[dim] // placement.parts, dim)
        return torch.cat([chunk(part, dim) for part in parts], dim)
    return whole / count if isinstance(placement, Scaled) else whole.clone()


def wholes() -> list[tuple[Tensor, Placement]]:
    """Values of every kind, the same on every rank; some are not contiguous."""
    torch.manual_seed(1)
    return [
        (torch.randint(0, 9, (2, 7)), Shard(1, 7)),
        (torch.randn(3, 7, 5), Shard(1, 7)),
        (torch.randn(2, 4, 2).bfloat16(), Shard(2, 2)),
        (torch.rand(5, 3) > 0.5, Shard(0, 5)),
        (torch.randn(()), Whole()),
        (torch.randn(2, 3, 14).half(), Packed(2, 14, 2)),
        (torch.randn(4, 7).t(), Shard(0, 7)),
        (torch.randn(3, 4, dtype=torch.float64), Shard(1, 4)),
        (torch.randn(3, 4, dtype=torch.complex64).conj(), Shard(1, 4)),
        (torch.randn(2, 6), Scaled(dist.get_world_size())),
        (torch.randn(0, 6), Shard(1, 6)),
        (torch.randn(2, 3), Whole()),
        (torch.randn(7, 3).to(torch.float8_e4m3fn), Shard(0, 7)),
    ]


def same(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype and one.shape == other.shape
    if one.dtype is torch.float8_e4m3fn:
        one, other = one.float(), other.float()
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@contextmanager
def raises(kind: type[Exception], *texts: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), (text, str(error))
    else:
        raise AssertionError(f"no {kind.__name__}")


def flush(out: Path) -> Any:
    here = ranks()
    values = [(cut(whole, p), p) for whole, p in wholes()]
    found = here.to_first(values)
    assert here.counts.collectives == 1
    if here.rank == 0:
        assert found is not None
        for ours, (local, _), (whole, _) in zip(found, values, wholes(), strict=True):
            same(ours, whole)
            ours.view(-1).view(torch.uint8).zero_()
            assert not ours.numel() or ours.data_ptr() != local.data_ptr()
        for (local, p), (whole, _) in zip(values, wholes(), strict=True):
            same(local, cut(whole, p))
    else:
        assert found is None
    once = here.counts.bytes
    for ours, (whole, _) in zip(here.to_all(values), wholes(), strict=True):
        same(ours, whole)
    assert here.counts.collectives == 2 and here.counts.bytes == 2 * once
    largest = max(
        sum(piece.nbytes for piece in pieces)
        for pieces in zip(*(_pieces(w, p) for w, p in wholes()), strict=True)
    )
    assert once == largest
    return once


def _pieces(whole: Tensor, placement: Placement) -> list[Tensor]:
    """What travels of a value, by rank."""
    count = dist.get_world_size()
    if not isinstance(placement, (Shard, Packed)):
        return [whole[..., :0] if whole.ndim else whole.reshape(1)[:0]] * count
    chunks = [*whole.chunk(count, placement.dim)]
    if isinstance(placement, Packed):
        parts = whole.chunk(placement.parts, placement.dim)
        chunks = [
            torch.cat(c, placement.dim)
            for c in zip(*(part.chunk(count, placement.dim) for part in parts), strict=True)
        ]
    return chunks + [whole[:0]] * (count - len(chunks))


def nothing_to_move(out: Path) -> Any:
    here = ranks()
    whole, scaled = torch.randn(2, 3), Scaled(here.size)
    assert here.to_all([]) == [] and here.to_first([]) in ([], None)
    found = here.to_all([(whole, Whole()), (whole, scaled), (whole, Local("of its own."))])
    same(found[0], whole)
    same(found[1], whole * here.size)
    same(found[2], whole)
    found[2].zero_()
    assert whole.abs().sum() > 0
    assert here.whole(whole, Whole()) is whole and here.own(whole, Whole()) is whole
    assert here.counts.collectives == here.counts.bytes == 0
    with raises(PlacementError, "not"):
        here.to_first([(torch.randn(2, 3), Shard(1, 9 * here.size))])


def bounded(out: Path) -> Any:
    here = ranks()
    torch.manual_seed(2)
    values = [(torch.randn(4, 6), Shard(1, 6)) for _ in range(5)]
    mine = [(cut(whole, p), p) for whole, p in values]
    one = 4 * 6 * 4
    found = here.to_first(mine, max_bytes=2 * one)
    assert here.counts.collectives == 3
    assert here.to_first(mine, max_bytes=1) is None or here.rank == 0
    assert here.counts.collectives == 8
    for ours, (whole, _) in zip(found or [], values, strict=here.rank == 0):
        same(ours, whole)


def gradients(out: Path) -> Any:
    """Against autograd in one process: the value is cut, made whole, used, cut again, used."""
    here = ranks()
    torch.manual_seed(3)
    for placement in (Shard(1, 7), Shard(0, 2), Packed(1, 14, 2), Scaled(here.size)):
        shape = (2, placement.size) if isinstance(placement, (Shard, Packed)) else (2, 5)
        shape = (2, 7) if placement == Shard(0, 2) else shape
        base, weights, mix = torch.randn(shape), torch.randn(shape), torch.randn(shape[1], shape[1])

        alone = base.clone().requires_grad_()
        used = (alone @ mix).tanh()
        (used * weights).sum().backward()
        assert alone.grad is not None
        # What is scaled is summed to the whole: its gradient is the whole's.
        expected = alone.grad if isinstance(placement, Scaled) else cut(alone.grad, placement)

        for grads in BOTH:
            local = cut(base, placement).requires_grad_()
            whole = here.whole(local, placement, grads=grads)
            same(whole.detach(), base)
            own = here.own((whole @ mix).tanh(), placement, grads=grads)
            same(own.detach(), cut(used.detach(), placement))
            part = own * (weights if isinstance(placement, Scaled) else cut(weights, placement))
            part.sum().backward()
            assert local.grad is not None
            torch.testing.assert_close(local.grad, expected)

        # A loss that every rank computes alike.
        local = cut(base, placement).requires_grad_()
        whole = here.whole(local, placement, grads="same")
        ((whole @ mix).tanh() * weights).sum().backward()
        assert local.grad is not None
        torch.testing.assert_close(local.grad, expected)

        # A part of the loss on each rank, of the whole.
        local = cut(base, placement).requires_grad_()
        whole = here.whole(local, placement)
        rows = (whole @ mix).tanh() * weights
        rows.view(-1)[here.rank :: here.size].sum().backward()
        assert local.grad is not None
        torch.testing.assert_close(local.grad, expected)


def flipped(whole: Tensor, dim: int) -> Tensor:
    return whole.flip(dim) * 2


def edits(out: Path) -> Any:
    here = ranks()
    for whole, placement in wholes():
        if whole.dtype in (torch.bool, torch.float8_e4m3fn):
            continue
        for dim in range(whole.ndim):
            local = cut(whole, placement)
            ours, error = here.on_first(local, placement, partial(flipped, dim=dim))
            assert error is None
            same(ours, cut(flipped(whole, dim), placement))
            same(local, cut(whole, placement))
    # In place, and noise without a seed: one rank's noise on all.
    torch.manual_seed(100 + here.rank)
    local = torch.zeros(3, 4)
    noisy, _ = here.on_first(local, Whole(), lambda w: w.normal_())
    assert noisy.abs().min() > 0 and local.abs().max() == 0
    everywhere = [torch.empty(3, 4) for _ in range(here.size)]
    dist.all_gather(everywhere, noisy)
    assert all(torch.equal(other, noisy) for other in everywhere)
    before = here.counts.collectives
    here.on_first(noisy, Whole(), lambda w: w)
    here.on_first(cut(torch.zeros(2, 7), Shard(1, 7)), Shard(1, 7), lambda w: w)
    assert here.counts.collectives == before + 1 + 2


def edit_gradients(out: Path) -> Any:
    here = ranks()
    torch.manual_seed(4)
    for placement in (Whole(), Shard(1, 7), Shard(0, 2), Packed(1, 14, 2), Scaled(here.size)):
        width = placement.size if isinstance(placement, (Shard, Packed)) else 5
        width = 7 if placement == Shard(0, 2) else width
        base, weights, mix = torch.randn(2, width), torch.randn(2, width), torch.randn(width, width)
        vector = torch.randn(width)

        def fn(w: Tensor, v: Tensor, mix: Tensor = mix) -> Tensor:
            w[:, 0] *= 3
            return (w @ mix).tanh() * v

        alone, steered = base.clone().requires_grad_(), vector.clone().requires_grad_()
        (fn(alone * 1, steered) * weights).sum().backward()
        assert alone.grad is not None and steered.grad is not None
        scaled = isinstance(placement, Scaled)

        local, mine = cut(base, placement).requires_grad_(), vector.clone().requires_grad_()
        out_, error = here.on_first(local, placement, partial(fn, v=mine))
        assert error is None and out_.requires_grad
        (out_ * (weights if scaled else cut(weights, placement))).sum().backward()
        assert local.grad is not None
        expected = alone.grad if scaled else cut(alone.grad, placement)
        torch.testing.assert_close(local.grad, expected)
        # What the function itself used has its gradient where the function ran.
        assert (mine.grad is None) == (here.rank > 0)
        if mine.grad is not None:
            torch.testing.assert_close(mine.grad, steered.grad)

        # A function that lets no gradient through: zeros, and no rank waits for another.
        local = cut(base, placement).requires_grad_()
        out_, _ = here.on_first(local, placement, torch.ones_like)
        out_.sum().backward()
        assert local.grad is not None and local.grad.abs().sum() == 0


def errors(out: Path) -> Any:
    here = ranks()
    whole = torch.arange(14.0).reshape(2, 7)
    texts = []

    def fails(w: Tensor) -> Tensor:
        w.zero_()
        raise ValueError("not today")

    def talks(w: Tensor) -> Tensor:
        dist.all_reduce(w)
        return w

    def talks_of_objects(w: Tensor) -> Tensor:
        dist.broadcast_object_list([1])
        return w

    def waits(w: Tensor) -> Tensor:
        dist.barrier()
        return w

    cases: list[tuple[Callable[[Tensor], Any], str]] = [
        (fails, "ValueError: not today"),
        (talks, "ranks='all'"),
        (talks_of_objects, "ranks='all'"),
        (waits, "ranks='all'"),
        (lambda w: w[:1], "(1, 7)"),
        (lambda w: w.half(), "torch.float16"),
        (lambda w: None, "NoneType"),
        (lambda w: 1 / 0, "ZeroDivisionError"),
        (lambda w: exec("raise RuntimeError('é' * 5000)"), "RuntimeError: éé"),
    ]
    for placement in (Whole(), Shard(1, 7), Shard(0, 2)):
        for grad in (False, True):
            for fn, text in cases:
                local = cut(whole, placement).requires_grad_(grad)
                ours, error = here.on_first(local, placement, fn)
                assert error is not None and text in error, (text, error)
                assert len(error.encode()) <= 1022
                same(ours.detach(), cut(whole, placement))
                if grad:
                    ours.sum().backward()
                    assert local.grad is not None and bool((local.grad == 1).all())
                texts.append(error[:60])
    ours, error = here.on_first(cut(whole, Shard(1, 7)), Shard(1, 7), lambda w: w + 1)
    assert error is None
    same(ours, cut(whole + 1, Shard(1, 7)))
    before = here.counts.collectives
    with raises(PlacementError, "of its own"):
        here.on_first(whole, Local("of its own."), fails)
    assert here.counts.collectives == before
    return texts


def interrupted(out: Path) -> Any:
    """What stops the first rank stops it after the others have their answer."""
    here = ranks()

    def stops(w: Tensor) -> Tensor:
        raise KeyboardInterrupt("enough")

    local = cut(torch.ones(2, 7), Shard(1, 7))
    try:
        ours, error = here.on_first(local, Shard(1, 7), stops)
    except KeyboardInterrupt:
        assert here.rank == 0
    else:
        assert here.rank and error == "KeyboardInterrupt: enough"
        same(ours, local)
    ours, error = here.on_first(local, Shard(1, 7), lambda w: w * 2)
    assert error is None
    same(ours, local * 2)


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

    told = share_errors(here, "it broke" if here.rank == 1 else None)
    assert told == {1: "it broke"}
    assert share_errors(here, None) == {}
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
        share_errors(here, None)
    took = (time.monotonic() - start) / 1000
    # The barrier's own keys are few; those of a thousand rounds would be thousands.
    dist.barrier()
    assert store.num_keys() <= before + 20, (before, store.num_keys())
    return {"keys": [before, store.num_keys()], "seconds": took}


def llama(heads: int = 6) -> Any:
    """The same tiny model in every process, of uneven widths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def split_llama(out: Path) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    place = out / "model"
    if dist.get_rank() == 0 and not place.exists():
        llama().save_pretrained(place)
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(
        place, distributed_config=DistributedConfig(tp_size=dist.get_world_size())
    )


def weights(out: Path) -> Any:
    model, alone = split_llama(out), llama()
    here = Ranks.of(model)
    assert here is not None and Ranks.of(alone) is None
    assert (here.size, here.rank) == (dist.get_world_size(), dist.get_rank())
    split = 0
    some: list[Any] = [[5, 0, 23, 5, -1], slice(3, 17, 2), slice(None, None, -1), []]
    for name, parameter in alone.named_parameters():
        whole = weight(model, name)
        assert type(whole) is Tensor and not whole.requires_grad
        assert torch.equal(whole, parameter.detach())
        assert torch.equal(weight(alone, name), parameter.detach())
        for rows in some:
            numbers = list(range(len(parameter)))[rows] if isinstance(rows, slice) else rows
            expected = parameter.detach()[numbers]
            assert torch.equal(weight(model, name, rows), expected)
            assert torch.equal(weight(alone, name, rows), expected)
        split += type(model.get_parameter(name)).__name__ == "DTensor"
    assert torch.equal(
        weight(model, "model.rotary_emb.inv_freq"), weight(alone, "model.rotary_emb.inv_freq")
    )
    with raises(SiteError, "'lm_hed.weight'", "'lm_head.weight'"):
        weight(model, "lm_hed.weight")
    with raises(InputError, f"no row {VOCABULARY}"):
        weight(model, "lm_head.weight", [3, VOCABULARY])
    offloaded = nn.Linear(3, 2, device="meta")
    with raises(InputError, "offloaded", "(2, 3)"):
        weight(offloaded, "weight")
    return split


def by_hand(out: Path) -> Any:
    """An edit in a plain hook, on the split model and on the whole one: logits and gradients."""
    model, alone = split_llama(out), llama()
    ids = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
    torch.manual_seed(5)
    mix, mix_mlp = torch.randn(24, 24) / 5, torch.randn(WIDTH, WIDTH) / 5

    def run(net: Any) -> tuple[Tensor, list[Tensor], Tensor]:
        seen: list[Tensor] = []

        def edit(module: nn.Module, args: Any, value: Tensor, by: Tensor) -> Tensor:
            whole = byhand.gather(net, value)
            seen.append(whole)
            return byhand.shard(net, (whole @ by).tanh())

        layer = net.model.layers[0]
        handles = [
            layer.self_attn.q_proj.register_forward_hook(lambda m, a, v: edit(m, a, v, mix)),
            layer.mlp.act_fn.register_forward_hook(lambda m, a, v: edit(m, a, v, mix_mlp)),
        ]
        embedded = net.get_input_embeddings()(ids).detach().requires_grad_()
        logits = net(inputs_embeds=embedded).logits
        # The loss is of logits and of a gathered value, which every rank has alike.
        loss = logits.float().log_softmax(-1)[:, -1, 3].sum() + (seen[0] ** 2).sum()
        loss.backward()
        for handle in handles:
            handle.remove()
        assert embedded.grad is not None
        return logits.detach(), [s.detach() for s in seen], embedded.grad

    ours, theirs = run(model), run(alone)
    for one, other in zip([ours[0], *ours[1], ours[2]], [theirs[0], *theirs[1], theirs[2]]):  # noqa: B905
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for wrong, text in ((torch.zeros(2, 3 + dist.get_rank()), "holds"), (torch.zeros(()), "dim")):
        with raises(PlacementError, text):
            byhand.gather(model, wrong)
    with raises(PlacementError, "no dim 2"):
        byhand.shard(model, torch.zeros(2, 3), 2)


def degrees(out: Path) -> Any:
    """What `check_degree` lets through runs, and computes what one process does."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    size = dist.get_world_size()
    shapes: list[dict[str, Any]] = [
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 2, "hidden_size": 20},
        {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 4, "model_type": "qwen3"},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "model_type": "mixtral"},
    ]
    told = {}
    for i, shape in enumerate(shapes):
        kind = shape.pop("model_type", "llama")
        config = AutoConfig.for_model(
            kind,
            **{"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": WIDTH}
            | {"num_hidden_layers": 1, "num_local_experts": 4, "pad_token_id": None}
            | shape,
        )
        name = f"{kind} {shape['num_attention_heads']}/{shape['num_key_value_heads']}"
        try:
            check_degree(config, size)
        except DegreeError as error:
            told[name] = str(error)
            continue
        torch.manual_seed(0)
        # The grouped product wants strides of 16 bytes, which uneven shards have not.
        eager = {"experts_implementation": "eager"} if kind == "mixtral" else {}
        alone = AutoModelForCausalLM.from_config(config, **eager).eval()
        place = out / f"degrees{i}"
        if dist.get_rank() == 0:
            alone.save_pretrained(place)
        dist.barrier()
        model = AutoModelForCausalLM.from_pretrained(
            place, distributed_config=DistributedConfig(tp_size=size), **eager
        )
        assert unplanned(model) is None and Ranks.of(model) is not None
        ids = torch.tensor([[5, 17, 3, 9]])
        with torch.no_grad():
            torch.testing.assert_close(model(ids).logits, alone(ids).logits, rtol=1e-4, atol=1e-5)
        for at, parameter in alone.named_parameters():
            assert torch.equal(weight(model, at), parameter.detach()), at
            assert torch.equal(weight(model, at, [1, 0]), parameter.detach()[[1, 0]]), at
        told[name] = "runs"
    return told


CHECKS: tuple[Callable[[Path], Any], ...] = (
    flush,
    nothing_to_move,
    bounded,
    gradients,
    edits,
    edit_gradients,
    errors,
    interrupted,
    part_of_the_world,
    meshes,
    split_inside,
    agreement_check,
    many_rounds,
    weights,
    by_hand,
    degrees,
)


def main(out: Path, *only: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    report = {}
    for check in [c for c in CHECKS if not only or c.__name__ in only]:
        try:
            report[check.__name__] = {"said": check(out)}
        except Exception:
            # The ranks may be out of step now: what follows would wait for nothing.
            report[check.__name__] = {"error": traceback.format_exc()}
            break
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
