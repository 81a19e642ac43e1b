"""Description: all of a trace but its tensors, as the JSON in a trace file, both ways.

Owns the format's fields and what each may be. What is read may come from a stranger: every part is
checked for its kind before it is used, so that a wrong one is an error here and no surprise later.
How tensors are stored is `layouts.py`'s, the file `storage.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ..plan import Plan
from ..sites import Site
from ..tensors.stats import stats_of
from .checks import Check
from .late import LateRecord
from .layouts import Get, Put, take_apart
from .parts import InterventionReport, Parts, Record
from .plain import from_json, to_json
from .tokens import Tokens, likeliest, speller

FORMAT = 1
"""The newest format this version reads and the one it writes."""

_SPELT = 64
"""For how many of each row's likeliest tokens the text is kept, as the tokenizer is not."""
_LEAF = str | int
Stored = Callable[[Any], tuple[tuple[int, ...], torch.dtype, int]]
"""Shape, dtype and bytes of a stored form, its tensor unread."""


def describe(parts: Parts, put: Put) -> dict[str, Any]:
    """The description of a trace, its tensors stored by `put`.

    Raises:
        TraceFileError: a tensor cannot be stored; names its site.
    """
    plan, named = parts.plan.to_json()
    tokens = parts.tokens
    own = {} if tokens is None else {"ids": tokens.ids, "mask": tokens.mask}
    own |= {} if parts.logits is None else {"logits": parts.logits}
    own |= {f"plan/{name}": tensor for name, tensor in named.items()}
    return {
        "format": FORMAT,
        "plan": plan,
        "sites": [
            {
                "site": s,
                "leaf": list(r.leaf),
                "part": r.part,
                "aligned": r.aligned,
                "placement": r.placement,
                "tensor": take_apart(s, r.tensor, put),
            }
            for s, r in parts.records.items()
        ],
        "missed": dict(parts.missed),
        "plain": {site: to_json(value) for site, value in parts.plain.items()},
        "aliases": {site: list(others) for site, others in parts.aliases.items()},
        "calls": dict(parts.calls),
        "asked": {text: list(sites) for text, sites in parts.asked.items()},
        "reports": [[r.calls, r.changed, r.overflowed] for r in parts.reports],
        "labels": None if tokens is None else tokens.labels,
        "scope": "" if tokens is None else tokens.scope,
        "spelt": _spelt(parts),
        "checks": [[c.name, c.ok, c.reason] for c in parts.checks],
        "statistics": {site: asdict(found) for site, found in parts.statistics.items()},
        "meta": dict(parts.meta),
        "run": {name: take_apart(f"//{name}", tensor, put) for name, tensor in own.items()},
    }


def _spelt(parts: Parts) -> dict[str, str]:
    if parts.logits is None or parts.spell is None:
        return {}
    rows = [likeliest(row, _SPELT, parts.spell) for row in parts.logits]
    return {str(token.id): token.text for row in rows for token in row}


# --- back -------------------------------------------------------------------------------------


def parts_of(body: Mapping[str, Any], get: Get, stored: Stored, tokenizer: Any) -> Parts:
    """The inverse of `describe`; records fetch their tensors by `get` when they are looked at.

    Raises:
        KeyError, TypeError, ValueError, …: something is not as `describe` writes it.
    """
    own = {name: get(form) for name, form in _mapping(body["run"]).items()}
    named = {n.removeprefix("plan/"): t for n, t in own.items() if n.startswith("plan/")}
    plan = Plan.from_json(body["plan"], named)
    records = {r["site"]: _record(r, get, stored) for r in _all(body["sites"], dict)}
    meta = _mapping(body["meta"])
    if meta.get("records") == "elsewhere":
        raise ValueError("it says that its records are elsewhere")
    return Parts(
        plan=plan,
        records=records,
        missed=_mapping(body["missed"], str),
        # Files of the first versions have neither these two, nor checks or statistics.
        plain={site: from_json(v) for site, v in _mapping(body.get("plain", {})).items()},
        aliases=_lists(body.get("aliases", {})),
        calls=_mapping(body["calls"], int),
        asked=_lists(body["asked"]),
        reports=tuple(
            InterventionReport(i, *_all(counts, int))  # older files have no count of overflows
            for i, counts in zip(plan.interventions, body["reports"], strict=True)
        ),
        tokens=None if body["labels"] is None else _tokens(own, body),
        logits=own.get("logits"),
        meta=meta,
        spell=_speller(_mapping(body["spelt"], str), tokenizer),
        checks=tuple(Check.read(one) for one in _all(body.get("checks", []), list)),
        statistics={
            site: stats_of(told)
            for site, told in _mapping(body.get("statistics", {}), dict).items()
        },
    )


def _record(told: Mapping[str, Any], get: Get, stored: Stored) -> Record:
    form = told["tensor"]
    shape, dtype, size = stored(form)
    return LateRecord(
        Site.parse(_is(told["site"], str)),
        lambda: get(form),
        shape=shape,
        dtype=dtype,
        size=size,
        leaf=tuple(_all(told["leaf"], _LEAF)),
        # Files of earlier versions hold whole values only.
        part=_is(told.get("part", ""), str),
        aligned=_is(told.get("aligned", True), bool),
        placement=_is(told.get("placement", ""), str),
    )


def _tokens(own: Mapping[str, Tensor], body: Mapping[str, Any]) -> Tokens:
    ids, mask = own["ids"], own["mask"]
    labels: list[list[str]] = [_all(row, str) for row in _all(body["labels"], list)]
    fit = (
        ids.dim() == 2
        and ids.dtype == torch.int64
        and (mask.dtype, mask.shape) == (torch.bool, ids.shape)
        and mask.sum(1).tolist() == [len(row) for row in labels]
    )
    if not fit:
        raise ValueError("its token ids, mask and labels do not belong together")
    return Tokens(ids, mask, labels, _is(body["scope"], str))


def _speller(spelt: Mapping[str, str], tokenizer: Any) -> Callable[[int], str]:
    otherwise = speller(tokenizer) or (lambda token: f"#{token}")
    return lambda token: spelt.get(str(token)) or otherwise(token)


def _is(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} should be of type {getattr(kind, '__name__', kind)}")
    return value


def _all(values: Iterable[Any], kind: Any) -> list[Any]:
    return [_is(value, kind) for value in _is(values, list)]


def _mapping(value: Any, kind: Any = object) -> dict[str, Any]:
    return {key: _is(one, kind) for key, one in _is(value, dict).items()}


def _lists(value: Any) -> dict[str, tuple[str, ...]]:
    return {key: tuple(_all(texts, str)) for key, texts in _mapping(value, list).items()}
