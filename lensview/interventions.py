"""Intervention: a change to the value at a site, as data.

Owns what an intervention is and the constructors with their checks. What it does to a tensor is
`operations.py`'s; it does not find the site and keeps no state of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from torch import Tensor

from .errors import InterventionError, NotRecordedError, near
from .indices import Index, index_text, normal
from .sites import Site, glob_pattern

Value = float | int | Tensor


@dataclass(frozen=True)
class PatchSource:
    """What a patch takes its values from: records by canonical site text, and their real tokens.

    `whole` stands in for all of them where the source is one tensor.
    """

    records: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    whole: Tensor | None = None

    def at(self, site: Site) -> Tensor:
        """The tensor recorded at `site`, or without its call where the source has one call only."""
        if self.whole is not None:
            return self.whole
        for text in (str(site), str(site.at_call(None))):
            if text in self.records:
                return self.records[text]
        raise InterventionError(
            f"patch at {site}: the source holds no {site}; it holds {', '.join(self.records)}."
        )


@dataclass(frozen=True, eq=False)
class Intervention:
    """One change at one site (or at every site of a glob). Make them with `zero`, `scale`, ….

    Attributes:
        op: a name in `OPERATIONS`.
        site: the site's text; without ``@call`` it applies to every call.
        index: which part of the value; None is everything.
        args: what the operation takes: numbers, tensors, or a `PatchSource`.
    """

    op: str
    site: str
    index: Index = None
    args: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f"[{index_text(self.index)}]" if self.index is not None else ""
        shown = ", ".join(short(v) for v in self.args.values())
        return f"{self.op} {self.site}{where}" + (f" {shown}" if shown else "")

    def __repr__(self) -> str:
        return f"<Intervention {self}>"


def zero(site: str, index: Any = None) -> Intervention:
    """Set the value at `site` (or its `index`) to 0."""
    return _make("zero", site, index)


def scale(site: str, by: Value, index: Any = None) -> Intervention:
    """Multiply the value at `site` by `by`: a number, or a tensor that fits (see `add`)."""
    return _make("scale", site, index, by=by)


def add(site: str, vector: Value, index: Any = None) -> Intervention:
    """Add `vector` to the value at `site`.

    Args:
        vector: a number or a 0-d tensor; a tensor of 1 dim, which is a feature vector and must be
            as long as the last dim; or a tensor of exactly the region's dims, each equal or 1.
            Nothing else broadcasts. It takes the activation's dtype and device.
        index: a torch-style index or `at`; an int keeps its dim, nothing is clipped.
    """
    return _make("add", site, index, vector=vector)


def put(site: str, value: Value, index: Any = None) -> Intervention:
    """Replace the value at `site` (or its `index`) by `value`, which fits as in `add`."""
    return _make("put", site, index, value=value)


def clamp(
    site: str, low: float | None = None, high: float | None = None, index: Any = None
) -> Intervention:
    """Limit the value at `site` to [`low`, `high`]; None leaves that end open. NaN stays NaN."""
    if low is None and high is None:
        raise InterventionError(f"clamp at {site}: give low, high or both.")
    if low is not None and high is not None and low > high:
        raise InterventionError(f"clamp at {site}: low {low} is above high {high}.")
    return _make("clamp", site, index, low=low, high=high)


def patch(site: str, source: Any, index: Any = None) -> Intervention:
    """Replace the value at `site` by the one that `source` holds there, at the same index.

    Args:
        source: a Trace (of this model or of another with the same site), a mapping of site text
            to tensor, or one tensor of the value's whole shape.
        index: read in the source as in the run; with `at`, tokens count in each by its own mask.

    Raises:
        NotRecordedError: the source does not hold `site`.
    """
    return _make("patch", site, index, source=_patch_source(site, source))


OPERATIONS = ("zero", "scale", "add", "put", "clamp", "patch")


def _make(op: str, site: str, index: Any, **args: Any) -> Intervention:
    where = Site.parse(site)
    for name, value in args.items():
        if isinstance(value, (Tensor, PatchSource)) or (value is None and op == "clamp"):
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InterventionError(
                f"{op} at {where}: {name} is a {type(value).__name__}; it takes a number or a "
                "tensor."
            )
    if op == "clamp" and any(isinstance(v, Tensor) for v in args.values()):
        raise InterventionError(f"clamp at {where}: low and high are numbers.")
    # A tensor that needs a gradient keeps its graph, for runs with grad=True.
    return Intervention(op, str(where), normal(index), args)


def _patch_source(text: str, source: Any) -> PatchSource:
    if isinstance(source, (PatchSource, Tensor)):
        return source if isinstance(source, PatchSource) else PatchSource(whole=source.detach())
    if not isinstance(source, Mapping):
        raise InterventionError(
            f"patch at {text}: the source is a {type(source).__name__}; it takes a Trace, a "
            "mapping of sites to tensors, or a tensor."
        )
    wanted = Site.parse(text)
    pattern = glob_pattern(wanted.path)
    found = {}
    for key in source:
        site = Site.parse(key)
        fits = pattern.fullmatch(site.path) and wanted.call in (None, site.call)
        if fits and (site.op, site.side, site.leaf) == (wanted.op, wanted.side, wanted.leaf):
            found[str(site)] = _whole(source, key)
    if not found:
        raise NotRecordedError(
            f"patch: the source holds no {wanted} among its {len(source)} sites."
            f"{near(str(wanted), source)} Record it there first."
        )
    tokens = getattr(source, "tokens", None)
    return PatchSource(found, getattr(tokens, "mask", None))


def _whole(source: Mapping[str, Any], key: str) -> Any:
    """The source's tensor at `key`, if it is the whole value: an index could not tell."""
    part = getattr(source.record(key), "part", "") if hasattr(source, "record") else ""
    if part:
        raise InterventionError(
            f"patch at {key}: the source kept only [{part}] of the value there (keep=), so an "
            "index would fall on other elements. Give the tensor itself with lv.put, or record "
            "the source without keep=."
        )
    return source[key]


def short(value: Any) -> str:
    """An argument of an intervention in a few words, for messages and tables."""
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    if isinstance(value, PatchSource):
        return "from a tensor" if value.whole is not None else "from another run"
    return f"{value:g}" if isinstance(value, float) else str(value)
