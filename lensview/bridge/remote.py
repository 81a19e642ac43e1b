"""Remote: a trace whose tensors are on rank 0.

Owns records that fetch their tensor when it is first looked at, and the number by which rank 0
knows the trace; when the trace is let go of here, rank 0 lets go of it too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..plan import Plan
from ..sites import Site
from ..traces.parts import Record
from ..traces.trace import Trace
from .summary import parts_of

Fetch = Callable[[int, str], Tensor]
"""The tensor of a trace's number at a site's text."""
Drop = Callable[[int], None]


class RemoteRecord(Record):
    """A record whose tensor is fetched when it is first looked at, and then kept.

    Attributes:
        shape, dtype, size: of the tensor, and its bytes, known without fetching it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    size: int
    _tensor: Tensor | None
    _fetch: Callable[[str], Tensor]

    def __init__(self, told: Any, fetch: Callable[[str], Tensor]) -> None:
        text, shape, dtype, size, leaf, part, aligned, placement = told
        for name, value in {
            "site": Site.parse(text),
            "leaf": tuple(leaf),
            "part": part,
            "aligned": aligned,
            "gradient": None,
            "placement": placement,
            "shape": tuple(shape),
            "dtype": dtype,
            "size": size,
            "_fetch": fetch,
            "_tensor": None,
        }.items():
            object.__setattr__(self, name, value)

    @property
    def tensor(self) -> Tensor:
        """The value, on the CPU of this process."""
        held = self._tensor
        if held is None:
            held = self._fetch(str(self.site))
            object.__setattr__(self, "_tensor", held)
        return held


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
            told[0]: RemoteRecord(told, lambda site: fetch(number, site))
            for told in body["records"]
        }
        super().__init__(parts_of(body, plan, records, tokenizer))
        self.number = number
        weakref.finalize(self, drop, number).atexit = False

    def shape(self, text: str) -> tuple[int, ...]:
        """The shape of a record, without fetching it; errors as `record`."""
        record = self.record(text)
        return record.shape if isinstance(record, RemoteRecord) else tuple(record.tensor.shape)

    def dtype(self, text: str) -> torch.dtype:
        """The dtype of a record, without fetching it; errors as `record`."""
        record = self.record(text)
        return record.dtype if isinstance(record, RemoteRecord) else record.tensor.dtype

    def __repr__(self) -> str:
        records = self._parts.records.values()
        size = sum(r.size for r in records if isinstance(r, RemoteRecord))
        missed = f"\n  missed {len(self.missed)}: see trace.missed" if self.missed else ""
        return (
            f"Trace of {self.meta.get('model', 'a model')} over ranks: {len(self.sites)} sites, "
            f"{size / 2**20:.1f} MiB on rank 0, {len(self.interventions)} interventions{missed}"
        )
