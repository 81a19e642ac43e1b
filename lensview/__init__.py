"""lensview: an interactive explorer for the inside of PyTorch and transformers models.

The public names, and nothing else. What needs transformers, plotly, anywidget or IPython, and what
few runs need, arrives when it is first asked for, so that importing lensview costs little more than
importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .capture.inputs import Args
from .errors import (
    CaptureUnsupportedError,
    DatasetError,
    DegreeError,
    IdleInterventionError,
    InputError,
    InterventionError,
    LensError,
    LensWarning,
    LimitError,
    MissingExtraError,
    NotRecordedError,
    PlacementError,
    RankDivergenceError,
    RunCancelled,
    SiteError,
    TraceFileError,
    TraceMergeError,
    WorkerError,
)
from .indices import at
from .interventions import (
    Intervention,
    add,
    call,
    clamp,
    mean,
    noise,
    patch,
    project_out,
    put,
    scale,
    skip,
    zero,
)
from .plan import Plan
from .sites import Site
from .traces.checks import Check
from .traces.compare import Diff
from .traces.tokens import Token, Tokens
from .traces.trace import Trace
from .version import VERSION as __version__
from .watch import Watch
from .wrappers.findings import Finding, Findings
from .wrappers.refusal import DistributedCaptureUnsupportedError
from .wrappers.unwrap import unwrap

if TYPE_CHECKING:
    from . import figures
    from .bridge.attach import AttachedSession, attach
    from .bridge.launch import launch
    from .bridge.session import RankSession
    from .capture.effects import Effect, effects
    from .capture.estimate import Estimate, estimate
    from .capture.generate import generate
    from .capture.generation import Ending, Generation
    from .capture.lens import LogitLens, logit_lens
    from .capture.run import extract, trace
    from .capture.source import Source, source
    from .datasets.extraction import extract_dataset
    from .datasets.reading import ActivationDataset, open_dataset
    from .demo_model import demo
    from .explorer import Explorer, explore, to_html
    from .magic import load_ipython_extension, unload_ipython_extension
    from .parallel.byhand import gather, shard
    from .parallel.weights import weight
    from .session import LocalSession, Session
    from .traces.attention import Attention, attention, attention_sites
    from .traces.merge import merge_ranks
    from .traces.reading import load
    from .wrappers.report import findings

_LATER = {
    "AttachedSession": "bridge.attach",
    "attach": "bridge.attach",
    "launch": "bridge.launch",
    "RankSession": "bridge.session",
    "Effect": "capture.effects",
    "effects": "capture.effects",
    "Estimate": "capture.estimate",
    "estimate": "capture.estimate",
    "generate": "capture.generate",
    "Ending": "capture.generation",
    "Generation": "capture.generation",
    "extract": "capture.run",
    "trace": "capture.run",
    "Source": "capture.source",
    "source": "capture.source",
    "LogitLens": "capture.lens",
    "logit_lens": "capture.lens",
    "Attention": "traces.attention",
    "attention": "traces.attention",
    "attention_sites": "traces.attention",
    "LocalSession": "session",
    "Session": "session",
    "load": "traces.reading",
    "merge_ranks": "traces.merge",
    "findings": "wrappers.report",
    "gather": "parallel.byhand",
    "shard": "parallel.byhand",
    "weight": "parallel.weights",
    "extract_dataset": "datasets.extraction",
    "ActivationDataset": "datasets.reading",
    "open_dataset": "datasets.reading",
    "demo": "demo_model",
    "Explorer": "explorer",
    "explore": "explorer",
    "to_html": "explorer",
    "load_ipython_extension": "magic",
    "unload_ipython_extension": "magic",
}

__all__ = [
    "ActivationDataset",
    "Args",
    "AttachedSession",
    "Attention",
    "CaptureUnsupportedError",
    "Check",
    "DatasetError",
    "DegreeError",
    "Diff",
    "DistributedCaptureUnsupportedError",
    "Effect",
    "Ending",
    "Estimate",
    "Explorer",
    "Finding",
    "Findings",
    "Generation",
    "IdleInterventionError",
    "InputError",
    "Intervention",
    "InterventionError",
    "LensError",
    "LensWarning",
    "LimitError",
    "LocalSession",
    "LogitLens",
    "MissingExtraError",
    "NotRecordedError",
    "PlacementError",
    "Plan",
    "RankDivergenceError",
    "RankSession",
    "RunCancelled",
    "Session",
    "Site",
    "SiteError",
    "Source",
    "Token",
    "Tokens",
    "Trace",
    "TraceFileError",
    "TraceMergeError",
    "Watch",
    "WorkerError",
    "__version__",
    "add",
    "at",
    "attach",
    "attention",
    "attention_sites",
    "call",
    "clamp",
    "demo",
    "effects",
    "estimate",
    "explore",
    "extract",
    "extract_dataset",
    "figures",
    "findings",
    "gather",
    "generate",
    "launch",
    "load",
    "load_ipython_extension",
    "logit_lens",
    "mean",
    "merge_ranks",
    "noise",
    "open_dataset",
    "patch",
    "project_out",
    "put",
    "scale",
    "shard",
    "skip",
    "source",
    "to_html",
    "trace",
    "unload_ipython_extension",
    "unwrap",
    "weight",
    "zero",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "figures":
        return import_module(".figures", __name__)
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module 'lensview' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
