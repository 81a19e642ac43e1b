"""Comparing: two runs beside each other.

Owns the pair that a person chose from the timeline: its next tokens and how far they are apart. The
two traces are the timeline's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..traces.compare import kl
from ..traces.trace import Trace
from .protocol import Divergence, NextToken
from .timeline import KeptRun

TOP = 10

Top = tuple[NextToken, ...]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs of the timeline: `first` is compared with, `second` is looked at."""

    first: KeptRun
    second: KeptRun
    top_first: Top
    top_second: Top
    divergence: Divergence

    @classmethod
    def of(cls, first: KeptRun, second: KeptRun) -> Pair:
        """Put two runs beside each other."""
        a, b = first.logits, second.logits
        tops: tuple[Top, Top] = ((), ())
        if a is not None and b is not None and a.shape == b.shape:
            tops = _union(a, b)
        elif a is not None or b is not None:
            tops = (_likeliest(a), _likeliest(b))
        return cls(first, second, *tops, divergence(a, b))

    @property
    def numbers(self) -> list[int]:
        """What the page calls them."""
        return [self.first.number, self.second.number]

    def notes(self) -> list[str]:
        """What a reader must know."""
        a, b = self.numbers
        said = [f"Comparing: pictures and tables are of runs {a} (A) and {b} (B), not the latest."]
        for run in (self.first, self.second):
            if run.trace is None:
                said.append(
                    f"The values of run {run.number} were let go; its next tokens are kept."
                )
        inputs = self.first.inputs, self.second.inputs
        both = all(isinstance(i, str) for i in inputs)
        if inputs[0] != inputs[1] if both else inputs[0] is not inputs[1]:
            said.append("Their prompts differ: rows of a difference are paired by position.")
        return said


def divergence(first: Tensor | None, second: Tensor | None) -> Divergence:
    """How far the distributions of two logits (V,) are apart, in nats, in float64."""
    if first is None or second is None:
        return Divergence(None, None, "one of the runs has no next token")
    if first.shape != second.shape:
        return Divergence(None, None, "their vocabularies differ")
    rows = first.reshape(1, -1), second.reshape(1, -1)
    there, back = kl(*rows), kl(rows[1], rows[0])
    assert there is not None and back is not None  # the shapes are equal
    return Divergence(there[0], back[0])


def row_logits(trace: Trace | None) -> Tensor | None:
    """A copy of the logits (V,) of batch row 0's last real token, where they predict."""
    if trace is None or not trace.predicts or trace.logits is None:
        return None
    return trace.logits[0].detach().clone()


def _likeliest(logits: Tensor | None) -> Top:
    return () if logits is None else _rows(logits, _ids(logits))


def _union(first: Tensor, second: Tensor) -> tuple[Top, Top]:
    ids = list(dict.fromkeys([*_ids(first), *_ids(second)]))
    return _rows(first, ids), _rows(second, ids)


def _ids(logits: Tensor) -> list[int]:
    best = torch.softmax(logits.float(), -1).topk(min(TOP, len(logits)))
    ids: list[int] = best.indices.tolist()
    return ids


def _rows(logits: Tensor, ids: list[int]) -> Top:
    shares = torch.softmax(logits.float(), -1)[ids].tolist()
    rows = [NextToken(i, f"#{i}", p) for i, p in zip(ids, shares, strict=True)]
    return tuple(sorted(rows, key=lambda token: -token.probability))
