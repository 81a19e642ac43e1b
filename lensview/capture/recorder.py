"""Recorder: the values of one run, kept as they were when they passed.

Owns what is kept of each value, the count of calls, and the byte limit. It does not install hooks
(`taps/`), does not know inputs or outputs of the run, and leaves the copying to `copies.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InterventionError, SiteError
from ..keeping import WHOLE, Cut, cut_at
from ..modules import only_holds
from ..parallel.mesh import held
from ..parallel.placements import Local, Placement, Scaled, Whole, whole_shape
from ..plan import Plan
from ..regions import Frame
from ..resolve import Target
from ..sites import Site
from ..taps.hooks import UNCHANGED, Visitor
from ..taps.ops import OpsMet, OpWish
from ..tensors.dense import held_bytes
from ..tensors.stats import Stats, stats
from ..traces.gradients import Gradient, watched
from ..traces.parts import Record
from ..traces.plain import Plain, plain, said
from ..traces.tokens import Tokens, holds_tokens
from ..values import Path, get, main_in
from .absent import never_called, parent_of
from .copies import Copies
from .opsites import why_no_op
from .spread import Spread, early, in_pieces

ELSEWHERE = (
    "its record is on rank 0, which alone keeps records. Read it there, or run with "
    "records='all' to have it on every rank."
)
"""Why a rank has no record of a value that it met."""


@dataclass(eq=False)
class _Seen:
    """One target's values so far; `text` is its site's, without a call.

    `ops` is there for a site between ops; a glob of ops keeps nothing itself, and has one of these
    for each op that it meets.
    """

    target: Target
    text: str
    cut: Cut
    ops: OpsMet | None = None
    visits: int = 0
    kept: int = 0
    without: str = ""
    left_out: dict[int, str] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How often the module was called, as far as is known."""
        return self.visits if self.ops is None else self.ops.calls

    def text_of(self, call: int) -> str:
        """The canonical text of one call's value, once all calls are known."""
        return self.text if self.calls <= 1 else f"{self.text}@{call}"


class Stopped(BaseException):
    """Ends a forward whose asked sites were all seen. No `Exception`: no model catches it."""


@dataclass(frozen=True, eq=False)
class _Value:
    """One value that was kept; `tensor` is None where another rank keeps it, or where `stats` are
    all that is kept.

    `late` is what is still to be cut, once the whole is there.
    """

    seen: _Seen
    call: int
    tensor: Tensor | None
    leaf: tuple[str | int, ...]
    aligned: bool
    gradient: Gradient | None
    placement: Placement | None = None
    late: Cut = WHOLE
    stats: Stats | None = None


