"""Estimate: what the records of a run will need, before it.

Owns the run of a hollow copy of the model (every tensor on the meta device: shapes and dtypes,
no values) and the check of a limit against it. Nothing of the model itself is run or changed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InterventionError, LimitError
from ..indices import at
from ..keeping import STATISTICS, WHOLE, Cut, cut_at, keeping
from ..modules import index
from ..parallel.styles import is_sharded
from ..parallel.weightless import weightless
from ..plan import Plan
from ..regions import Frame
from ..resolve import Target, resolve
from ..sites import Site
from ..taps.hooks import UNCHANGED, Point, Visitor, taps
from ..tensors.dense import held_bytes
from ..traces.tokens import Tokens, holds_tokens
from ..values import main_in
from ..wrappers.refusal import refuse
from ..wrappers.unwrap import eagerly, unwrap
from .inputs import Call, prepare


@dataclass(frozen=True)
class Choice:
    """One way to keep the sites of a run, and what it needs.

    Attributes:
        name: "all tokens", "one token", …
        keep: the argument ``keep=`` that asks for it; None for all tokens.
        total: bytes; a value that passes at several sites is kept once.
        left_out: sites whose values it does not fit (they have no tokens): with a glob they would
            be in ``trace.missed``.
    """

    name: str
    keep: Any
    total: int
    left_out: tuple[str, ...] = ()


STATISTICS_BYTES = 14 * 8
"""What the statistics of one value take, each number as eight bytes."""
_CHOICES: tuple[tuple[str, Any], ...] = (
    ("all tokens", None),
    ("one token", at(token=-1)),
    ("half precision", torch.bfloat16),
    ("one token, half precision", (at(token=-1), torch.bfloat16)),
    ("statistics only", STATISTICS),
)


@dataclass(frozen=True)
class Estimate:
    """What the records of a run will need.

    Attributes:
        sites: bytes by canonical site, in the order in which values will pass.
        total: bytes of all of them; a value that passes at several sites is kept once.
        unknown: why there is no estimate (then the others are empty), or "".
        choices: what the same sites need by other ``keep=``, whatever was asked for: all tokens,
            one token, half precision, both, statistics only.
    """

    sites: dict[str, int] = field(default_factory=dict)
    total: int = 0
    unknown: str = ""
    choices: tuple[Choice, ...] = ()

    @property
    def groups(self) -> dict[str, int]:
        """Bytes by group: sites that differ in the numbers of their paths only, written with "*"
        for each ("model.layers.*.mlp"). A value that passes at several sites counts at each."""
        found: dict[str, int] = {}
        for text, size in self.sites.items():
            name = re.sub(r"(?<=\.)\d+(?=[.:/@\[]|$)", "*", text)
            found[name] = found.get(name, 0) + size
        return found

    def largest(self, count: int = 5) -> list[tuple[str, int]]:
        """The sites that need most, with their bytes."""
        return sorted(self.sites.items(), key=lambda item: -item[1])[:count]

    def __str__(self) -> str:
        if self.unknown:
            return f"unknown: {self.unknown}"
        lines = [f"{_human(self.total)} in {len(self.sites)} sites"]
        lines += [f"  {_human(size):>10}  {site}" for site, size in self.largest()]
        return "\n".join(lines)


def estimate(
    model: nn.Module,
    inputs: Any,
    sites: str | Iterable[str] = "**",
    *,
    tokenizer: Any = None,
    chat: bool = False,
    keep: Any = None,
) -> Estimate:
    """What the records of ``trace(model, inputs, sites, …)`` will need, without running the model.

    A copy of the model that holds no weights is run on inputs that hold no values; where it is
    split over ranks, the copy is whole, and so are the sizes. A forward that
    looks at values (experts that route by them) cannot be estimated so: `Estimate.unknown` says
    why. Nothing is changed, and other people's hooks are not called.

    Raises:
        InputError, SiteError, CaptureUnsupportedError: as `trace` does.
    """
    plan = Plan.make(sites, keep=keep)
    return _estimate(unwrap(model), inputs, plan, tokenizer, chat)


def within(model: Any, inputs: Any, plan: Plan, *, tokenizer: Any, chat: bool) -> None:
    """Refuse a run whose sites asked for by name will not fit its limit.

    Raises:
        LimitError: they need more; lists the largest of them and the choices.
    """
    names = [text for text in plan.sites if not Site.parse(text).is_glob]
    if plan.max_bytes is None or not names:
        return
    named = Plan(tuple(names), keep=plan.keep)
    found = _estimate(unwrap(model), inputs, named, tokenizer, chat)
    if found.total > plan.max_bytes:
        rows = "\n".join(f"  {_human(size):>10}  {site}" for site, size in found.largest())
        raise LimitError(
            f"The {len(names)} sites asked for by name need {_human(found.total)}, but max_bytes "
            f"is {_human(plan.max_bytes)}. Nothing was run. The largest are\n{rows}\nAsk for fewer "
            "sites, keep less of each (keep=lv.at(token=-1)), keep them in a smaller dtype "
            "(keep=torch.bfloat16), keep statistics only (keep='statistics'), or raise max_bytes."
        )


def _estimate(module: nn.Module, inputs: Any, plan: Plan, tokenizer: Any, chat: bool) -> Estimate:
    call = prepare(module, inputs, tokenizer, chat=chat)
    modules = index(module)
    refuse(modules)
    if any(target.site.op is not None for target in resolve(plan.sites, modules)):
        return Estimate(unknown="values between ops are not estimated.")
    split = is_sharded(module)
    if reason := _not_hollow(module, call, split):
        return Estimate(unknown=reason)
    try:
        hollow = _unsplit(module) if split else _hollow(module)
    except Exception as error:
        return Estimate(unknown=f"the model cannot be copied without its weights ({error!r:.200})")
    reasons = []
    for kwargs in _attempts(call):
        try:
            return _measured(hollow, call.args, kwargs, plan, call.tokens)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return Estimate(unknown=f"the forward needs values, not only shapes ({reasons[0]})")


def _not_hollow(module: nn.Module, call: Call, split: bool) -> str:
    """Why the model or a call cannot be copied without values, or ""."""
    for part in () if split else module.modules():
        if "forward" in part.__dict__ or hasattr(part, "_hf_hook"):
            return (
                f"the forward of the {type(part).__name__} was replaced on the instance (by "
                "offloading, for one), and a copy of the model would run the original's."
            )
    for name, value in call.kwargs.items():
        if not isinstance(value, (Tensor, str, int, float, list, tuple, dict, type(None))):
            return f"the argument {name} is a {type(value).__name__}, which a run could write to."
    return ""


def _attempts(call: Call) -> list[dict[str, Any]]:
    """The keyword arguments to try. A mask of padding is read by value in many models, and changes
    no shape: first without it."""
    kwargs = _to_meta(call.kwargs)
    mask = call.kwargs.get("attention_mask")
    if call.tokens is not None and isinstance(mask, Tensor) and mask.dim() == 2:
        return [{k: v for k, v in kwargs.items() if k != "attention_mask"}, kwargs]
    return [kwargs]


class _Sum:
    """The bytes of one choice so far."""

    def __init__(self) -> None:
        self.total = 0
        self.left_out: list[tuple[str, int]] = []
        # Held, so that the identity of one tensor is not given to another.
        self._known: dict[int, Tensor] = {}

    def add(self, tensor: Tensor, cut: Cut, size: int) -> None:
        """One value at one site. Statistics are of a site; tensors are kept once."""
        if cut.statistics or id(tensor) not in self._known:
            self._known[id(tensor)] = tensor
            self.total += size


class _Meter:
    """Measures what passes at the targets of one hollow run."""

    def __init__(self, plan: Plan, tokens: Tokens | None) -> None:
        self.plan = plan
        self.tokens = tokens
        self.frame = Frame(None if tokens is None else tokens.mask)
        self.found: dict[tuple[str, int], int] = {}
        self.calls: dict[str, int] = {}
        self._asked: dict[tuple[str, Any], _Sum] = {}
        self._others = [(keeping(keep), _Sum()) for _, keep in _CHOICES]

    def visitor(self, target: Target) -> Visitor:
        cut = cut_at(self.plan.keep, target.site)
        text = str(target.site.at_call(None))

        def visit(call: int, value: Any) -> Any:
            self.calls[text] = max(self.calls.get(text, 0), call + 1)
            if target.site.call in (None, call):
                self._measure(target, text, call, value, cut)
            return UNCHANGED

        return visit

    def _measure(self, target: Target, text: str, call: int, value: Any, cut: Cut) -> None:
        _, tensor = main_in(value, target.site.leaf)
        if tensor is None:
            return
        for keep, sum_ in self._others:
            other = cut_at(keep, target.site)
            try:
                sum_.add(tensor, other, self._bytes(target, text, tensor, other))
            except InterventionError:
                sum_.left_out.append((text, call))
        try:
            size = self._bytes(target, text, tensor, cut)
        except InterventionError:
            if not target.expanded:
                raise
            return
        self.found[text, call] = size
        self._asked.setdefault((cut.part, cut.dtype), _Sum()).add(tensor, cut, size)

    @property
    def total(self) -> int:
        """The bytes of all that was asked for."""
        return sum(sum_.total for sum_ in self._asked.values())

    def _bytes(self, target: Target, text: str, tensor: Tensor, cut: Cut) -> int:
        frame = self.frame.covering(holds_tokens(self.tokens, target.site))
        kept = tensor if cut is WHOLE else cut.of(tensor, frame, text)
        return STATISTICS_BYTES if cut.statistics else held_bytes(kept)

    def estimate(self) -> Estimate:
        several = {text for text, calls in self.calls.items() if calls > 1}

        def named(text: str, call: int) -> str:
            return f"{text}@{call}" if text in several else text

        sizes = {named(*key): size for key, size in self.found.items()}
        choices = tuple(
            Choice(name, keep, sum_.total, tuple(named(*key) for key in sum_.left_out))
            for (name, keep), (_, sum_) in zip(_CHOICES, self._others, strict=True)
        )
        return Estimate(sizes, self.total, choices=choices)


def _measured(
    hollow: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: Plan,
    tokens: Tokens | None,
) -> Estimate:
    meter = _Meter(plan, tokens)
    points: dict[int, Point] = {}
    for target in resolve(plan.sites, index(hollow)):
        point = points.setdefault(id(target.module), Point(target.module))
        point.records[target.site.side].append(meter.visitor(target))
    state = torch.get_rng_state()
    try:
        with torch.no_grad(), eagerly(hollow), taps(hollow, list(points.values())):
            hollow(*_to_meta(args), **kwargs)
    finally:
        torch.set_rng_state(state)
    return meter.estimate()


def _hollow(module: nn.Module) -> nn.Module:
    """A copy of `module` in which every tensor is on the meta device; no weight is copied."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for holder in (part._parameters, part._buffers, part.__dict__):
            for value in list(holder.values()):
                if isinstance(value, Tensor):
                    memo.setdefault(id(value), _meta(value))
    made = copy.deepcopy(module, memo)
    for part in made.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return made


def _unsplit(module: nn.Module) -> nn.Module:
    """The whole of a model that is split over ranks, of the same dtypes, without weights."""
    made = weightless(module, fake=False).model
    dtypes = {name: held.dtype for name, held in module.named_parameters()}
    for name, parameter in made.named_parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(dtypes.get(name, parameter.dtype))
    return made


def _meta(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta", requires_grad=False)
    if not isinstance(tensor, nn.Parameter):
        return empty
    return nn.Parameter(empty, requires_grad=False)


def _to_meta(value: Any) -> Any:
    """Tensors in tuples, lists and dicts as meta tensors."""
    if isinstance(value, Tensor):
        return _meta(value)
    if isinstance(value, dict):
        return {k: _to_meta(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_to_meta(v) for v in value)
    return value


def _human(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
