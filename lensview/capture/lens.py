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

_BYTES = 64 << 20
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
    cells = [(site, column) for site in found.layers for column in columns]
    others = None if against is None or against is trace else against
    ids, shares, before = [], [], []
    for part in _parts(len(cells), trace.logits.shape[-1] if trace.logits is not None else 1):
        if watch is not None:
            watch.progress(part.start, len(cells), f"logit lens: {cells[part.start][0]}")
        chances = _chances(trace, found, cells[part], row)
        likely = chances.topk(min(k, chances.shape[-1]), -1)
        same = chances if others is None else _chances(others, found, cells[part], row)
        ids.append(likely.indices.cpu())
        shares.append(likely.values.cpu())
        before.append(same.gather(-1, likely.indices).cpu())
    shape = (len(found.layers), len(columns), -1)
    return LogitLens(
        sites=found.layers,
        positions=tuple(columns),
        ids=_joined(ids, shape),
        probabilities=_joined(shares, shape),
        before=None if against is None else _joined(before, shape),
        norm=found.norm,
        head=found.head,
        after=found.after,
        difference=difference,
        row=row,
        spell=trace.spelling,
    )


def _joined(parts: list[Tensor], shape: tuple[int, int, int]) -> Tensor:
    # Without a cell the last dim could not be told.
    return torch.cat(parts).reshape(shape) if parts else torch.zeros((*shape[:2], 0))


def _chances(
    trace: Trace, found: Unembedding, cells: Sequence[tuple[str, int]], row: int
) -> Tensor:
    """The probabilities (n, V) of some cells. Cells of several layers go through the head at once:
    a head of many tokens is slow to read."""
    device = trace[found.layers[-1]].device
    residual = [trace[site][row, column].to(device) for site, column in cells]
    return torch.softmax(found.logits(torch.stack(residual)[None])[0].float(), -1)


def _parts(count: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, _BYTES // (4 * vocabulary))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
