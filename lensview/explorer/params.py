"""Params: a request read from a message that may hold anything.

Owns the checks of a message's shape: kinds, sizes, ranges. What a site, an index or a prompt means
is not looked at here.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from ..errors import LensError
from .protocol import MAX_MESSAGE_BYTES, Request, TileParams
from .replies import json_bytes
from .runs import MAX_PROMPT

MAX_NAME = 200
"""Characters of an id, a view, a key."""
MAX_SITE = 4_000
MAX_CELLS = 4_096
"""Rows or columns of a tile: more than a screen has pixels."""
MAX_PAGE = 20_000
MAX_DIMS = 64
MAX_RANKS = 1 << 16
_BIG = 1 << 53
_ALL = 100
_WHICH = ("latest", "baseline", "difference")

Which = Literal["latest", "baseline", "difference"]


class RequestError(LensError, ValueError):
    """A message that no page of this version sends."""


def read_request(content: Any, buffers: Any) -> Request:
    """The request in a message.

    Raises:
        RequestError: it is none. Where its `id` can be read, the page is to be told.
    """
    if not isinstance(content, dict) or content.get("kind") != Request.kind:
        raise RequestError("The message is not a request.")
    texts = {}
    for name in ("id", "view", "method", "key"):
        value = content.get(name, "")
        if not isinstance(value, str) or len(value) > MAX_NAME:
            raise RequestError(f"The request's {name!r} is not a text of at most {MAX_NAME}.")
        texts[name] = value
    if not texts["id"]:
        raise RequestError("The request has no id.")
    params = content.get("params", {})
    if not isinstance(params, dict):
        raise RequestError("The request's 'params' is not an object.")
    if buffers or json_bytes(params) > MAX_MESSAGE_BYTES:
        raise RequestError(f"The request is larger than {MAX_MESSAGE_BYTES >> 10} KiB.")
    return Request(params=params, **texts)


def text(params: dict[str, Any], name: str, most: int = MAX_SITE) -> str:
    """A text of at most `most` characters."""
    value = params.get(name)
    if not isinstance(value, str):
        raise RequestError(f"{name!r} is not a text.")
    if len(value) > most:
        raise RequestError(f"{name!r} has {len(value):,} characters; at most {most:,} are read.")
    return value


def prompt(params: dict[str, Any]) -> str:
    """The prompt; its own limit is told by `Runs.want`, which knows what to do instead."""
    return text(params, "prompt", 10 * MAX_PROMPT)


def number(params: dict[str, Any], name: str, low: int, high: int) -> int:
    """An int from `low` to `high`."""
    value = params.get(name)
    if not _is_int(value) or not low <= cast(int, value) <= high:
        raise RequestError(f"{name!r} is not a whole number from {low} to {high}.")
    return cast(int, value)


def numbers(params: dict[str, Any], name: str, most: int) -> list[int]:
    """A list of at most `most` ints."""
    value = params.get(name)
    if not isinstance(value, list) or len(value) > most or not all(map(_is_int, value)):
        raise RequestError(f"{name!r} is not a list of at most {most} whole numbers.")
    return value


def which(params: dict[str, Any]) -> Which:
    """Which run is meant."""
    value = params.get("which")
    if value not in _WHICH:
        raise RequestError(f"'which' is not one of {', '.join(_WHICH)}.")
    return cast(Which, value)


def page(params: dict[str, Any]) -> tuple[int, int]:
    """Offset and limit of a page of rows."""
    return number(params, "offset", 0, _BIG), number(params, "limit", 1, MAX_PAGE)


def tile(params: dict[str, Any]) -> TileParams:
    """The params of a tile."""
    window = None if params.get("window") is None else numbers(params, "window", 4)
    return TileParams(
        site=text(params, "site"),
        which=which(params),
        window=window,
        max_rows=number(params, "max_rows", 1, MAX_CELLS),
        max_columns=number(params, "max_columns", 1, MAX_CELLS),
        index=numbers(params, "index", MAX_DIMS),
        rows_dim=_dim(params, "rows_dim"),
        columns_dim=_dim(params, "columns_dim"),
        percentile=_percentile(params),
        rank=rank(params),
    )


def _dim(params: dict[str, Any], name: str) -> int | None:
    return None if params.get(name) is None else number(params, name, 0, MAX_DIMS)


def _percentile(params: dict[str, Any]) -> float | None:
    value = params.get("percentile")
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= _ALL:
        raise RequestError("'percentile' is not a number above 0 and at most 100.")
    return float(value)


def rank(params: dict[str, Any]) -> int | None:
    """Whose piece is meant; None is the whole."""
    return None if params.get("rank") is None else number(params, "rank", 0, MAX_RANKS)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _BIG
