"""Plotly figures of a trace, for papers, slides and static notebooks.

Two figures: a heatmap of a record and the next-token bars. What is drawn is reduced first, so a
figure stays small however large the record is. The live pictures are the explorer's. Plotly is
imported when a figure is made.
"""

from .heatmaps import heatmap
from .nexttokens import top_tokens

__all__ = ["heatmap", "top_tokens"]
