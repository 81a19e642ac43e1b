"""Merge: the traces of a model's ranks, each with its own part of the batch, as one trace.

Owns what may be joined. A record is joined along dim 0 where dim 0 is known to be the batch; what
is not known is refused by name, since values joined along the wrong dim look like a right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import TraceMergeError
from ..indices import At
from ..plan import Plan
from ..tensors.dense import full_shape
from ..tensors.differences import identical
from .checks import worst
from .parts import InterventionReport, Parts, Record
from .tokens import Tokens, sorted_by_expert
from .trace import Trace

_OF_ONE_MODEL = ("model", "name", "dtype", "training")


def merge_ranks(traces: Iterable[Trace]) -> Trace:
    """One trace of the whole batch from those of its parts, as data-parallel ranks see them.

    The parts may differ in rows, not in tokens. Traces whose ``meta`` has a rank are joined in the
    order of the ranks, all of which must be there; others in the order given. Tensors come to the
    first trace's devices.

    Returns:
        A trace whose records, tokens and logits have the rows of all parts (dim 0), whose reports
        are sums, and whose ``meta["merged"]`` has each part's number of rows. A record that is not
        known to have the batch as its dim 0 is not joined: its site is in ``missed``, with the
        reason. A single trace is returned as it is.

    Raises:
        TraceMergeError: the traces are of different models, sites, interventions or token counts,
            a rank is missing or there twice, or an intervention was meant for rows by number.
    """
    given = list(traces)
    if not given:
        raise TraceMergeError("There is nothing to merge: give one trace per rank.")
    for one in given:
        if not isinstance(one, Trace):
            raise TraceMergeError(f"merge_ranks takes traces, not a {type(one).__name__}.")
    if len(given) == 1:
        return given[0]
    ordered = _in_order(given)
    _same_runs(ordered)
    _no_rows_by_number(ordered[0])
    parts = [one._parts for one in ordered]
    tokens, rows = _tokens(parts), [_rows(one) for one in ordered]
    records, missed = _records(parts, rows)
    apart = "statistics of parts of a batch are not joined: read those of each rank."
    missed |= {site: apart for p in parts for site in p.statistics}
    first = parts[0]
    return Trace(
        Parts(
            plan=first.plan,
            records=records,
            missed=missed,
            calls={s: max(p.calls.get(s, 0) for p in parts) for s in first.calls},
            asked={t: tuple(s for s in found if s in records) for t, found in first.asked.items()},
            reports=tuple(map(_report, *(p.reports for p in parts))) if first.reports else (),
            tokens=tokens,
            logits=_logits(parts, rows),
            meta=_meta(ordered, rows),
            spell=first.spell,
            checks=worst([one.checks for one in ordered]),
        )
    )


def _in_order(traces: list[Trace]) -> list[Trace]:
    ranks = [one.meta.get("rank") for one in traces]
    if all(rank is None for rank in ranks):
        return traces
    size = max(int(one.meta.get("world_size", 0)) for one in traces)
    if None in ranks or sorted(map(int, ranks)) != list(range(size)):  # type: ignore[arg-type]
        said = ", ".join("none" if r is None else str(r) for r in ranks)
        raise TraceMergeError(
            f"The traces are of ranks {said}; {size} ranks ran, and one trace of each is needed."
        )
    return sorted(traces, key=lambda one: int(one.meta["rank"]))


def _same_runs(traces: Sequence[Trace]) -> None:
    first = traces[0]
    for number, other in enumerate(traces[1:], 1):
        for name in _OF_ONE_MODEL:
            mine, theirs = first.meta.get(name), other.meta.get(name)
            if mine != theirs:
                _differ(number, f"its model's {name} is {theirs!r}, not {mine!r}")
        if "fragment" in first.meta or "fragment" in other.meta:
            _differ(number, "they are fragments of a model, not parts of a batch")
        if not _same_plans(first.plan, other.plan):
            _differ(number, "its sites or interventions were other ones")
        mine, theirs = set(first._parts.calls), set(other._parts.calls)
        if alone := sorted(mine ^ theirs):
            _differ(number, f"only one of them has {alone[0]} ({len(alone)} such sites)")


def _differ(number: int, why: str) -> NoReturn:
    raise TraceMergeError(
        f"Trace {number} (counted from 0, in the order of the ranks) is not of the same run as "
        f"trace 0: {why}. Merge traces of one model under one plan."
    )


def _same_plans(one: Plan, other: Plan) -> bool:
    (body, tensors), (other_body, others) = one.to_json(), other.to_json()
    return body == other_body and all(identical(t, others[n]) for n, t in tensors.items())


def _no_rows_by_number(trace: Trace) -> None:
    for edit in trace.interventions:
        index = edit.index
        first = index[0] if isinstance(index, tuple) and index else None
        by_number = first not in (None, Ellipsis, slice(None))
        if by_number or (isinstance(index, At) and index.batch is not None):
            raise TraceMergeError(
                f"{edit} names rows of the batch by number, and each rank counted its own: in the "
                "whole batch it would be other rows. Read these traces one by one."
            )


def _rows(trace: Trace) -> int:
    """The rows of one trace's batch."""
    if trace.tokens is not None:
        return len(trace.tokens.ids)
    if trace.logits is not None:
        return len(trace.logits)
    sizes = {full_shape(t)[:1] for t in trace.values()}
    if len(sizes) == 1 and (size := sizes.pop()):
        return size[0]
    raise TraceMergeError(
        "How many rows each rank had is not known: these inputs are no token ids, and the records "
        f"begin with {', '.join(sorted(map(str, sizes)))}. Capture sites that all begin with the "
        "batch dim."
    )


