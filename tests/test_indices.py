"""Indices: as torch where torch is exact, an error wherever torch would clip, drop or guess."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lensview.errors import InterventionError
from lensview.indices import at, index_text, normal, parse_index
from lensview.regions import Frame, regions

SHAPE = (2, 5, 4)


def chosen(index: Any, shape: tuple[int, ...] = SHAPE, frame: Frame | None = None) -> torch.Tensor:
    """A bool tensor of `shape`, True where `index` selects."""
    hit = torch.zeros(shape, dtype=torch.bool)
    for region in regions(normal(index), shape, frame or Frame(), "here"):
        hit[region.grid] = True
    return hit


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(1, 2),
        ...,
        (0, 3),
        (slice(None), slice(1, 3)),
        (..., -1),
        (1, ..., 2),
        (slice(None), [0, 4, 2]),
        (slice(None), slice(0, 5, 2), -2),
        ([1], slice(-3, -1)),
    ],
)
def test_selects_what_torch_selects(index: Any) -> None:
    expected = torch.zeros(SHAPE, dtype=torch.bool)
    expected[index] = True
    assert torch.equal(chosen(index), expected)


def test_an_int_keeps_its_dim() -> None:
    (region,) = regions(normal((0, 3)), SHAPE, Frame(), "here")
    assert torch.zeros(SHAPE)[region.grid].shape == (1, 1, 4)


@pytest.mark.parametrize(
    "index",
    [
        2,
        -3,
        (0, 5),
        (0, -6),
        (slice(None), slice(3, 99)),
        (slice(None), slice(7, 9)),
        (slice(None), slice(3, 3)),
        (slice(None), [0, 9]),
        (0, 0, 0, 0),
        ([0, 0],),
    ],
)
def test_out_of_range_or_nothing_selected_is_an_error(index: Any) -> None:
    with pytest.raises(InterventionError, match="here"):
        chosen(index)


@pytest.mark.parametrize(
    "index",
    [
        True,
        1.5,
        "0",
        (None,),
        ([0], [1]),
        slice(None, None, -1),
        [],
        (..., ...),
        [True, False],
        torch.tensor([True, False]),
    ],
)
def test_what_is_no_index_is_refused(index: Any) -> None:
    with pytest.raises(InterventionError):
        normal(index)


@pytest.mark.parametrize(
    "text", ["", "0", "0, 3", ":, 1:3", "..., -1", "[0, 2], :", "0:4:2", "at(batch=0, token=-1)"]
)
def test_text_and_back(text: str) -> None:
    assert index_text(parse_index(text)) == text


@pytest.mark.parametrize("text", ["a", "1.5", "0;1", "at(word=1)", "[0", "[a]", "1:2:3:4"])
def test_text_that_is_no_index_is_refused(text: str) -> None:
    with pytest.raises(InterventionError):
        parse_index(text)


_items = st.one_of(
    st.integers(-3, 3),
    st.builds(slice, st.none() | st.integers(-3, 3), st.none() | st.integers(-3, 3)),
    st.just(...),
    st.lists(st.integers(-3, 3), min_size=1, max_size=3),
)


@given(st.lists(_items, min_size=1, max_size=4))
def test_any_index_is_either_torchs_own_selection_or_an_error(items: list[Any]) -> None:
    index = tuple(items)
    shape = (3, 3, 3)
    try:
        hit = chosen(index, shape)
    except InterventionError:
        return
    expected = torch.zeros(shape, dtype=torch.bool)
    expected[index] = True
    assert torch.equal(hit, expected)
    assert index_text(parse_index(index_text(normal(index)))) == index_text(normal(index))


def test_at_counts_real_tokens_from_either_end_on_either_side_of_padding() -> None:
    right = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    left = right.flip(1)
    last = chosen(at(token=-1), frame=Frame(right))
    assert last[:, :, 0].nonzero().tolist() == [[0, 2], [1, 4]]
    first = chosen(at(token=0), frame=Frame(left))
    assert first[:, :, 0].nonzero().tolist() == [[0, 2], [1, 0]]
    one = chosen(at(batch=1, token=[0, 4], feature=2), frame=Frame(right))
    assert one.nonzero().tolist() == [[1, 0, 2], [1, 4, 2]]
    with pytest.raises(InterventionError, match="3 real tokens of row 0"):
        chosen(at(token=3), frame=Frame(right))
    with pytest.raises(InterventionError, match="dims"):
        chosen(at(token=0), (10, 4), Frame(right))
    with pytest.raises(InterventionError, match="no tokens"):
        chosen(at(token=0))


def test_at_picks_heads_only_where_they_are_known() -> None:
    frame = Frame(None, heads=2)
    assert chosen(at(head=1), frame=frame)[0, 0].tolist() == [False, False, True, True]
    assert chosen(at(head=-1, feature=0), frame=frame)[0, 0].tolist() == [False, False, True, False]
    with pytest.raises(InterventionError, match="2 heads"):
        chosen(at(head=3), frame=frame)
    with pytest.raises(InterventionError, match="not known"):
        chosen(at(head=0))
