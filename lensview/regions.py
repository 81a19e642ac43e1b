"""Region: what an index selects of a tensor of a given shape.

Owns the arithmetic of indices, stricter than torch's: an int keeps its dim, and whatever is out of
range is an error, slices too; nothing is clipped, so an index that would quietly select nothing
cannot exist. It touches no tensor but the mask of real tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .errors import InterventionError
from .indices import At, Index, Item, index_text

Grid = tuple[slice | list[int], ...]
"""One item per dim; at most one is a list, so that a region is always a grid."""


@dataclass(frozen=True)
class Frame:
    """What an index needs to know of a run besides the tensor's shape.

    Attributes:
        mask: bool (B, T), True at real tokens; None where the run has no tokens.
        heads: how many heads the last dim holds at this site, or None where nobody knows.
        maps: how many heads dim 1 of attention weights (B, H, T, T) has at this site, or None
            where the value is none.
        step: the decode step, 0 for a forward and a prefill; noise has a stream for each.
        positions: int64 (B, T), for each column its place among the real tokens of the whole
            sequence, -1 at padding. Given where a run is one step of several and may hold only a
            part of the sequence; then tokens count in the sequence, and those that are not here
            are passed over. None: the run holds the sequence, and counts in `mask`.
    """

    mask: Tensor | None = None
    heads: int | None = None
    maps: int | None = None
    step: int = 0
    positions: Tensor | None = None

    def covering(self, covered: bool) -> Frame:
        """The frame at a site: without tokens where the value there does not hold them."""
        return self if covered else replace(self, mask=None, positions=None)


@dataclass(frozen=True)
class Region:
    """One rectangular part of a tensor, and which row of the selection it is.

    `row` is None where this region is the whole selection; otherwise it is the row that this
    region stands for in it (token indices fall on other columns in each batch row).

    `whole` is how many rows and tokens the selection has where only a part of its tokens is here,
    and `picks` are which of them; see `Frame.positions`.
    """

    grid: Grid
    row: int | None = None
    whole: tuple[int, int] | None = None
    picks: tuple[int, ...] = ()


def regions(index: Index, shape: Sequence[int], frame: Frame, where: str) -> list[Region]:
    """The parts of a tensor of `shape` that `index` selects.

    Args:
        where: the site's text, for messages.

    Raises:
        InterventionError: out of range, selects nothing, or names a dim the value does not have.
    """
    if index is None:
        return [Region(tuple(slice(0, n, 1) for n in shape))]
    if isinstance(index, At):
        return _meaning(index, shape, frame, where)
    return [Region(_grid(_aligned(index, len(shape), shape, where), shape, where))]


def _aligned(index: Any, dims: int, shape: Sequence[int], where: str) -> list[Item]:
    items: list[Item] = list(index if isinstance(index, tuple) else (index,))
    given = sum(i is not Ellipsis for i in items)
    if given > dims:
        raise InterventionError(
            f"{where}: the index [{index_text(index)}] has {given} dims, but the value has "
            f"{dims}: shape {tuple(shape)}."
        )
    rest: list[Item] = [slice(None)] * (dims - given)
    if Ellipsis in items:
        i = items.index(Ellipsis)
        return [*items[:i], *rest, *items[i + 1 :]]
    return [*items, *rest]


def _grid(items: Sequence[Item], shape: Sequence[int], where: str) -> Grid:
    return tuple(
        _bounded(item, n, f"dim {dim} of size {n} (shape {tuple(shape)})", where)
        for dim, (item, n) in enumerate(zip(items, shape, strict=True))
    )


def _bounded(item: Item, size: int, what: str, where: str) -> slice | list[int]:
    """`item` with ends counted from the front, all of it within `size`; `what` is for messages."""
    if isinstance(item, int):
        first = _position(item, size, what, where)
        return slice(first, first + 1, 1)
    if isinstance(item, tuple):
        chosen = [_position(i, size, what, where) for i in item]
        if len(set(chosen)) < len(chosen):
            raise InterventionError(f"{where}: the list {list(item)} names an element twice.")
        return chosen
    assert isinstance(item, slice)
    start = 0 if item.start is None else item.start
    stop = size if item.stop is None else item.stop
    if not (-size <= start <= size and -size <= stop <= size):
        raise _out_of_range(index_text(item), what, where)
    start, stop = (b + size if b < 0 else b for b in (start, stop))
    if start >= stop and not (size == 0 and item == slice(None)):
        raise InterventionError(f"{where}: index {index_text(item)} selects nothing of {what}.")
    return slice(start, stop, item.step or 1)


def _position(item: int, size: int, what: str, where: str) -> int:
    if not -size <= item < size:
        raise _out_of_range(str(item), what, where)
    return item % size


def _out_of_range(text: str, what: str, where: str) -> InterventionError:
    return InterventionError(
        f"{where}: index {text} is out of range for {what}. Indices are never clipped."
    )


def _meaning(index: At, shape: Sequence[int], frame: Frame, where: str) -> list[Region]:
    items: list[Item] = [slice(None)] * len(shape)
    if index.batch is not None:
        _need(len(shape) >= 1, f"{where}: a 0-d value has no batch dim.")
        items[0] = index.batch
    if index.head is not None and frame.maps is not None and len(shape) == 4:
        return [Region(_one_list(_weights(index, shape, frame.maps, where), where))]
    if index.head is not None or index.feature is not None:
        _features(index, shape, items, frame, where)
    if index.token is None:
        return [Region(_one_list(_grid(items, shape, where), where))]
    return _tokens(index.token, shape, items, frame, where)


def _need(true: bool, text: str) -> None:
    if not true:
        raise InterventionError(text)


def _weights(index: At, shape: Sequence[int], heads: int, where: str) -> Grid:
    """The grid in attention weights (B, H, T, T), where heads have a dim of their own."""
    _need(
        shape[1] == heads,
        f"{where}: the model has {heads} heads, but dim 1 of shape {tuple(shape)} is another size.",
    )
    _need(
        index.token is None,
        f"{where}: attention weights have a query and a key token; index dims 2 and 3 themselves.",
    )
    items = [index.batch, index.head, None, index.feature]
    return _grid([slice(None) if i is None else i for i in items], shape, where)


def _features(index: At, shape: Sequence[int], items: list[Item], frame: Frame, where: str) -> None:
    if index.head is None:
        _need(len(shape) >= 2, f"{where}: shape {tuple(shape)} has no feature dim after a batch.")
        assert index.feature is not None
        items[-1] = index.feature
        return
    _need(
        frame.heads is not None,
        f"{where}: heads are not known here (shape {tuple(shape)}). They are only at the outputs "
        "of modules named q_proj, k_proj and v_proj, at the input of one named o_proj and in "
        "attention weights; elsewhere index the dim itself.",
    )
    heads = frame.heads or 1
    width, rest = divmod(shape[-1], heads)
    _need(not rest, f"{where}: {heads} heads do not divide the last dim of shape {tuple(shape)}.")
    chosen = _numbers(index.head, heads, f"the {heads} heads", where)
    within = slice(None) if index.feature is None else index.feature
    inside = _numbers(within, width, f"the {width} features of a head", where)
    items[-1] = tuple(h * width + f for h in chosen for f in inside)


def _numbers(item: Item, size: int, what: str, where: str) -> list[int]:
    bounded = _bounded(item, size, what, where)
    return bounded if isinstance(bounded, list) else list(range(size))[bounded]


def _tokens(
    token: Item, shape: Sequence[int], items: list[Item], frame: Frame, where: str
) -> list[Region]:
    mask = frame.mask
    _need(
        mask is not None,
        f"{where}: no tokens are known here, so at(token=…) means nothing. They are known where "
        "the inputs hold input_ids, in an encoder-decoder inside its encoder only, and not in a "
        "mixture of experts, whose rows are sorted by expert; elsewhere index the dim itself.",
    )
    assert mask is not None
    flat = (
        f" If its rows are the batch's tokens, flattened, column t of batch row b is row "
        f"b * {mask.shape[1]} + t of dim 0."
        if len(shape) == 2 and shape[0] == mask.numel()
        else ""
    )
    _need(
        tuple(shape[:2]) == tuple(mask.shape),
        f"{where}: at(token=…) needs a value of dims (batch, token, …) = {tuple(mask.shape)}, but "
        f"its shape is {tuple(shape)}.{flat}",
    )
    _need(
        len(shape) < 4 or shape[2] != shape[1],
        f"{where}: dims 1 and 2 of shape {tuple(shape)} are alike, and either may be the tokens "
        "(attention by heads has them in dim 2): index the dim itself.",
    )
    rows = _numbers(items[0], shape[0], f"the {shape[0]} batch rows", where)
    if frame.positions is not None:
        return _held(token, rows, items, shape, frame.positions, where)
    columns: dict[int, list[int]] = {}
    for r in rows:
        real: list[int] = mask[r].nonzero().flatten().tolist()
        what = f"the {len(real)} real tokens of row {r}"
        columns[r] = [real[i] for i in _numbers(token, len(real), what, where)]
    if all(columns[r] == columns[rows[0]] for r in rows):
        grid = _grid([items[0], tuple(columns[rows[0]]), *items[2:]], shape, where)
        return [Region(_one_list(grid, where))]
    result = []
    for position, r in enumerate(rows):
        grid = _grid([r, tuple(columns[r]), *items[2:]], shape, where)
        result.append(Region(_one_list(grid, where), position))
    return result


def positions(mask: Tensor) -> Tensor:
    """int64 (B, T): each column's place among the real tokens of its row, -1 at padding."""
    return (mask.long().cumsum(1) - 1).masked_fill(~mask, -1)


