"""Kept: what of each item's value at a site goes into a dataset.

Owns the arguments ``keep=`` and ``dtype=`` per site, how a site's value holds the batch and the
tokens (found by two forwards of different shapes, not guessed from one), and the cut itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InputError, SiteError, near
from ..keeping import matches
from ..sites import Site
from ..traces.tokens import sorted_by_expert
from .shards import storable

Form = Literal["tokens", "flat", "item"]
"""How a value holds the batch: (B, T, …), (B * T, …), or (B, …) without tokens."""
WORDS = ("all", "last", "mean")
Keep = str | tuple[int, ...]
"""One of `WORDS`, or chosen positions among the real tokens, negative ones from the end."""


@dataclass(frozen=True)
class Portion:
    """What is kept at one site: of which tokens, and in which floating dtype (None: its own)."""

    keep: Keep = "all"
    dtype: torch.dtype | None = None

    def rows(self, tokens: int) -> int | None:
        """How many rows are kept of an item of so many tokens; None where it has too few."""
        if self.keep == "all":
            return tokens
        if isinstance(self.keep, str):
            return 1
        fits = all(-tokens <= place < tokens for place in self.keep)
        return len(self.keep) if fits else None

    def to_json(self) -> dict[str, Any]:
        """The portion as JSON."""
        dtype = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return {
            "keep": list(self.keep) if isinstance(self.keep, tuple) else self.keep,
            **({} if dtype is None else {"dtype": dtype}),
        }


def portions(sites: Iterable[str], keep: Any, dtype: Any) -> dict[str, Portion]:
    """What is kept at each site, from what a caller writes.

    Raises:
        InputError: `keep` or `dtype` is not one of those that there are.
        SiteError: a key matches none of the sites.
    """
    texts = list(sites)
    keeps = {glob: _keep(what) for glob, what in _lines(keep, "all", texts, "keep").items()}
    dtypes = {glob: _dtype(what) for glob, what in _lines(dtype, None, texts, "dtype").items()}
    return {t: Portion(_first(keeps, t, "all"), _first(dtypes, t, None)) for t in texts}


def _lines(given: Any, default: Any, sites: Sequence[str], name: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return {"": default if given is None else given}
    for glob in given:
        if not isinstance(glob, str) or not any(matches(glob, Site.parse(s)) for s in sites):
            raise SiteError(
                f"{name}= has {glob!r}, which is none of the sites asked for."
                f"{near(str(glob), sites)}"
            )
    return dict(given)


def _first(lines: Mapping[str, Any], site: str, default: Any) -> Any:
    return next((what for glob, what in lines.items() if matches(glob, Site.parse(site))), default)


def _keep(what: Any) -> Keep:
    if isinstance(what, str):
        if what not in WORDS:
            raise InputError(
                f"keep={what!r}: it is 'all' tokens, the 'last' one, their 'mean', or a list of "
                f"positions.{near(what, WORDS)}"
            )
        return what
    places = (what,) if isinstance(what, int) else what
    whole = isinstance(places, (list, tuple, range)) and len(places) > 0
    if not whole or any(not isinstance(p, int) or isinstance(p, bool) for p in places):
        raise InputError(
            f"keep={what!r}: it is 'all' tokens, the 'last' one, their 'mean', or a list of "
            "positions such as [0, -1]."
        )
    return tuple(places)


def _dtype(what: Any) -> torch.dtype | None:
    if what is None or (isinstance(what, torch.dtype) and what.is_floating_point):
        return what
    raise InputError(f"dtype={what!r}: it is a floating dtype, such as torch.bfloat16.")


def form_of(
    site: str,
    small: Sequence[int],
    large: Sequence[int],
    tokens: tuple[int, int],
) -> Form:
    """How a site's value holds batch and tokens, from its shapes in two forwards: of one row of
    ``tokens[0]`` tokens (0: the model reads none) and of two rows of ``tokens[1]``.

    Raises:
        SiteError: it is neither batch by tokens, nor these flattened, nor one value for each row.
    """
    one, two = tuple(small), tuple(large)
    few, many = tokens
    if not sorted_by_expert(Site.parse(site)):
        if few and one[:2] == (1, few) and two == (2, many, *one[2:]):
            return "tokens"
        if few and one[:1] == (few,) and two == (2 * many, *one[1:]):
            return "flat"
        if one[:1] == (1,) and two == (2, *one[1:]):
            return "item"
    raise SiteError(
        f"{site}: a dataset holds values of (batch, tokens, …), these flattened, or (batch, …). "
        f"Here one row of {few} tokens gives {list(one)} and two rows of {many} give {list(two)}, "
        "from which no item's part can be told. Leave the site out."
    )


def item_rows(value: Tensor, form: Form, padded: int, counts: Sequence[int]) -> list[Tensor]:
    """Each item's own part of a value at its real tokens: (T, …), without tokens (1, …)."""
    if form == "item":
        return list(value.unsqueeze(1))
    whole = value.reshape(len(counts), padded, *value.shape[1:]) if form == "flat" else value
    return [row[:count] for row, count in zip(whole, counts, strict=True)]


