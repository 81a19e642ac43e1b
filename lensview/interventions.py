"""Intervention: a change to the value at a site, as data.

Owns what an intervention is and the constructors with their checks. What it does to a tensor is
`changes.py`'s; it does not find the site and keeps no state of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

from torch import Tensor

from .errors import InterventionError
from .functions import Function, function
from .indices import Index, index_text, normal
from .portable import portable
from .sites import Site
from .sources import PatchSource, given, mean_source, patch_source

Value = float | int | Tensor


@dataclass(frozen=True, eq=False)
class Intervention:
    """One change at one site (or at every site of a glob). Make them with `zero`, `scale`, ….

    Attributes:
        op: a name in `OPERATIONS`.
        site: the site's text; without ``@call`` it applies to every call.
        index: which part of the value; None is everything.
        args: what the operation takes: numbers, tensors, a `PatchSource`, a `Function`, a `Given`.
    """

    op: str
    site: str
    index: Index = None
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def local(self) -> bool:
        """Whether a shard of the value can be changed without the rest of it."""
        return self.op in LOCAL

    @property
    def portable(self) -> bool:
        """Whether it means the same in another process: false for a function that has neither an
        import path nor a source, and for output objects given to `skip`."""
        return all(portable(value) for value in self.args.values())

    def trusted(self) -> Intervention:
        """The same, with a function that came from a file or a message ready to be called.

        Reading a file never runs code, so an intervention with a function in it cannot be applied
        until someone who has looked at it says so here.

        Raises:
            InterventionError: the function was not portable, or cannot be imported or compiled.
        """
        args = {n: v.trusted() if isinstance(v, Function) else v for n, v in self.args.items()}
        return replace(self, args=args)

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
    return _intervention("patch", site, index, source=patch_source("patch", site, source))


def noise(site: str, std: float, seed: int, index: Any = None) -> Intervention:
    """Add Gaussian noise of standard deviation `std` to the value at `site`.

    The numbers are drawn for the whole value and then cut to `index`, in float32 on the CPU, by a
    generator of their own: the same `seed` gives the same noise on every device and in every
    dtype, and the global random state is not touched. Each site, call and decode step has its own
    stream (see `lensview.streams.normal`).

    Args:
        std: 0 or more, in the value's units.
        seed: any int.
    """
    where = Site.parse(site)
    if isinstance(std, bool) or not isinstance(std, Real) or not 0 <= float(std) < math.inf:
        raise InterventionError(
            f"noise at {where}: std is a finite number of 0 or more, not {std}."
        )
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InterventionError(
            f"noise at {where}: seed is an int, not {seed!r}; the same seed gives the same noise."
        )
    return _intervention("noise", site, index, std=float(std), seed=seed)


def project_out(site: str, direction: Tensor, index: Any = None) -> Intervention:
    """Remove the component along `direction` from each feature vector at `site`.

    Computed in float32 for half-precision values, then cast back.

    Args:
        direction: (D,), as long as the value's last dim; of any length but 0, it is normalised.
        index: must leave the last dim whole.
    """
    where = f"project_out at {Site.parse(site)}"
    if not isinstance(direction, Tensor) or direction.dim() != 1:
        got = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
        raise InterventionError(f"{where}: the direction is a tensor of 1 dim, not {got}.")
    size = float(direction.detach().abs().double().norm())
    if not 0 < size < math.inf:
        raise InterventionError(f"{where}: a direction of length {size:g} points nowhere.")
    return _intervention("project_out", site, index, direction=direction.detach())


def mean(site: str, reference: Any, index: Any = None) -> Intervention:
    """Replace the value at `site` by its mean over a reference (mean ablation).

    Args:
        reference: a Trace or a mapping of site text to tensor, of any length, or a tensor. Records
            whose dims 0 and 1 are the reference's (batch, tokens) are averaged over both, real
            tokens only; a bare tensor (…, D) over all dims but the last; other records over dim
            0. The means are taken here, in float32 (float64 for float64), and kept instead of the
            reference; they are cast to the activation's dtype.
        index: the part of the run's value that is replaced.

    Raises:
        NotRecordedError: the reference does not hold `site`.
        InterventionError: it has no mean there.
    """
    return _intervention("mean", site, index, reference=mean_source(site, reference))


def skip(site: str, value: Any) -> Intervention:
    """Do not run the module at `site`; give its value instead.

    Its hooks fire with the given value, the modules inside it are not called. Of several
    interventions at one site a skip comes first, wherever it stands among them; of several skips
    the last one counts.

    Args:
        site: a module's whole output, for one call with ``@call``, for all without.
        value: what the module returns: a tensor; ``"input"``, its main input; a tuple, list or
            output object of these and None, for a module that returns one; or a Trace or mapping
            that holds the site. Tensors go to the main input's device, and to its dtype where
            both are floating.

    Raises:
        InterventionError: the site is no whole output, or the value cannot be returned.
    """
    where = Site.parse(site)
    if where.side != "output" or where.leaf or where.op is not None:
        raise InterventionError(
            f"skip at {where}: a module is skipped as a whole; name its output, "
            f"{str(Site(where.path, call=where.call))!r}."
        )
    return _intervention("skip", site, None, value=given(site, value))


def call(
    site: str,
    fn: Callable[[Tensor], Tensor] | str | None = None,
    index: Any = None,
    *,
    source: str | None = None,
    name: str | None = None,
    ranks: str = "first",
) -> Intervention:
    """Replace the value at `site` by what a function makes of it.

    Args:
        fn: gets a copy of the value (or its `index`) and returns a tensor of the same shape, dtype
            and device. Where tokens fall on other columns in each batch row (`at`), it is called
            once for each row. Random numbers that it draws come from the global state. As text,
            the import path ``"module:function"``.
        source: instead of `fn`, Python text that defines the function; ``torch`` is known in it.
        name: which function of `source`, where it defines several.
        ranks: on a model that is split over ranks, "first" calls it on rank 0 alone, with the
            whole value, and gives each rank its part of the result; what it communicates raises,
            and an error in it leaves the ranks in step and is raised after the forward, on all.
            "all" calls it on every rank with that rank's own piece; `lv.gather` and `lv.shard`
            serve there. In one process both are the same.

    A function that another process can import, or that has a source, is portable; any other works
    in this process alone, and a saved trace keeps just its name.
    """
    return _intervention("call", site, index, fn=function(fn, source, name, ranks))


OPERATIONS = (
    *("zero", "scale", "add", "put", "clamp", "patch"),
    *("noise", "project_out", "mean", "skip", "call"),
)
LOCAL = frozenset({"zero", "scale", "add", "put", "clamp", "patch", "mean"})
"""Operations that act on each element by itself, so that a shard can be changed alone."""


def _make(op: str, site: str, index: Any, **args: Any) -> Intervention:
    where = Site.parse(site)
    for name, value in args.items():
        if isinstance(value, Tensor) or (value is None and op == "clamp"):
            continue
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InterventionError(
                f"{op} at {where}: {name} is a {type(value).__name__}; it takes a number or a "
                "tensor."
            )
    if op == "clamp" and any(isinstance(v, Tensor) for v in args.values()):
        raise InterventionError(f"clamp at {where}: low and high are numbers.")
    # A tensor that needs a gradient keeps its graph, for runs with grad=True.
    return _intervention(op, site, index, **args)


def _intervention(op: str, site: str, index: Any, **args: Any) -> Intervention:
    return Intervention(op, str(Site.parse(site)), normal(index), args)


def short(value: Any) -> str:
    """An argument of an intervention in a few words, for messages and tables."""
    if isinstance(value, Tensor):
        return f"{value.item():g}" if value.dim() == 0 else f"tensor{tuple(value.shape)}"
    if isinstance(value, PatchSource):
        return "from a tensor" if value.whole is not None else "from another run"
    return f"{value:g}" if isinstance(value, float) else str(value)