def _held(
    token: Item,
    rows: list[int],
    items: list[Item],
    shape: Sequence[int],
    places: Tensor,
    where: str,
) -> list[Region]:
    """One region for each row that holds any of the selected tokens of the whole sequence."""
    if isinstance(token, tuple) and len(set(token)) < len(token):
        raise InterventionError(f"{where}: the list {list(token)} names a token twice.")
    result = []
    for position, r in enumerate(rows):
        columns = {place: c for c, place in enumerate(places[r].tolist()) if place >= 0}
        chosen = _places(token, max(columns, default=-1) + 1)
        # 8 and -1 are one token in the step that ends with it.
        first = {place: i for i, place in reversed(list(enumerate(chosen)))}
        picks = tuple(i for i, p in enumerate(chosen) if p in columns and first[p] == i)
        if picks:
            here = tuple(columns[chosen[i]] for i in picks)
            grid = _one_list(_grid([r, here, *items[2:]], shape, where), where)
            result.append(Region(grid, position, (len(rows), len(chosen)), picks))
    return result


def _places(token: Item, length: int) -> Sequence[int]:
    """The places that `token` means in a sequence of `length` so far; later ones may be beyond."""
    if isinstance(token, slice):
        start, stop = token.start or 0, length if token.stop is None else token.stop
        start, stop = (b + length if b < 0 else b for b in (start, stop))
        return range(max(start, 0), max(stop, 0), token.step or 1)
    if token is Ellipsis:
        return range(length)
    assert isinstance(token, (int, tuple))
    several = token if isinstance(token, tuple) else (token,)
    return [t + length if t < 0 else t for t in several]


def _one_list(grid: Grid, where: str) -> Grid:
    """Lists that are ranges become slices; then at most one list may be left."""
    tidy = tuple(_as_slice(g) for g in grid)
    _need(
        sum(isinstance(g, list) for g in tidy) <= 1,
        f"{where}: the index picks scattered elements in two dims; use one intervention for each.",
    )
    return tidy


def _as_slice(item: slice | list[int]) -> slice | list[int]:
    if isinstance(item, list) and item == list(range(item[0], item[0] + len(item))):
        return slice(item[0], item[0] + len(item), 1)
    return item
