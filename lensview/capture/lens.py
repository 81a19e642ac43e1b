"""Lens: what each layer's residual stream would predict, if the model ended there.

Owns `lv.logit_lens`: the model's own final norm and head on the output of every layer
(nostalgebraist 2020, "interpreting GPT: the logit lens"). How they are found and proved is
`unembed.py`'s; nothing is run here but these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InterventionError
from ..traces.tokens import Token
from ..traces.trace import Trace
from ..watch import Watch
from ..wrappers.unwrap import unwrap
from .unembed import LensUnsupportedError, Unembedding, allowed, gap, layers_of, unembedding

_BYTES = 256 << 20
"""Of float32 probabilities at one time."""


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The likeliest next tokens after each layer, at each token of one prompt.

    Attributes:
        sites: the layers' sites, in order (L).
        positions: the columns of the batch's tokens that are shown (T).
        ids: (L, T, k) int64 on the CPU, the `k` likeliest token ids, the likeliest first.
        probabilities: (L, T, k) float32 on the CPU, by a softmax over the whole vocabulary.
        before: (L, T, k) float32, the probabilities of the same tokens in the run that this one is
            compared with; None without one.
        norm: the sites applied before the head, in order.
        head: the head's site.
        after: what the model does to its head's output, in words; "" for nothing.
        difference: the largest absolute difference between the model's own logits of this run and
            those that norm and head give from its last layer; 0.0 is bit for bit.
        row: the prompt's row of the batch.
    """

    sites: tuple[str, ...]
    positions: tuple[int, ...]
    ids: Tensor
    probabilities: Tensor
    before: Tensor | None
    norm: tuple[str, ...]
    head: str
    after: str
    difference: float
    row: int
    spell: Callable[[int], str]

    @property
    def way(self) -> str:
        """From residual stream to logits: ``model.norm → lm_head``."""
        return " → ".join([*self.norm, self.head, *([self.after] if self.after else [])])

    def top(self, layer: int, position: int) -> list[Token]:
        """The likeliest tokens after a layer (as `sites` counts) at the i-th shown position."""
        ids = self.ids[layer, position].tolist()
        shares = self.probabilities[layer, position].tolist()
        return [Token(self.spell(i), i, p) for i, p in zip(ids, shares, strict=True)]

    def __str__(self) -> str:
        lines = [f"logit lens through {self.way}, off by {self.difference:.3g} at the last layer"]
        width = max(map(len, self.sites))
        for layer, site in enumerate(self.sites):
            best = [self.top(layer, t)[0] for t in range(len(self.positions))]
            cells = " ".join(f"{token.text!r}:{token.probability:.2f}" for token in best)
            lines.append(f"{site:{width}}  {cells}")
        return "\n".join(lines)


def logit_lens(
    trace: Trace,
    model: Any,
    *,
    against: Trace | None = None,
    row: int = 0,
    positions: slice = slice(None),
    k: int = 5,
    watch: Watch | None = None,
) -> LogitLens:
    """What the residual stream after each layer predicts, through the model's own norm and head.

    Args:
        trace: of a run that recorded the layers' outputs (``sites="**"`` does).
        model: the model that ran, or its session. Its final norm and head are called, under
            ``torch.no_grad()``; nothing else of it.
        against: a run without interventions on the same inputs, to compare with: `before` is filled
            by it. It also proves norm and head where `trace` has interventions.
        row: which prompt of the batch.
        positions: which of its real tokens, by their number; default is all.
        k: how many tokens are kept of each cell.
        watch: can cancel it between layers.

    Raises:
        LensUnsupportedError: the model has no final norm and head that give its own logits
            (encoder-decoders, models without a vocabulary, several residual streams), or an
            intervention stands where the lens would have to pass; says why.
        NotRecordedError, SiteError: a layer's output is not in the trace.
        ValueError: `row` or `k` is out of range.
        RunCancelled: `watch` was cancelled.
    """
    ask = getattr(model, "logit_lens", None)
    if not isinstance(model, nn.Module):
        if ask is None:
            raise LensUnsupportedError(
                f"A {type(model).__name__} cannot show the logit lens: its norm and head lie in "
                "other processes. Run the model in this one."
            )
        lens: LogitLens = ask(
            trace, against=against, row=row, positions=positions, k=k, watch=watch
        )
        return lens
    root = unwrap(model)
    if k < 1:
        raise ValueError(f"logit_lens takes k of 1 or more, not {k}.")
    plain = against if against is not None else trace
    found = unembedding(plain, root)
    difference = found.difference if plain is trace else _agrees(trace, found)
    columns = _columns(trace, row, positions)
    return _table(trace, against, found, difference, columns, row, k, watch)


