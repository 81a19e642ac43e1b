"""Share: one process's part of an extraction.

Owns the loop over batches: which of them are this worker's, what each site's values are like, and
what of each run goes to the writer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.run import Prepared
from ..errors import LensWarning, NotRecordedError, SiteError
from ..plan import Plan
from ..sites import Site
from ..traces.trace import Trace
from .batches import Batch, Entry, Reader, Row, cut
from .files import writing
from .kept import Form, Portion, check, form_of, kept_rows, portions
from .keys import Order
from .manifests import Manifest
from .orders import write_order
from .prior import Asked, Prior
from .progress import Progress
from .shards import Piece
from .workers import Worker
from .writer import Job, Writer

EMPTY = "it has no tokens"


@dataclass(frozen=True, eq=False)
class Call:
    """What was asked for."""

    module: nn.Module
    plan: Plan
    keep: Any
    dtype: Any
    stop: bool

    def portions(self, sites: Iterable[str]) -> dict[str, Portion]:
        """What is kept at each of the sites, by canonical text."""
        return portions(sites, self.keep, self.dtype)


class Share:
    """One process's share of an extraction."""

    def __init__(
        self,
        call: Call,
        worker: Worker,
        reader: Reader,
        folder: Path,
        prior: Prior,
        shard_bytes: int,
    ) -> None:
        self._call = call
        self._worker = worker
        self._reader = reader
        self._folder = folder
        self._prior = prior
        self._told = {"skipped": 0, "cut": 0}
        self._done = {bytes(key) for key in prior.state.keys}
        self._sites: dict[str, tuple[Portion, Form]] = {}
        self._like: dict[str, Any] = {}
        self._prepared: Prepared | None = None
        self._manifest = Manifest(folder, worker.rank, worker.world_size)
        self._writer = Writer(folder, self._manifest, shard_bytes) if worker.writes else None

    def run(self, asked: Asked, batch_size: int, bar: Progress) -> None:
        """All batches that are this worker's and not done."""
        order = Order()
        worker = self._worker
        try:
            with bar:
                for number, entries in enumerate(cut(asked.entries(order), batch_size)):
                    if number % worker.world_size == worker.rank:
                        self._batch(entries, bar)
        finally:
            if self._writer is not None:
                self._writer.close()
        self._warn()
        self._prior.check(self._folder, order)
        if worker.writes:
            with writing(self._folder):
                write_order(self._folder, order)

    def _warn(self) -> None:
        """Tell of the items that are not as they were given."""
        many = [
            f"{n} item{'s were' if n > 1 else ' was'} {what}" for what, n in self._told.items() if n
        ]
        if many:
            warnings.warn(
                f"{' and '.join(many)}: dataset.skipped and dataset.truncated list them.",
                LensWarning,
                stacklevel=4,
            )

    def _batch(self, entries: list[Entry], bar: Progress) -> None:
        fresh = [entry for entry in entries if entry.key not in self._done]
        if len(fresh) < len(entries):
            bar.skip(len(entries) - len(fresh))
        rows = [self._reader.row(entry) for entry in fresh]
        if empty := [row for row in rows if row.empty]:
            self._put(Job(skipped={row.entry.key.hex(): EMPTY for row in empty}))
            bar.step(len(empty), 0)
        for batch in self._reader.batches([row for row in rows if not row.empty]):
            if self._prepared is None:
                self._prepared = self._look(batch.rows[0])
            self._put(self._extracted(batch, self._prepared))
            bar.step(len(batch.rows), sum(batch.tokens))

    def _put(self, job: Job) -> None:
        self._told["skipped"] += len(job.skipped)
        self._told["cut"] += len(job.truncated)
        if self._writer is not None:
            self._writer.put(job)

    def _look(self, row: Row) -> Prepared:
        """See how each site's values lie, by two runs without interventions, and write it down."""
        call = self._call
        few, many = self._reader.probes(row)
        looking = Prepared(call.module, Plan.make(call.plan.sites, records="all"))
        small = looking.run(few.arguments, labelled=False)
        large = looking.run(many.arguments, labelled=False)
        found = _found(small, call.plan.sites)
        portions = call.portions(found)
        told = {}
        for site, value in found.items():
            form = form_of(site, value.shape, large[site].shape, (few.padded, many.padded))
            portion = portions[site]
            dtype = check(site, portion, form, value.dtype)
            self._sites[site] = portion, form
            shape = list(value.shape[{"tokens": 2, "flat": 1, "item": 1}[form] :])
            told[site] = {"form": form, "shape": shape, "dtype": _name(dtype)}
        self._like = told
        if self._worker.writes:
            with writing(self._folder):
                self._manifest.add({"sites": told})
        # With interventions the forward goes on: they may be of sites that come later.
        stop = call.stop and not call.plan.interventions
        plan = Plan.make(list(found), call.plan.interventions, stop=stop)
        return Prepared(call.module, plan)

    def _extracted(self, batch: Batch, prepared: Prepared) -> Job:
        trace = prepared.run(batch.arguments, labelled=False)
        if self._writer is None:
            return Job()
        values, rows = {}, {}
        skipped: dict[str, str] = {}
        keys = [row.entry.key for row in batch.rows]
        for site, (portion, _) in self._sites.items():
            counts = batch.tokens
            values[site], rows[site] = self._rows(site, trace[site], batch)
            for key, count, tokens in zip(keys, rows[site], counts, strict=True):
                if tokens and not count:
                    skipped[key.hex()] = f"{tokens} tokens: positions {portion.keep} at {site}"
        ids = [row.ids for row in batch.rows]
        joined = torch.cat([one for one in ids if one is not None]) if None not in ids else None
        longer = {r.entry.key.hex(): r.length for r in batch.rows if r.length > r.tokens}
        return Job(Piece(keys, batch.tokens, joined, values, rows), skipped, longer)

    def _rows(self, site: str, value: Tensor, batch: Batch) -> tuple[Tensor, list[int]]:
        """What is kept of one batch's value at a site, seen to be what the first one was like."""
        portion, form = self._sites[site]
        like = self._like[site]
        positions = [row.entry.position for row in batch.rows]
        try:
            kept, counts = kept_rows(value, portion, form, batch.padded, batch.tokens)
        except SiteError as error:
            raise SiteError(f"{site}: at items {positions[:8]} {error}.") from error
        if (list(kept.shape[1:]), _name(kept.dtype)) != (like["shape"], like["dtype"]):
            raise SiteError(
                f"{site}: items {positions[:8]} have rows of {list(kept.shape[1:])} in "
                f"{_name(kept.dtype)}, those before them of {like['shape']} in {like['dtype']}. A "
                "dataset holds rows of one shape."
            )
        return kept, counts


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _found(trace: Trace, texts: Iterable[str]) -> dict[str, Tensor]:
    """What the texts mean, by canonical text.

    Raises:
        SiteError, NotRecordedError: a site was called several times, or nothing passed there.
    """
    found: dict[str, Tensor] = {}
    for text in texts:
        if not Site.parse(text).is_glob:
            record = trace.record(text)
            found[str(record.site)] = record.tensor
        else:
            found.update((site, trace[site]) for site in trace.asked(text))
    if not found:
        reasons = "; ".join(f"{site}: {why}" for site, why in trace.missed.items())
        raise NotRecordedError(f"Nothing passed at the sites asked for. {reasons}")
    return found