def kept_rows(
    value: Tensor, portion: Portion, form: Form, padded: int, counts: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """What is kept of one batch's value: (N, …), the items one after another, and how many rows
    each has; none where it has not the positions asked for.

    A mean is taken in float32. The result may share memory with `value`.

    Raises:
        SiteError: the value is not what the first look at its site found.
    """
    rows_of = {"tokens": (len(counts), padded), "flat": (len(counts) * padded,)}
    expected = rows_of.get(form, (len(counts),))
    if tuple(value.shape[: len(expected)]) != expected:
        raise SiteError(
            f"its value has shape {list(value.shape)} for {len(counts)} rows of {padded} tokens, "
            "which is not how it lay in the first runs"
        )
    full = form == "tokens" and portion.keep == "all" and all(c == padded for c in counts)
    if full or form == "item":
        rows = value.flatten(0, 1) if full else value
        return _cast(rows, portion.dtype), [padded if full else 1] * len(counts)
    parts = [_of(row, portion) for row in item_rows(value, form, padded, counts)]
    return _cast(torch.cat(parts), portion.dtype), [len(part) for part in parts]


def _of(row: Tensor, portion: Portion) -> Tensor:
    keep = portion.keep
    if keep == "all":
        return row
    if keep == "last":
        return row[-1:]
    if keep == "mean":
        return (
            row.float()
            .mean(0, keepdim=True)
            .to(row.dtype if portion.dtype is None else portion.dtype)
        )
    if portion.rows(len(row)) is None:
        return row[:0]
    return row[torch.tensor(keep, device=row.device)]


def _cast(rows: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or not (rows.is_floating_point() or rows.is_complex()):
        return rows
    return rows.to(dtype)


def check(site: str, portion: Portion, form: Form, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which a value of this form and dtype is kept.

    Raises:
        InputError: tokens of a value without tokens; a mean of integers or complex numbers.
    """
    if form == "item" and portion.keep != "all":
        raise InputError(
            f"keep={portion.keep!r} at {site}: its value has no tokens, one for each item. Leave "
            "keep out there, by a mapping of sites."
        )
    if portion.keep == "mean" and not dtype.is_floating_point:
        raise InputError(f"keep='mean' at {site}: its value is of {dtype}, which has no mean here.")
    if portion.dtype is not None and dtype.is_complex:
        raise InputError(f"dtype= at {site}: its value is complex; only its own dtype keeps it.")
    kept = dtype if portion.dtype is None or not dtype.is_floating_point else portion.dtype
    if not storable(kept):
        raise InputError(
            f"{site}: its value is of {kept}, which a shard cannot hold. Give a dtype."
        )
    return kept