def lens_sites(model: Any) -> tuple[str, ...]:
    """The sites that `logit_lens` reads: every layer's output.

    Raises:
        LensUnsupportedError: the model has no layers to look at.
    """
    return layers_of(unwrap(model))


def _agrees(trace: Trace, found: Unembedding) -> float:
    difference = gap(trace, trace[found.layers[-1]], found)
    assert trace.logits is not None
    if not difference <= allowed(trace.logits):
        raise LensUnsupportedError(
            f"This run's logits differ by {difference:.3g} from what {found} gives of its last "
            "layer: an intervention stands at the final norm, the head or the logits, which the "
            "lens cannot pass through. Look at the baseline, or switch that intervention off."
        ) from InterventionError("after the last layer")
    return difference


def _columns(trace: Trace, row: int, positions: slice) -> list[int]:
    assert trace.logits is not None
    if not 0 <= row < len(trace.logits):
        raise ValueError(f"Row {row} is out of range: the batch has {len(trace.logits)} rows.")
    if trace.tokens is not None:
        return trace.tokens.positions(row)[positions]
    raise LensUnsupportedError("The inputs of this run were no token ids.")


def _table(
    trace: Trace,
    against: Trace | None,
    found: Unembedding,
    difference: float,
    columns: Sequence[int],
    row: int,
    k: int,
    watch: Watch | None,
) -> LogitLens:
    ids, shares, before = [], [], []
    for done, site in enumerate(found.layers):
        if watch is not None:
            watch.progress(done, len(found.layers), f"logit lens: {site}")
        likely, share, other = _cells(trace, against, found, site, row, columns, k)
        ids.append(likely)
        shares.append(share)
        before.append(other)
    return LogitLens(
        sites=found.layers,
        positions=tuple(columns),
        ids=torch.stack(ids),
        probabilities=torch.stack(shares),
        before=None if against is None else torch.stack(before),
        norm=found.norm,
        head=found.head,
        after=found.after,
        difference=difference,
        row=row,
        spell=trace.spelling,
    )


def _cells(
    trace: Trace,
    against: Trace | None,
    found: Unembedding,
    site: str,
    row: int,
    columns: Sequence[int],
    k: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, probabilities and the probabilities in the other run of one layer's cells."""
    ids, shares, before = [], [], []
    others = None if against is None or against is trace else _chances(against, found, site, row)
    for part in _parts(columns, trace):
        chances = _chances(trace, found, site, row)(part)
        likely = chances.topk(min(k, chances.shape[-1]), -1)
        same = chances if others is None else others(part)
        ids.append(likely.indices.cpu())
        shares.append(likely.values.cpu())
        before.append(same.gather(-1, likely.indices).cpu())
    return torch.cat(ids), torch.cat(shares), torch.cat(before)


def _chances(
    trace: Trace, found: Unembedding, site: str, row: int
) -> Callable[[list[int]], Tensor]:
    """The probabilities (t, V) that a layer gives at some columns of a row."""

    def chances(columns: list[int]) -> Tensor:
        residual = trace[site][row : row + 1, columns]
        return torch.softmax(found.logits(residual)[0].float(), -1)

    return chances


def _parts(columns: Sequence[int], trace: Trace) -> Iterator[list[int]]:
    assert trace.logits is not None
    size = max(1, _BYTES // (4 * trace.logits.shape[-1]))
    for start in range(0, len(columns), size):
        yield list(columns[start : start + size])