class Recorder:
    """Keeps what the targets' values were; one per run, or per step of a generation.

    Args:
        targets: what to record.
        plan: how much to keep, whether gradients are wanted, and whether to stop early.
        frame: what an index of ``keep=`` may need to know of the run.
        tokens: whose mask `frame` has, where they are not those of every site.
        max_bytes: the plan's limit, or what is left of it.
        modules: the model's modules by site path.
        spread: the ranks, where the model's values lie over several.
    """

    def __init__(
        self,
        targets: list[Target],
        plan: Plan,
        frame: Frame,
        max_bytes: int | None,
        modules: Mapping[str, nn.Module],
        tokens: Tokens | None = None,
        spread: Spread | None = None,
    ) -> None:
        self._modules = modules
        self._tokens = tokens
        self._spread = spread
        self._parents: dict[nn.Module, int] = {}
        self._plain: list[tuple[_Seen, int, Plain]] = []
        self._seen = [
            _Seen(t, str(t.site.at_call(None)), cut_at(plan.keep, t.site)) for t in targets
        ]
        self._plan = plan
        self.frame = frame
        self.aligned = True
        self._max_bytes = max_bytes
        self._copies = Copies()
        self.held = 0
        self._awaited = set(range(len(targets)))
        self._disagreeing: Mapping[Any, float] = {}
        self._values: list[_Value] = []

    def visitor(self, position: int) -> Visitor:
        """The visitor that records for the target at `position`."""
        return self._visitor(self._seen[position], position)

    def wish(self, position: int, ops: OpsMet) -> OpWish:
        """The same for a target between ops: a glob has a visitor for each op that it means."""
        seen = self._seen[position]
        seen.ops = ops
        site = seen.target.site

        def visitor(name: str, k: int) -> Visitor:
            if not site.op_is_glob:
                return self._visitor(seen, position)
            target = replace(seen.target, site=site.at_op(name, k))
            one = _Seen(target, str(target.site.at_call(None)), seen.cut, ops)
            self._seen.append(one)
            return self._visitor(one, position)

        return OpWish(site.takes_op, visitor)

    def refuse(self, position: int, reason: str) -> None:
        """Nothing will be recorded for the target at `position`."""
        self._seen[position].without = reason

    def _visitor(self, seen: _Seen, position: int) -> Visitor:
        def visit(call: int, value: Any) -> Any:
            seen.visits = max(seen.visits, call + 1)
            self._record(seen, call, value)
            if self._plan.stop and seen.target.site.call in (None, call):
                self._awaited.discard(position)
                if not self._awaited:
                    raise Stopped
            return UNCHANGED

        return visit

    def witnesses(self) -> Iterator[tuple[nn.Module, Any]]:
        """The parents of sites asked for by name, each with a visitor that counts its calls: what
        is known of them tells why a site was never seen."""
        for seen in self._seen:
            parent = None
            if not seen.target.expanded:
                parent = parent_of(seen.target.site.path, self._modules)
            if parent is not None and self._modules[parent] not in self._parents:
                module = self._modules[parent]
                self._parents[module] = 0
                yield module, self._counter(module)

    def _counter(self, module: nn.Module) -> Any:
        def count(call: int, _value: Any) -> Any:
            self._parents[module] = call + 1
            return UNCHANGED

        return count

    def _record(self, seen: _Seen, call: int, value: Any) -> None:
        site = seen.target.site
        if site.call not in (None, call):
            return
        try:
            path, tensor = main_in(value, site.leaf)
        except SiteError as error:
            raise SiteError(f"{site}: {error}") from error
        if tensor is None:
            self._keep_plain(seen, call, get(value, path))
            return
        placement = None
        if self._spread is not None:
            placement = self._spread.placement(site, seen.target.module, call, path, tensor)
        live, tensor = tensor, tensor if self._spread is None else held(tensor)
        now, late = early(seen.cut, placement)
        try:
            kept = tensor if now is WHOLE else self._kept(tensor, now, site)
            if late is not WHOLE and placement is not None:
                # Told now, on every rank: the whole is there on some ranks only, and later.
                shape = whole_shape(placement, tensor.shape)
                self._kept(torch.empty(shape, dtype=tensor.dtype, device="meta"), late, site)
        except InterventionError as error:
            if not seen.target.expanded:
                raise
            seen.left_out[call] = f"left out: keep= does not fit it. {error}"
            return
        if seen.cut.statistics and self._spread is None:
            self._keep_statistics(seen, call, kept, path)
            return
        size = self._size(kept, placement)
        limited = self._max_bytes is not None and seen.target.expanded
        if limited and self.held + size > (self._max_bytes or 0):
            seen.left_out[call] = (
                f"left out: {size / 2**20:.1f} MiB more would pass the run's limit of "
                f"{(self._max_bytes or 0) / 2**20:.0f} MiB. Name the site, or raise max_bytes."
            )
            return
        copy, new = self._copied(site, call, tensor, kept, now, placement)
        self.held += size if new else 0
        seen.kept += 1
        gradient = self._gradient(live, seen.cut, placement, site)
        aligned = self.aligned and seen.cut.keeps_tokens
        self._values.append(_Value(seen, call, copy, path, aligned, gradient, placement, late))

    def _keep_statistics(self, seen: _Seen, call: int, kept: Tensor, path: Path) -> None:
        try:
            found = stats(kept)
        except (TypeError, ValueError) as error:
            seen.left_out[call] = f"left out: it has no statistics. {error}"
            return
        seen.kept += 1
        self._values.append(_Value(seen, call, None, path, False, None, stats=found))

    def _size(self, kept: Tensor, placement: Placement | None) -> int:
        """Bytes of what is kept, of the whole where this is a piece."""
        if placement is None or not in_pieces(placement):
            return held_bytes(kept)
        return math.prod(whole_shape(placement, kept.shape)) * kept.element_size()

    def _copied(
        self,
        site: Site,
        call: int,
        tensor: Tensor,
        kept: Tensor,
        cut: Cut,
        placement: Placement | None,
    ) -> tuple[Tensor | None, bool]:
        """A protected copy where this rank needs one, and whether it counts as new: over several
        ranks always, as all must count alike."""
        spread = self._spread
        if spread is None:
            return self._copies.take(tensor, kept, cut)
        if isinstance(placement, Whole):
            spread.witness.look((str(site), call, cut.part), kept)
        if spread.holds or in_pieces(placement):
            return self._copies.take(tensor, kept, cut, placement)[0], True
        return None, True

    def _gradient(
        self, tensor: Tensor, cut: Cut, placement: Placement | None, site: Site
    ) -> Gradient | None:
        if not self._plan.grad:
            return None
        kept = partial(cut.of, frame=self._frame_at(site), where=str(site))
        if self._spread is None:
            return watched(tensor, kept)
        if not in_pieces(placement):
            return watched(tensor, lambda gradient: kept(held(gradient)))
        ranks, lies = self._spread.ranks, placement

        def of_whole(gradient: Tensor) -> Tensor:
            assert lies is not None
            return kept(ranks.to_all([(held(gradient), lies)])[0])

        return watched(tensor, of_whole, on_all=True)

    def _kept(self, tensor: Tensor, cut: Cut, site: Site) -> Tensor:
        with torch.no_grad():
            return cut.of(tensor.detach(), self._frame_at(site), f"keep= at {site}")

    def _frame_at(self, site: Site) -> Frame:
        return self.frame.covering(holds_tokens(self._tokens, site))

    def _keep_plain(self, seen: _Seen, call: int, value: Any) -> None:
        kept = plain(value)
        seen.without = f"its {seen.target.site.side} holds no tensor there, but {said(kept)}."
        if not seen.target.expanded:
            self._plain.append((seen, call, kept))

    def kept_where(self) -> dict[str, Any]:
        """Which ranks have the records, for a trace's description; nothing in one process."""
        if self._spread is None:
            return {}
        return {"records": self._plan.records if self._spread.holds else "elsewhere"}

    # --- after the run -----------------------------------------------------------------------

    def settle(self) -> None:
        """Bring together what lies in pieces, where the model is spread over ranks; in one
        collective for all values of the forward."""
        spread = self._spread
        if spread is None:
            return
        self._doubt(spread)
        split = [v for v in self._values if in_pieces(v.placement)]
        pairs = ((v.tensor, v.placement) for v in split)
        wholes = spread.wholes([(t, p) for t, p in pairs if t is not None and p is not None])
        found = dict(zip(map(id, split), wholes or [], strict=False))
        self._values = [self._settled(v, found.get(id(v))) for v in self._values]
        self._values = [self._reduced(v) for v in self._values]
        self._disagreeing = spread.witness.compare(spread.ranks)

    def _reduced(self, value: _Value) -> _Value:
        """Over several ranks statistics are taken at the end, of the whole."""
        if not value.seen.cut.statistics or value.tensor is None:
            return value
        return replace(value, tensor=None, stats=stats(value.tensor))

    def _doubt(self, spread: Spread) -> None:
        """Take back what was decided of modules whose calls the twin counts otherwise."""
        modules = {v.seen.target.site.path: v.seen.calls for v in self._values}
        wrong = spread.layout.check_calls(modules, spread.cached)
        if wrong:
            self._values = [self._doubted(v, wrong) for v in self._values]

    def _doubted(self, value: _Value, wrong: Mapping[str, str]) -> _Value:
        why = wrong.get(value.seen.target.site.path)
        if why is None or not in_pieces(value.placement):
            return value
        lies = Local(f"{why}: its calls cannot be told apart.")
        if value.late is WHOLE:
            return replace(value, placement=lies)
        value.seen.left_out[value.call] = f"left out: keep= is of the whole. {lies.reason}"
        value.seen.kept -= 1
        return replace(value, placement=lies, tensor=None)

    def _settled(self, value: _Value, whole: Tensor | None) -> _Value:
        spread, tensor = self._spread, value.tensor
        assert spread is not None
        if not spread.holds or tensor is None:
            return replace(value, tensor=None)
        if isinstance(value.placement, Scaled):
            return replace(value, tensor=tensor * value.placement.ranks)
        if whole is None:
            return value
        site = value.seen.target.site
        kept = whole if value.late is WHOLE else self._kept(whole, value.late, site)
        return replace(value, tensor=kept)

    def part(self) -> None:
        """Share no memory with the model from here on. Costs least when its output is let go."""
        self._copies.settle()

    def records(self) -> dict[str, Record]:
        """The records by canonical text, in the order in which the values passed."""
        result: dict[str, Record] = {}
        for value in self._values:
            seen, text = value.seen, value.seen.text_of(value.call)
            if text not in result and value.tensor is not None:
                site = seen.target.site.at_call(value.call if seen.calls > 1 else None)
                result[text] = Record(
                    site,
                    value.tensor,
                    value.leaf,
                    seen.cut.part,
                    value.aligned,
                    value.gradient,
                    self._lay(value),
                )
        return result

    def statistics(self) -> dict[str, Stats]:
        """The statistics of values of which nothing else is kept, by canonical text."""
        values = ((v.seen.text_of(v.call), v.stats) for v in self._values)
        return {text: found for text, found in values if found is not None}

    def _lay(self, value: _Value) -> str:
        """How the value lay over the ranks, in words; "" where the model is in one process."""
        if self._spread is None or value.placement is None:
            return ""
        site = value.seen.target.site
        said = self._spread.said(value.placement, site)
        apart = self._disagreeing.get((str(site), value.call, value.seen.cut.part))
        if apart is None:
            return said
        return f"{said}; but the ranks do not have the same: this is rank 0's ({apart:.2g} apart)"

    @property
    def over_ranks(self) -> bool:
        """Whether the model's values lie over several ranks."""
        return self._spread is not None

    def disagreeing(self) -> dict[str, float]:
        """Sites whose values should be the same on all ranks and are not, with the largest relative
        difference; of those that were compared in this run."""
        return {str(key[0]): gap for key, gap in self._disagreeing.items()}

    def rank_local(self) -> list[str]:
        """Sites of which this rank knows no whole."""
        return [v.seen.text_of(v.call) for v in self._values if isinstance(v.placement, Local)]

    def plain(self) -> dict[str, Plain]:
        """What passed at sites asked for by name where there was no tensor, by canonical text."""
        return {seen.text_of(call): value for seen, call, value in self._plain}

    def aliases(self) -> dict[str, tuple[str, ...]]:
        """For each record of a module with several names, the same site under the others."""
        names: dict[nn.Module, list[str]] = {}
        for path, module in self._modules.items():
            names.setdefault(module, []).append(path)
        found: dict[str, tuple[str, ...]] = {}
        if len(names) == len(self._modules):
            return found
        for text, record in self.records().items():
            paths = names[self._modules[record.site.path]]
            if len(paths) > 1:
                others = (p for p in paths if p != record.site.path)
                found[text] = tuple(str(record.site.at_path(p)) for p in others)
        return found

    def calls(self) -> dict[str, int]:
        """How often each target's module was called, by the site's text without its call."""
        return {s.text: s.calls for s in self._seen}

    def asked(self) -> dict[str, tuple[str, ...]]:
        """What each text that was asked for turned out to mean."""
        result: dict[str, dict[str, None]] = {}
        for value in self._values:
            seen = value.seen
            result.setdefault(seen.target.asked, {})[seen.text_of(value.call)] = None
        return {text: tuple(sites) for text, sites in result.items()}

    def missed(self) -> dict[str, str]:
        """Values with no record, each with the likely reason; globs select only tensors."""
        result = {}
        called = {s.target.module: s.calls for s in self._seen} | self._parents
        for seen in self._seen:
            for call, reason in seen.left_out.items():
                result[seen.text_of(call)] = reason
            nothing = not seen.kept and not seen.left_out
            if nothing and not (seen.target.expanded and seen.calls):
                result[str(seen.target.site)] = self._reason(seen, called)
        result.update(self._globs_without_ops())
        if self._spread is not None and not self._spread.holds:
            result.update((v.seen.text_of(v.call), ELSEWHERE) for v in self._values)
            return result
        there = {v.seen.text_of(v.call) for v in self._values if v.tensor is not None}
        there |= self.statistics().keys()
        there |= self.plain().keys() | {str(seen.target.site) for seen, _, _ in self._plain}
        return {site: reason for site, reason in result.items() if site not in there}

    def _globs_without_ops(self) -> dict[str, str]:
        """The globs that mean ops and met none, in all the modules that they match."""
        idle: dict[str, list[_Seen]] = {}
        for seen in self._seen:
            if seen.ops is not None and seen.target.expanded:
                idle.setdefault(str(Site.parse(seen.target.asked)), []).append(seen)
        result = {}
        for text, some in idle.items():
            called = [(s.target, s.ops) for s in some if s.ops is not None and s.calls]
            if called and not any(s.kept or s.left_out for s in some):
                result[text] = why_no_op(called)
        return result

    def _reason(self, seen: _Seen, called: Mapping[nn.Module, int]) -> str:
        site, module = seen.target.site, seen.target.module
        if seen.without:
            return seen.without
        if only_holds(module):
            return f"a {type(module).__name__} only holds modules; nothing passes through it."
        if seen.calls and seen.ops is not None:
            return why_no_op([(seen.target, seen.ops)])
        if seen.calls:
            return f"the module was called {seen.calls} time(s) in this run, counted from 0."
        return never_called(site.path, self._modules, called)
