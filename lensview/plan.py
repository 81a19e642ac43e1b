"""Plan: which sites, which interventions and which limits one run has.

Owns the frozen object that every run is made from, and its JSON: a plain object plus a table of
tensors, so that it can be saved beside a trace or sent without pickle. It runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from .errors import InputError, InterventionError, SiteError
from .indices import index_text, parse_index
from .interventions import OPERATIONS, Intervention
from .keeping import Keep, keeping
from .keeping import read as read_keep
from .keeping import written as written_keep
from .portable import read, write
from .sites import Site

Records = Literal["rank0", "all"]


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
        records: which ranks of a model that is split over several keep records: "rank0" or "all".
    """

    sites: tuple[str, ...] = ()
    interventions: tuple[Intervention, ...] = ()
    keep_output: bool = False
    max_bytes: int | None = None
    keep: Keep = ()
    grad: bool = False
    stop: bool = False
    records: Records = "rank0"

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
        records: Records = "rank0",
    ) -> Plan:
        """A plan from what a caller writes: one site or many, one intervention or many.

        Raises:
            InputError: `records` is neither "rank0" nor "all".
            SiteError: a text is not a site.
            InterventionError: something in `interventions` is not one.
            InputError: `keep` is none of an index, a dtype and a mapping of globs to either.
        """
        texts = (sites,) if isinstance(sites, str) else _listed(sites, "sites", "site texts")
        for text in texts:
            if not isinstance(text, str):
                raise SiteError(f"A site is a text, not a {type(text).__name__}: {text!r:.80}.")
            Site.parse(text)
        single = isinstance(interventions, (Intervention, str))
        edits = (
            (interventions,)
            if single
            else _listed(interventions, "interventions", "what lv.zero, lv.scale, … make")
        )
        for edit in edits:
            if not isinstance(edit, Intervention):
                raise InterventionError(
                    f"{edit!r} is a {type(edit).__name__}, not an intervention; make one with "
                    f"{', '.join('lv.' + o for o in OPERATIONS)}."
                )
        if records not in ("rank0", "all"):
            raise InputError(f"records is 'rank0' or 'all', not {records!r}.")
        return cls(texts, edits, keep_output, max_bytes, keeping(keep), grad, stop, records)

    def to_json(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The plan as a JSON object, and the tensors that it refers to by name."""
        tensors: dict[str, Tensor] = {}
        body = {
            "sites": list(self.sites),
            "interventions": [_written(i, tensors) for i in self.interventions],
            "keep_output": self.keep_output,
            "max_bytes": self.max_bytes,
            "keep": written_keep(self.keep),
            "grad": self.grad,
            "stop": self.stop,
            "records": self.records,
        }
        return body, tensors

    @classmethod
    def from_json(cls, body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Plan:
        """The inverse of `to_json`. It runs nothing: functions wait for `Intervention.trusted`.

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
            read_keep(body.get("keep", [])),
            body.get("grad", False),
            body.get("stop", False),
            body.get("records", "rank0"),
        )


def _listed(value: Any, name: str, of: str) -> tuple[Any, ...]:
    if callable(value) or not isinstance(value, Iterable):
        raise TypeError(
            f"{name} is a {type(value).__name__}; it takes {of}, one or a list of them."
            + (" A tokenizer goes in by name: tokenizer=…." if hasattr(value, "decode") else "")
        )
    return tuple(value)


def _written(edit: Intervention, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {
        "op": edit.op,
        "site": edit.site,
        "index": None if edit.index is None else index_text(edit.index),
        "args": {name: write(v, tensors) for name, v in edit.args.items()},
    }


def _read(body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Intervention:
    if body["op"] not in OPERATIONS:
        raise InterventionError(
            f"The operation {body['op']!r} is not one of {', '.join(OPERATIONS)}: the plan comes "
            "from another version of lensview."
        )
    index = None if body["index"] is None else parse_index(body["index"])
    args = {name: read(v, tensors) for name, v in body["args"].items()}
    return Intervention(body["op"], body["site"], index, args)
