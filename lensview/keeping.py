"""Keep: how much of each value a run's records hold.

Owns the argument ``keep=``: an index, a dtype, both, "statistics", or a mapping of globs to these,
as data and as JSON, and the cut itself. Which values are recorded at all is `plan.py`'s and
`resolve.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .errors import InputError, InterventionError, near
from .indices import At, Index, index_text, normal, parse_index
from .regions import Frame, regions
from .sites import Site, glob_pattern

STATISTICS = "statistics"
"""As ``keep=``: of each value its `tensors.stats.Stats`, taken when it passes, and no tensor."""


@dataclass(frozen=True)
class Rule:
    """One line of ``keep=``: for the sites that `glob` matches ("" is every site), what is kept.

    One of `index`, `dtype` and `statistics` is given.
    """

    glob: str
    index: Index = None
    dtype: torch.dtype | None = None
    statistics: bool = False


Keep = tuple[Rule, ...]


@dataclass(frozen=True)
class Cut:
    """What is kept at one site; `index` and `dtype` None keep the value as it is. With `statistics`
    these are of what the index selects, in the value's own dtype, and nothing else is kept."""

    index: Index = None
    dtype: torch.dtype | None = None
    statistics: bool = False

    @property
    def part(self) -> str:
        """The index as text; "" where the whole value is kept."""
        return index_text(self.index)

    @property
    def keeps_tokens(self) -> bool:
        """Whether dims 0 and 1 are kept whole."""
        if isinstance(self.index, At):
            return self.index.batch is None and self.index.token is None
        return self.index is None

    def of(self, tensor: Tensor, frame: Frame, where: str) -> Tensor:
        """What is kept of `tensor`; it may share the tensor's memory.

        Raises:
            InterventionError: the index does not fit, or selects rows of different lengths.
        """
        if self.index is not None:
            if tensor.is_nested or tensor.layout is not torch.strided:
                raise InterventionError(f"{where}: a nested or sparse value cannot be indexed.")
            found = regions(self.index, tensor.shape, frame, where)
            pieces = [tensor[part.grid] if part.grid else tensor for part in found]
            if not pieces or len({tuple(p.shape[1:]) for p in pieces}) > 1:
                raise InterventionError(
                    f"{where}: the index selects {len(pieces)} rows of different lengths, which "
                    "make no tensor. Choose tokens that every row has, such as at(token=-1)."
                )
            tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        # Complex numbers stay: a real dtype would lose half of each.
        if self.dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self.dtype)
        return tensor


WHOLE = Cut()


def keeping(keep: Any) -> Keep:
    """``keep=`` in its one form, from what a caller writes.

    Raises:
        InputError: it is none of an index, a dtype and a mapping; a dtype that would lose the
            values (integers, complex).
        InterventionError: an index that is none.
        SiteError: a key that is no site or glob.
    """
    if keep is None:
        return ()
    if isinstance(keep, tuple) and keep and all(isinstance(rule, Rule) for rule in keep):
        return keep
    if not isinstance(keep, Mapping):
        return _rules("", keep)
    return tuple(rule for glob, what in keep.items() for rule in _rules(_key(glob), what))


def cut_at(keep: Keep, site: Site) -> Cut:
    """What `keep` says of one site: the first index and the first dtype among matching rules."""
    fitting = [rule for rule in keep if matches(rule.glob, site)]
    index = next((r.index for r in fitting if r.index is not None), None)
    dtype = next((r.dtype for r in fitting if r.dtype is not None), None)
    statistics = any(r.statistics for r in fitting)
    cut = Cut(index, None if statistics else dtype, statistics)
    return WHOLE if cut == WHOLE else cut


def written(keep: Keep) -> list[dict[str, Any]]:
    """`keep` as JSON."""
    return [{"glob": r.glob, **_written(r)} for r in keep]


def _written(rule: Rule) -> dict[str, Any]:
    if rule.statistics:
        return {"statistics": True}
    if rule.dtype is not None:
        return {"dtype": str(rule.dtype).removeprefix("torch.")}
    return {"index": index_text(rule.index)}


def read(body: list[dict[str, Any]]) -> Keep:
    """The inverse of `written`."""
    return tuple(_read(r) for r in body)


def _read(body: dict[str, Any]) -> Rule:
    if body.get("statistics"):
        return Rule(body["glob"], statistics=True)
    if "dtype" in body:
        return Rule(body["glob"], dtype=getattr(torch, body["dtype"]))
    return Rule(body["glob"], parse_index(body["index"]))


def _rules(glob: str, what: Any) -> Keep:
    """One rule, or two for an index with a dtype behind it."""
    if isinstance(what, tuple) and len(what) > 1 and isinstance(what[-1], torch.dtype):
        index = what[0] if len(what) == 2 else what[:-1]
        return (_rule(glob, index), _rule(glob, what[-1]))
    return (_rule(glob, what),)


def _key(glob: Any) -> str:
    if not isinstance(glob, str):
        raise InputError(f"keep= maps sites to what is kept there; {glob!r} is no site.")
    return str(Site.parse(glob))


def _rule(glob: str, what: Any) -> Rule:
    if isinstance(what, str) and what == STATISTICS:
        return Rule(glob, statistics=True)
    if isinstance(what, torch.dtype):
        if not what.is_floating_point:
            raise InputError(
                f"keep={what}: records are kept in a floating dtype; {what} would lose them."
            )
        return Rule(glob, dtype=what)
    if what is None or isinstance(what, str):
        known = ("float16", "bfloat16", "float32", STATISTICS)
        hint = near(str(what), known) if what else ""
        raise InputError(
            f"keep={what!r}: give an index such as lv.at(token=-1), a dtype such as "
            f"torch.bfloat16, both as (index, dtype), {STATISTICS!r}, or a mapping of globs to "
            f"these.{hint}"
        )
    return Rule(glob, normal(what))


def matches(glob: str, site: Site) -> bool:
    """Whether a line of ``keep=`` is about one site; "" is about all."""
    if not glob:
        return True
    wanted = Site.parse(glob)
    return (
        glob_pattern(wanted.path).fullmatch(site.path) is not None
        and wanted.side == site.side
        and wanted.leaf in ((), site.leaf)
        and wanted.call in (None, site.call)
    )
