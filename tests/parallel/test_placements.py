"""Placements: cut as torch and DTensor cut, joined to what was cut."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import lensview as lv
from lensview.errors import PlacementError
from lensview.parallel.placements import (
    Local,
    Packed,
    Placement,
    Scaled,
    Shard,
    Whole,
    from_json,
    join,
    local_size,
    local_start,
    piece,
    piece_shape,
    to_json,
    whole_shape,
)

ALL: list[tuple[Placement, str]] = [
    (Whole(), "whole"),
    (Shard(2, 48), "shard of dim 2 (48)"),
    (Packed(1, 12, 2), "packed shard of dim 1 (2 × 6)"),
    (Scaled(2), "1/2 on each rank"),
    (Local("experts see other tokens on each rank."), "rank-local: experts see other tokens "),
]


def pieces(whole: Tensor, placement: Placement, ranks: int) -> list[Tensor]:
    return [piece(whole, placement, ranks, rank) for rank in range(ranks)]


@given(size=st.integers(1, 40), ranks=st.integers(1, 9))
def test_chunks_are_those_of_torch(size: int, ranks: int) -> None:
    whole = torch.arange(float(2 * size)).reshape(2, size)
    cut = list(whole.chunk(ranks, 1))
    cut += [whole[:, :0]] * (ranks - len(cut))
    for rank, chunk in enumerate(cut):
        assert local_size(size, ranks, rank) == chunk.shape[1]
        assert torch.equal(piece(whole, Shard(1, size), ranks, rank), chunk)
        assert torch.equal(whole[:, local_start(size, ranks, rank) :][:, : chunk.shape[1]], chunk)
        assert piece_shape(Shard(1, size), whole.shape, ranks, rank) == tuple(chunk.shape)
        assert whole_shape(Shard(1, size), chunk.shape) == (2, size)


def test_chunks_are_those_of_dtensor() -> None:
    from torch.distributed.tensor import Shard as Their

    for size in range(1, 20):
        for ranks in range(1, 6):
            for rank in range(ranks):
                ours = (local_size(size, ranks, rank), local_start(size, ranks, rank))
                assert Their.local_shard_size_and_offset(size, ranks, rank) == ours


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_joined_is_what_was_cut(dim: int, ranks: int, dtype: torch.dtype) -> None:
    whole = (torch.randn(4, 6, 8) * 3).to(dtype).transpose(0, 1)
    size = whole.shape[dim]
    for placement in (Shard(dim, size), Packed(dim, size, 2), Whole()):
        cut = pieces(whole, placement, ranks)
        joined = join(cut, placement)
        assert torch.equal(joined, whole) and joined.dtype is dtype
        for part in cut:
            assert part.is_contiguous() and part.data_ptr() != whole.data_ptr()
            assert not part.numel() or joined.data_ptr() != part.data_ptr()


def test_packed_is_gate_of_all_ranks_then_up_of_all() -> None:
    gate, up = torch.arange(7.0), 100 + torch.arange(7.0)
    whole = torch.cat([gate, up])
    cut = pieces(whole, Packed(0, 14, 2), 3)
    by_hand = [torch.cat(both) for both in zip(gate.chunk(3), up.chunk(3), strict=True)]
    for ours, theirs in zip(cut, by_hand, strict=True):
        assert torch.equal(ours, theirs)
    assert [p.shape[0] for p in cut] == [6, 6, 2]
    assert torch.equal(join(by_hand, Packed(0, 14, 2)), whole)


def test_scaled_is_multiplied_and_of_no_dim() -> None:
    whole = torch.tensor(6.0)
    cut = pieces(whole, Scaled(2), 2)
    assert [p.item() for p in cut] == [3.0, 3.0]
    assert join(cut, Scaled(2)).item() == 6.0
    assert join([whole, whole], Whole()).shape == ()


@pytest.mark.parametrize("placement", [Shard(0, 6), Whole()])
def test_what_is_joined_or_cut_is_never_a_view(placement: Placement) -> None:
    whole = torch.arange(6.0)
    alone = piece(whole, placement, 1, 0)
    alone.zero_()
    assert whole[5] == 5
    joined = join([whole], placement)
    joined.zero_()
    assert whole[5] == 5


def test_what_does_not_fit_is_refused_by_rank_and_shape() -> None:
    with pytest.raises(PlacementError, match=r"Rank 1 of 2 holds \(2, 4\), not \(2, 3\)"):
        join([torch.zeros(2, 4), torch.zeros(2, 4)], Shard(1, 7))
    with pytest.raises(PlacementError, match=r"Rank 1 of 2 holds \(3,\)"):
        join([torch.zeros(2), torch.zeros(3)], Whole())
    with pytest.raises(PlacementError, match="is not the whole"):
        piece(torch.zeros(2, 4), Shard(1, 8), 2, 0)
    with pytest.raises(PlacementError, match="has no dim 2"):
        piece(torch.zeros(2, 4), Shard(2, 8), 2, 0)
    with pytest.raises(PlacementError, match="not 2 equal parts"):
        piece(torch.zeros(7), Packed(0, 7, 2), 2, 0)
    with pytest.raises(PlacementError, match="3 ranks cannot hold 1/2"):
        join([torch.zeros(1)] * 3, Scaled(2))
    whole, local = torch.zeros(2), Local("nobody knows.")
    with pytest.raises(PlacementError, match="nobody knows"):
        join([whole], local)
    with pytest.raises(PlacementError, match="nobody knows"):
        piece(whole, local, 1, 0)


@pytest.mark.parametrize(("placement", "text"), ALL, ids=[text for _, text in ALL])
def test_texts_and_json(placement: Placement, text: str) -> None:
    assert str(placement).startswith(text)
    assert from_json(json.loads(json.dumps(to_json(placement)))) == placement


@pytest.mark.parametrize(
    "data",
    [
        None,
        "whole",
        {},
        {"kind": "sharded"},
        {"kind": "shard", "dim": 1},
        {"kind": "shard", "dim": -1, "size": 4},
        {"kind": "shard", "dim": "1", "size": 4},
        {"kind": "shard", "dim": True, "size": 4},
        {"kind": "packed", "dim": 1, "size": 4, "parts": 0},
        {"kind": "whole", "more": 1},
        {"kind": "local", "reason": ""},
        {"kind": "local", "reason": 3},
    ],
)
def test_foreign_json_is_refused(data: object) -> None:
    with pytest.raises(lv.TraceFileError, match="is not a placement"):
        from_json(data)
