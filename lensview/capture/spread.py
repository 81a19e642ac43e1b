"""Spread: one run on a model whose values lie over several ranks.

Owns what recorder and editor ask at each value (how does it lie, whose is its record), and what the
ranks tell each other: before a run that they were asked for the same, after it what went wrong and
what was changed. How a value lies is decided in `parallel/layout.py`, moved by `parallel/group.py`;
editing what lies in pieces is `pieces.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import CaptureUnsupportedError, InterventionError, RankDivergenceError
from ..indices import At, Index
from ..keeping import WHOLE, Cut
from ..parallel.agreement import agree, announce, digest, exchange
from ..parallel.degrees import check_degree, unplanned
from ..parallel.group import Ranks
from ..parallel.layout import Layout
from ..parallel.placements import Local, Packed, Placement, Shard
from ..parallel.styles import is_sharded
from ..parallel.witness import Witness
from ..plan import Plan
from ..sites import Site
from ..values import Path
from .inputs import Call

Lies = dict[Path, Placement]
"""How the leaves of one value lie."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of one sharded model."""

    layout: Layout
    ranks: Ranks
    witness: Witness
    outputs: dict[str, Lies]


_known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()


@dataclass(eq=False)
class Spread:
    """What one run needs to know of the ranks.

    Attributes:
        ranks: the model's ranks, as this process sees them.
        layout: how its values lie.
        witness: what compares values that every rank has whole.
        outputs: how the outputs of modules that were skipped lie, by the module's path.
        everywhere: whether every rank keeps records, or the first alone.
        cached: whether the forward in progress reads a cache that earlier ones filled.
        failures: what went wrong in functions that ran on this rank for all.
        told: whether an error that ends the run is known to all ranks.
    """

    ranks: Ranks
    layout: Layout
    witness: Witness
    outputs: dict[str, Lies]
    everywhere: bool
    cached: bool = False
    failures: list[str] = field(default_factory=list)
    told: bool = False

    @classmethod
    def over(cls, module: nn.Module, records: str) -> Spread | None:
        """The spread of a run of `module`; None where it is whole in this process.

        Raises:
            CaptureUnsupportedError: it was to be split, and every rank has a copy of all of it.
            DegreeError: it cannot be split over so many ranks.
        """
        if why := unplanned(module):
            raise CaptureUnsupportedError(why)
        if not is_sharded(module):
            return None
        known = _known.get(module)
        if known is None:
            layout, ranks = Layout(module), Ranks.of(module)
            if ranks is None:
                return None
            check_degree(getattr(module, "config", None), ranks.size)
            known = _known[module] = _Known(layout, ranks, Witness(), {})
        return cls(known.ranks, known.layout, known.witness, known.outputs, records == "all")

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return self.ranks.rank == 0

    @property
    def holds(self) -> bool:
        """Whether this rank keeps records."""
        return self.everywhere or self.first

    def agree(self, module: nn.Module, plan: Plan, call: Call, **options: Any) -> None:
        """See that all ranks were asked for the same run.

        Raises:
            RankDivergenceError: they were not, or one does not come; on every rank that came.
        """
        body, tensors = plan.to_json()
        parts = {"plan": digest([json.dumps(body, sort_keys=True), tensors])}
        parts |= {f"input {i}": digest(value) for i, value in enumerate(call.args)}
        parts |= {f"input {name}": digest(value) for name, value in call.kwargs.items()}
        parts |= {name: digest(value) for name, value in options.items()}
        parts["train or eval mode"] = str(module.training)
        if module.training or options.get("do_sample"):
            parts["random state (torch.manual_seed)"] = digest(torch.get_rng_state())
        agree(self.ranks, "run", parts)
        self.witness.forget()  # what a run before left that ended early, here or elsewhere

    def begin(self, shape: Sequence[int] | None, past: int = 0) -> None:
        """Say what the next forward is called with: the (B, T) of its token ids, None where it has
        none, and how many tokens its cache has."""
        self.cached = past > 0
        _ = self.layout.twin  # made now, not in the middle of a forward
        if shape is not None:
            self.layout.begin(shape[0], shape[1], past)

    def placement(
        self, site: Site, module: nn.Module, call: int, leaf: Path, tensor: Tensor
    ) -> Placement:
        """How a value lies; `site` is where it passed."""
        return self.layout.of(
            site.path,
            module,
            site.side,
            call,
            leaf,
            tensor,
            op=site.op,
            op_index=site.op_index,
            cached=self.cached,
        )

    def said(self, placement: Placement, site: Site) -> str:
        """A placement in words, for a record."""
        if isinstance(placement, Local):
            return str(placement)
        style = self.layout.style(site.path) if site.op is None else ""
        return f"{placement} over {self.ranks.size} ranks" + (f", {style}" if style else "")

    def wholes(self, values: Sequence[tuple[Tensor, Placement]]) -> list[Tensor] | None:
        """The wholes of the values, where records are kept; None on the other ranks."""
        return self.ranks.to_all(values) if self.everywhere else self.ranks.to_first(values)

    def tell(self, error: str) -> None:
        """Let the other ranks, if they come to the end of this run, know what stopped this one."""
        if error and self.ranks.size > 1:
            announce(self.ranks, json.dumps({"error": error}))

    def settle(self, counts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Hear from all ranks at the end of a run: how many elements were changed in all.

        Args:
            counts: for each intervention, what this rank counted.

        Raises:
            RankDivergenceError: a rank did not come to the end, or failed on its own.
            InterventionError: a function that one rank ran for all raised; on every rank.
        """
        post = {"failures": self.failures, "counts": [list(c) for c in counts]}
        self.failures = []
        self.told = True  # of what is raised from here on, every rank raises its own
        posts = exchange(self.ranks, "end of a run", json.dumps(post))
        said: list[Mapping[str, Any]] = [json.loads(text) for text in posts]
        alone = [f"rank {r}: {p['error']}" for r, p in enumerate(said) if "error" in p]
        if alone:
            raise RankDivergenceError(f"The run failed on some ranks only. {'; '.join(alone)}")
        if wrong := [text for p in said for text in p["failures"]]:
            raise InterventionError(" ".join(wrong))
        self.told = False
        return [
            [sum(column) for column in zip(*rows, strict=True)]
            for rows in zip(*(p["counts"] for p in said), strict=True)
        ]


def in_pieces(placement: Placement | None) -> bool:
    """Whether each rank has a part of the value only."""
    return isinstance(placement, (Shard, Packed))


def early(cut: Cut, placement: Placement | None) -> tuple[Cut, Cut]:
    """A cut in two: what can be taken of a rank's piece, and what only of the whole."""
    if not isinstance(placement, (Shard, Packed)) or cut.index is None:
        return cut, WHOLE
    if past(cut.index, placement.dim):
        return cut, WHOLE
    return WHOLE, cut


def past(index: Index, dim: int) -> bool:
    """Whether an index leaves dim `dim` of a value alone."""
    if index is None:
        return True
    named = isinstance(index, At) and index.head is None and index.feature is None
    return named and dim >= 2


@contextmanager
def together(spread: Spread | None) -> Iterator[None]:
    """A forward that all ranks run: an error on this rank alone is told to those that wait for it
    at the end of the run, which then need not wait in vain."""
    try:
        yield
    except BaseException as error:
        if spread is not None and not spread.told:
            spread.tell(f"{type(error).__name__}: {error}")
        raise


def past_tokens(call: Call) -> int:
    """How many tokens the cache of a call has."""
    for name in ("past_key_values", "cache", "cache_params"):
        length = getattr(call.kwargs.get(name), "get_seq_length", None)
        if callable(length):
            return int(length())
    return 0
