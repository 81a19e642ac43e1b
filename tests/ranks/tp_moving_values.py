"""Checks on every rank: pieces of values, and edits of them, on their way between ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lensview.errors import (
    PlacementError,
)
from lensview.parallel.group import Grads, Ranks
from lensview.parallel.placements import Local, Packed, Placement, Scaled, Shard, Whole
from tests.ranks.tp_capture_pair import raises

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
