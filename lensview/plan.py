"""Plan: which sites, which interventions and which limits one run has.

Owns the frozen object that every run is made from, and its JSON: a plain object plus a table of
tensors, so that it can be saved beside a trace or sent without pickle. It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .errors import InterventionError, SiteError
from .indices import index_text, parse_index
from .interventions import OPERATIONS, Intervention, PatchSource
from .keeping import Keep, keeping, read, written
from .sites import Site


@dataclass(frozen=True)
class Plan:
    """What one run does.

    Attributes:
        sites: the texts that were asked for, globs included, in the order given.
        interventions: applied in this order at each site.
        keep_output: keep the model's whole output as ``trace.output``.
        max_bytes: of what globs find, records beyond this many bytes are left out and listed in
            ``trace.missed``; sites asked for by name are always kept. None has no limit.
        keep: how much of each value is kept (see `keeping`); () keeps all.
        grad: run in the caller's grad mode and watch the gradients at the sites.
        stop: end the forward as soon as every site was seen.
    """

    sites: tuple[str, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    keep_output: bool = False
    max_bytes: int | None = None
    keep: Keep = ()
    grad: bool = False
    stop: bool = False

    @classmethod
    def make(
        cls,
        sites: str | Iterable[str],
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        keep_output: bool = False,
        max_bytes: int | None = None,
        keep: Any = None,
        grad: bool = False,
        stop: bool = False,
    ) -> Plan:
        """A plan from what a caller writes: one site or many, one intervention or many.

        Raises:
            SiteError: a text is not a site.
            InterventionError: something in `interventions` is not one.
            InputError: `keep` is none of an index, a dtype and a mapping of globs to either.
        """
        texts = (sites,) if isinstance(sites, str) else tuple(sites)
        for text in texts:
            if not isinstance(text, str):
                raise SiteError(f"A site is a text, not a {type(text).__name__}: {text!r}.")
            Site.parse(text)
        edits = (interventions,) if isinstance(interventions, Intervention) else interventions
        edits = tuple(edits)
        for edit in edits:
            if not isinstance(edit, Intervention):
                raise InterventionError(
                    f"{edit!r} is a {type(edit).__name__}, not an intervention; make one with "
                    f"{', '.join('lv.' + o for o in OPERATIONS)}."
                )
        return cls(texts, edits, keep_output, max_bytes, keeping(keep), grad, stop)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The plan as a JSON object, and the tensors that it refers to by name."""
        tensors: dict[str, Tensor] = {}
        body = {
            "sites": list(self.sites),
            "interventions": [_written(i, tensors) for i in self.interventions],
            "keep_output": self.keep_output,
            "max_bytes": self.max_bytes,
            "keep": written(self.keep),
            "grad": self.grad,
            "stop": self.stop,
        }
        return body, tensors

    @classmethod
    def from_json(cls, body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Plan:
        """The inverse of `to_json`.

        Raises:
            InterventionError: an operation that this version does not have.
        """
        edits = tuple(_read(i, tensors) for i in body["interventions"])
        return cls(
            tuple(body["sites"]),
            edits,
            body["keep_output"],
            body["max_bytes"],
            # Plans of earlier versions have none of these.
            read(body.get("keep", [])),
            body.get("grad", False),
            body.get("stop", False),
        )


def _written(edit: Intervention, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "op": edit.op,
        "site": edit.site,
        "index": None if edit.index is None else index_text(edit.index),
        "args": {name: _written_value(v, tensors) for name, v in edit.args.items()},
    }


def _written_value(value: Any, tensors: dict[str, Tensor]) -> Any:
    def kept(tensor: Tensor) -> str:
        name = f"tensor.{len(tensors)}"
        tensors[name] = tensor
        return name

    if isinstance(value, Tensor):
        return {"tensor": kept(value)}
    if isinstance(value, PatchSource):
        return {
            "records": {site: kept(t) for site, t in value.records.items()},
            "mask": None if value.mask is None else kept(value.mask),
            "whole": None if value.whole is None else kept(value.whole),
        }
    if value is None or isinstance(value, int):
        return value
    # JSON has no NaN and no infinities.
    return float(value) if math.isfinite(value) else {"number": str(float(value))}


def _read(body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Intervention:
    if body["op"] not in OPERATIONS:
        raise InterventionError(
            f"The operation {body['op']!r} is not one of {', '.join(OPERATIONS)}: the plan comes "
            "from another version of lensview."
        )
    index = None if body["index"] is None else parse_index(body["index"])
    args = {name: _read_value(v, tensors) for name, v in body["args"].items()}
    return Intervention(body["op"], body["site"], index, args)


def _read_value(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    if "number" in value:
        return float(value["number"])

    def named(name: str | None) -> Tensor | None:
        return None if name is None else tensors[name]

    records: Sequence[tuple[str, str]] = list(value["records"].items())
    return PatchSource(
        {site: tensors[n] for site, n in records}, named(value["mask"]), named(value["whole"])
    )
