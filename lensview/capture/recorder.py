"""Recorder: the values of one run, kept as they were when they passed.

Owns the protected copies and their sharing, the count of calls, and the byte limit. It does not
install hooks (`taps/`) and does not know inputs or outputs of the run.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import SiteError
from ..modules import only_holds
from ..resolve import Target
from ..sites import Site
from ..taps.hooks import UNCHANGED, Visitor
from ..taps.ops import OpsMet, OpWish
from ..tensors.dense import held_bytes
from ..traces.parts import Record
from ..traces.plain import Plain, plain, said
from ..values import get, main_in
from .absent import never_called, parent_of
from .opsites import why_no_op


class Copies:
    """One protected copy per distinct value.

    A value is known again by its memory and its version counter, and only while the tensor that it
    was copied from lives: freed memory comes back with the same address and version 0. Where there
    is no counter to trust (inference mode, tensor subclasses, other layouts) every sight is copied.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[weakref.ref[Tensor], Tensor]] = {}

    def take(self, tensor: Tensor) -> tuple[Tensor, bool]:
        """A copy that nobody else can write to, and whether it is new."""
        if not _traceable(tensor):
            return _copied(tensor), True
        key = _key(tensor)
        if (known := self._known.get(key)) is not None:
            source = known[0]()
            # The source must still be what was copied: it can have been given other memory.
            if source is not None and _key(source) == key:
                return known[1], False
        copy = _copied(tensor)
        self._known[key] = (weakref.ref(tensor), copy)
        return copy, True


def _traceable(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    return plain and not tensor.is_nested and not tensor.is_inference() and tensor.numel() > 0


def _key(tensor: Tensor) -> tuple[Any, ...]:
    return (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        tensor._version,
        # Lazy conjugates and negatives are other numbers in the same memory.
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _copied(tensor: Tensor) -> Tensor:
    if not torch.is_inference_mode_enabled():
        return tensor.detach().clone()
    # Outside inference mode the clone is a normal tensor, which can be edited and patched anywhere.
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()


@dataclass(eq=False)
class _Seen:
    """One target's values so far; `text` is its site's, without a call.

    `ops` is there for a site between ops; a glob of ops keeps nothing itself, and has one of these
    for each op that it meets.
    """

    target: Target
    text: str
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


class Recorder:
    """Keeps what the targets' values were; one per run."""

    def __init__(
        self, targets: list[Target], max_bytes: int | None, modules: Mapping[str, nn.Module]
    ) -> None:
        self._modules = modules
        self._parents: dict[nn.Module, int] = {}
        self._plain: list[tuple[_Seen, int, Plain]] = []
        self._seen = [_Seen(t, str(t.site.at_call(None))) for t in targets]
        self._max_bytes = max_bytes
        self._copies = Copies()
        self._held = 0
        self._values: list[tuple[_Seen, int, Tensor, tuple[str | int, ...]]] = []

    def visitor(self, position: int) -> Visitor:
        """The visitor that records for the target at `position`."""
        return self._visitor(self._seen[position])

    def wish(self, position: int, ops: OpsMet) -> OpWish:
        """The same for a target between ops: a glob has a visitor for each op that it means."""
        seen = self._seen[position]
        seen.ops = ops
        site = seen.target.site

        def visitor(name: str, k: int) -> Visitor:
            if not site.op_is_glob:
                return self._visitor(seen)
            target = replace(seen.target, site=site.at_op(name, k))
            one = _Seen(target, str(target.site.at_call(None)), ops)
            self._seen.append(one)
            return self._visitor(one)

        return OpWish(site.takes_op, visitor)

    def refuse(self, position: int, reason: str) -> None:
        """Nothing will be recorded for the target at `position`."""
        self._seen[position].without = reason

    def _visitor(self, seen: _Seen) -> Visitor:
        def visit(call: int, value: Any) -> Any:
            seen.visits = max(seen.visits, call + 1)
            self._record(seen, call, value)
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
        size = held_bytes(tensor)
        limited = self._max_bytes is not None and seen.target.expanded
        if limited and self._held + size > (self._max_bytes or 0):
            seen.left_out[call] = (
                f"left out: {size / 2**20:.1f} MiB more would pass the run's limit of "
                f"{(self._max_bytes or 0) / 2**20:.0f} MiB. Name the site, or raise max_bytes."
            )
            return
        copy, new = self._copies.take(tensor)
        self._held += size if new else 0
        seen.kept += 1
        self._values.append((seen, call, copy, path))

    def _keep_plain(self, seen: _Seen, call: int, value: Any) -> None:
        kept = plain(value)
        seen.without = f"its {seen.target.site.side} holds no tensor there, but {said(kept)}."
        if not seen.target.expanded:
            self._plain.append((seen, call, kept))

    # --- after the run -----------------------------------------------------------------------

    def records(self) -> dict[str, Record]:
        """The records by canonical text, in the order in which the values passed."""
        result: dict[str, Record] = {}
        for seen, call, tensor, leaf in self._values:
            text = seen.text_of(call)
            if text not in result:
                site = seen.target.site.at_call(call if seen.calls > 1 else None)
                result[text] = Record(site, tensor, leaf)
        return result

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
        for seen, call, _, _ in self._values:
            result.setdefault(seen.target.asked, {})[seen.text_of(call)] = None
        return {text: tuple(sites) for text, sites in result.items()}

    def missed(self) -> dict[str, str]:
        """Values with no record, each with the likely reason; globs select only tensors."""
        result = {}
        for seen in self._seen:
            for call, reason in seen.left_out.items():
                result[seen.text_of(call)] = reason
            nothing = not seen.kept and not seen.left_out
            if nothing and not (seen.target.expanded and seen.calls):
                result[str(seen.target.site)] = self._reason(seen)
        result.update(self._globs_without_ops())
        held = {seen.text_of(call) for seen, call, _, _ in self._values}
        held |= self.plain().keys() | {str(seen.target.site) for seen, _, _ in self._plain}
        return {site: reason for site, reason in result.items() if site not in held}

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

    def _reason(self, seen: _Seen) -> str:
        site, module = seen.target.site, seen.target.module
        if seen.without:
            return seen.without
        if only_holds(module):
            return f"a {type(module).__name__} only holds modules; nothing passes through it."
        if seen.calls and seen.ops is not None:
            return why_no_op([(seen.target, seen.ops)])
        if seen.calls:
            return f"the module was called {seen.calls} time(s) in this run, counted from 0."
        known = {s.target.module: s.calls for s in self._seen}
        return never_called(site.path, self._modules, known | self._parents)
