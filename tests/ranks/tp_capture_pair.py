"""Pair: one tiny model twice in a process: split over the ranks, and whole.

Owns the comparison of a run on the one with the same run on the other, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lensview as lv
from tests.ranks.tp_models import CASES, Case, make

TOLERANCE = 1e-5
IDS = torch.tensor([[5, 17, 3, 9, 44, 12], [8, 8, 11, 90, 12, 33]])


@dataclass(frozen=True)
class Pair:
    """A model over the ranks, and the same model whole in this process."""

    split: Any
    whole: Any

    def both(self, run: Callable[[Any], Any]) -> tuple[Any, Any]:
        """What `run` gives for each, from one random state."""
        torch.manual_seed(11)
        one = run(self.split)
        torch.manual_seed(11)
        return one, run(self.whole)


def pair(name: str, out: Path, dtype: torch.dtype | None = None, **load: Any) -> Pair:
    """The pair of a row of `CASES`, or of a model type; `load` goes to ``from_pretrained``."""
    from transformers.distributed.configuration_utils import DistributedConfig

    case = CASES.get(name) or Case(name)
    place = out / name.replace(" ", "_")
    made = make(case)
    if dist.get_rank() == 0 and not place.exists():
        made.save_pretrained(place)  # type: ignore[operator]
    dist.barrier()
    kind: Any = type(made)
    options = {**case.load, **load, **({} if dtype is None else {"dtype": dtype})}
    split = DistributedConfig(**{"tp_size": dist.get_world_size(), **case.split})
    model: nn.Module = kind.from_pretrained(place, distributed_config=split, **options)
    return Pair(model.eval(), kind.from_pretrained(place, **options).eval())


def equal(one: Tensor, other: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether they are the same but for the order of sums, beside the largest element."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    if not torch.equal(torch.isfinite(one), torch.isfinite(other)):
        return False
    one, other = one[torch.isfinite(one)], other[torch.isfinite(other)]
    scale = float(other.abs().max()) if other.numel() else 0.0
    return not other.numel() or float((one - other).abs().max()) <= tolerance * max(scale, 1e-3)


@dataclass
class Found:
    """What became of comparisons: how many values were right, what was labelled or refused."""

    right: int = 0
    labelled: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def traces(
        self, name: str, one: Any, other: Any, tolerance: float = TOLERANCE, again: Any = None
    ) -> None:
        """Compare all records of two traces, where this rank has them.

        Args:
            again: `other` once more; what differs between these two is memory not written yet.
        """
        kept = one.meta["records"] != "elsewhere"
        for site in other.sites if kept else ():
            if site not in one:
                self.wrong.append(f"{name}: no {site}: {one.missed.get(site)}")
            elif again is not None and not torch.equal(again[site], other[site]):
                continue
            elif one.placement(site).startswith("rank-local"):
                self.labelled[site] = one.placement(site)
            elif equal(one[site], other[site], tolerance):
                self.right += 1
            else:
                self.wrong.append(f"{name}: {site} {one.placement(site)}{_far(one, other, site)}")
        if not kept and one.sites:
            self.wrong.append(f"{name}: records on a rank that keeps none")
        for site in set(one.sites) - set(other.sites) if kept else ():
            # Experts that each rank has of its own run other ops.
            if not one.placement(site).startswith("rank-local"):
                self.wrong.append(f"{name}: {site} in one alone")

    def ends(self, name: str, one: Any, other: Any, tolerance: float = TOLERANCE) -> None:
        """Compare the logits and reports of two runs, on every rank."""
        if (one.logits is None) != (other.logits is None):
            self.wrong.append(f"{name}: logits in one alone")
        elif other.logits is not None and not equal(one.logits, other.logits, tolerance):
            self.wrong.append(f"{name}: logits {_off(one.logits, other.logits)}")
        else:
            self.right += 1
        told = [[(r.calls, r.changed, r.overflowed) for r in t.reports] for t in (one, other)]
        if told[0] != told[1]:
            self.wrong.append(f"{name}: reports {told[0]}, and {told[1]} in one process")

    def runs(
        self,
        name: str,
        two: Pair,
        run: Callable[[Any], Any],
        tolerance: float = TOLERANCE,
        again: bool = False,
    ) -> None:
        """Compare one run on both; where both refuse it with the same kind of error, it is right,
        where only the split one does, it is refused."""
        results: list[Any] = []
        states = []
        for model in (two.split, two.whole):
            torch.manual_seed(11)
            try:
                results.append(run(model))
            except lv.LensError as error:
                results.append(error)
            states.append(torch.get_rng_state())
        one, other = results
        if isinstance(one, Exception) or isinstance(other, Exception):
            if type(one) is type(other):
                self.right += 1
            elif isinstance(one, lv.InterventionError):
                self.refused[name] = str(one)
            else:
                self.wrong.append(f"{name}: {one!r:.300}, and {other!r:.300} in one process")
            return
        if not torch.equal(*states):
            self.wrong.append(f"{name}: another random state afterwards")
        self.traces(name, one, other, tolerance, run(two.whole) if again else None)
        self.ends(name, one, other, tolerance)


def _far(one: Any, other: Any, site: str) -> str:
    return _off(one[site], other[site])


def _off(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f": {tuple(one.shape)}, {tuple(other.shape)} in one process"
    return f": off by {(one.double() - other.double()).abs().max():.3g} of {other.abs().max():.3g}"


def hooks(model: nn.Module) -> list[Any]:
    """What of a model a run could leave changed."""
    return [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.__dict__.get("forward"))
        for m in model.modules()
    ]


@contextmanager
def raises(kind: type[BaseException], *texts: str) -> Iterator[list[str]]:
    """The block raises `kind`, with all `texts` in what it says."""
    said: list[str] = []
    try:
        yield said
    except kind as error:
        said.append(str(error))
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return
    raise AssertionError(f"no {kind.__name__}")


def alike(value: Any) -> None:
    """Every rank has the same here."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, value)
    assert all(one == told[0] for one in told), told


def report(found: Found, most: Mapping[str, int] | None = None) -> dict[str, Any]:
    """What a check tells; it fails with a wrong value."""
    assert not found.wrong, "\n".join(found.wrong[:20]) + f"\n{len(found.wrong)} wrong"
    return {"right": found.right, "labelled": found.labelled, "refused": found.refused}


def traced(*args: Any, **options: Any) -> Callable[[Any], lv.Trace]:
    """``lv.trace`` of what it is given, with all but the model set."""

    def run(model: Any) -> lv.Trace:
        return lv.trace(model, *args, **options)

    return run


def linear(size: int) -> Tensor:
    return torch.linspace(-1, 1, size)


Edits = Sequence[lv.Intervention]