def _records(
    parts: Sequence[Parts], rows: Sequence[int]
) -> tuple[dict[str, Record], dict[str, str]]:
    """The joined records, and each site without one with its reason."""
    records: dict[str, Record] = {}
    missed = {site: reason for p in reversed(parts) for site, reason in p.missed.items()}
    for site in dict.fromkeys(s for p in parts for s in p.records):
        held = [p.records.get(site) for p in parts]
        known = [record for record in held if record is not None]
        reason = _apart(parts, held, known) or _unjoinable(known, parts, rows)
        if reason:
            missed[site] = f"the ranks' records were not joined: {reason}"
        else:
            missed.pop(site, None)
            joined = torch.cat([r.tensor.to(known[0].tensor.device) for r in known])
            records[site] = Record(known[0].site, joined, known[0].leaf)
    return records, missed


def _apart(parts: Sequence[Parts], held: Sequence[Record | None], known: Sequence[Record]) -> str:
    """Why the ranks' records at one site are not one value, or ""."""
    if len(known) < len(held):
        without = ", ".join(str(i) for i, record in enumerate(held) if record is None)
        return f"rank {without} has none."
    text = str(known[0].site.at_call(None))
    counts = [p.calls.get(text, 0) for p in parts]
    if len(set(counts)) > 1:
        return f"the module was called {', '.join(map(str, counts))} times."
    if len({(r.leaf, r.tensor.dtype) for r in known}) > 1:
        return "their dtypes or leaves differ."
    return ""


def _unjoinable(records: Sequence[Record], parts: Sequence[Parts], rows: Sequence[int]) -> str:
    """Why dim 0 is not known to be the batch, or ""."""
    tensors = [r.tensor for r in records]
    if sorted_by_expert(records[0].site):
        return "its rows are sorted by expert."
    if any(t.layout is not torch.strided or t.is_nested for t in tensors):
        return "they are nested or sparse."
    shapes = [tuple(t.shape) for t in tensors]
    told = f"the ranks had {', '.join(map(str, rows))} rows, and their shapes are " + ", ".join(
        map(str, shapes)
    )
    if any(shape[:1] != (count,) for shape, count in zip(shapes, rows, strict=True)):
        return f"{told}; dim 0 is not the batch."
    if len({shape[1:] for shape in shapes}) > 1:
        return f"{told}."
    if set(rows) == {1} and _for_all_rows(tensors, parts):
        return f"{told}; with one row each, dim 0 may be the batch or one value for all rows."
    return ""


def _for_all_rows(tensors: Sequence[Tensor], parts: Sequence[Parts]) -> bool:
    """Whether records of one row may as well be one value for every row of any batch, as rotary
    embeddings are: the same on all ranks, or not even as long as the tokens."""
    ids = [p.tokens.ids for p in parts if p.tokens is not None]
    aligned = bool(ids) and tuple(tensors[0].shape[:2]) == tuple(ids[0].shape)
    return not aligned or all(identical(tensors[0], t) for t in tensors[1:])


def _tokens(parts: Sequence[Parts]) -> Tokens | None:
    held = [p.tokens for p in parts if p.tokens is not None]
    if len(held) < len(parts):
        return None
    lengths = {t.ids.shape[1] for t in held}
    if len(lengths) > 1:
        raise TraceMergeError(
            f"The ranks' batches are {', '.join(str(t.ids.shape[1]) for t in held)} tokens long. "
            "Pad them to one length before the runs; values for padding are not made up here."
        )
    return Tokens(
        torch.cat([t.ids for t in held]),
        torch.cat([t.mask for t in held]),
        [row for t in held for row in t.labels],
        held[0].scope,
    )


def _logits(parts: Sequence[Parts], rows: Sequence[int]) -> Tensor | None:
    held = [p.logits for p in parts if p.logits is not None]
    if [len(t) for t in held] != list(rows):
        return None
    return torch.cat([t.to(held[0].device) for t in held])


def _report(*reports: InterventionReport) -> InterventionReport:
    """One intervention's sums over the ranks; its calls are those of the rank with the most."""
    calls, changed = max(r.calls for r in reports), sum(r.changed for r in reports)
    return replace(reports[0], calls=calls, changed=changed)


def _meta(traces: Sequence[Trace], rows: Sequence[int]) -> dict[str, Any]:
    def of(name: str, choose: Callable[[Iterable[float]], float]) -> dict[str, float]:
        known = [one.meta[name] for one in traces if name in one.meta]
        return {name: choose(known)} if known else {}

    meta = {k: v for k, v in traces[0].meta.items() if k not in ("rank", "world_size")}
    return {**meta, **of("started", min), **of("seconds", max), "merged": list(rows)}
