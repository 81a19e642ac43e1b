"""Remote: a trace whose tensors are on rank 0.

Owns records that fetch their tensor when it is first looked at, and the number by which rank 0
knows the trace; when the trace is let go of here, rank 0 lets go of it too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..plan import Plan
from ..sites import Site
from ..traces.late import LateRecord, size_of
from ..traces.trace import Trace
from .summary import parts_of

Fetch = Callable[[int, str], Tensor]
"""The tensor of a trace's number at a site's text."""
Drop = Callable[[int], None]


def _record(told: Any, fetch: Callable[[str], Tensor]) -> LateRecord:
    text, shape, dtype, size, leaf, part, aligned, placement = told
    site = Site.parse(text)
    return LateRecord(
        site,
        lambda: fetch(str(site)),
        shape=tuple(shape),
        dtype=dtype,
        size=size,
        leaf=tuple(leaf),
        part=part,
        aligned=aligned,
        placement=placement,
    )


class RemoteTrace(Trace):
    """What one run over ranks saw: a `Trace` that fetches a tensor when it is looked at.

    Attributes:
        number: what rank 0 knows it by.
    """

    def __init__(
        self, body: Mapping[str, Any], plan: Plan, tokenizer: Any, fetch: Fetch, drop: Drop
    ) -> None:
        number = int(body["number"])
        records = {
            told[0]: _record(told, lambda site: fetch(number, site)) for told in body["records"]
        }
        super().__init__(parts_of(body, plan, records, tokenizer))
        self.number = number
        weakref.finalize(self, drop, number).atexit = False

    def __repr__(self) -> str:
        records = self._parts.records.values()
        size = sum(map(size_of, records))
        missed = f"\n  missed {len(self.missed)}: see trace.missed" if self.missed else ""
        return (
            f"Trace of {self.meta.get('model', 'a model')} over ranks: {len(self.sites)} sites, "
            f"{size / 2**20:.1f} MiB on rank 0, {len(self.interventions)} interventions{missed}"
        )
