"""Viewing: what a session makes of a trace's tensors besides tiles.

Owns the part of a session that needs the tensors and nothing else of the model: distribution, norms
of rows, attention. Where the tensors are in another process they are fetched when they are looked
at.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..tensors.distribution import Distribution, bounds, distribution
from ..tensors.norms import RowNorms, row_norms, token_norms
from ..traces.attention import Attention, attention
from ..traces.trace import Trace


class Viewing:
    """Views of records."""

    def bounds(self, trace: Trace, site: str) -> tuple[float, float] | None:
        """The smallest and the largest finite element of a record."""
        return bounds(trace[site])

    def distribution(
        self, trace: Trace, site: str, bins: int, edges: tuple[float, float] | None = None
    ) -> Distribution:
        """The distribution of a record's finite elements."""
        return distribution(trace[site], bins, edges)

    def token_norms(self, trace: Trace, site: str, row: int) -> RowNorms:
        """The norms of a batch row's tokens, of a record whose rows are tokens."""
        return token_norms(trace[site], row)

    def row_norms(self, trace: Trace, site: str, index: Sequence[int]) -> RowNorms:
        """The norms of the rows of a record's plane."""
        return row_norms(trace[site], index)

    def attention(self, trace: Trace, site: str) -> Attention:
        """The attention pattern of a module; see `lensview.attention`."""
        return attention(trace, site)
