"""Session: something that can run plans, in this process or over ranks.

Owns the protocol that explorers and the magic work against, and `LocalSession`, which runs in this
process. It draws nothing; tiles and statistics are asked of it, so that a session whose tensors
live elsewhere can reduce them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from .capture.lens import LogitLens, logit_lens
from .capture.run import run
from .capture.source import Source, source
from .capture.viewing import Viewing
from .errors import LensError
from .interventions import Intervention
from .modules import ModuleRow, index, tree
from .parallel.rows import placed
from .plan import Plan
from .resolve import resolve
from .tensors.sizes import Size, difference_size, size
from .tensors.stats import Stats
from .tensors.tiles import Tile, difference, element, tile
from .traces.trace import Trace
from .watch import Watch
from .wrappers.refusal import refuse
from .wrappers.unwrap import unwrap

Window = tuple[int, int, int, int]


@runtime_checkable
class Session(Protocol):
    """What an explorer needs. Every method may take long and is called on a worker thread."""

    title: str
    summary: str
    tokenizer: Any

    @property
    def root(self) -> object:
        """The model behind the session; runs on one root never overlap."""

    def tree(self) -> list[ModuleRow]:
        """The rows of the module tree; no forward."""

    def trace(
        self,
        inputs: Any,
        sites: str | Iterable[str] = "**",
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        keep_output: bool = False,
        keep: Any = None,
        max_bytes: int | None = None,
        check: bool = False,
        watch: Watch | None = None,
    ) -> Trace:
        """One run; arguments and errors as in `lensview.trace`."""

    def tile(
        self,
        trace: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        *,
        rows_dim: int | None = None,
        columns_dim: int | None = None,
        percentile: float | None = None,
    ) -> Tile:
        """What a screen can show of a record."""

    def difference_tile(
        self,
        trace: Trace,
        baseline: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        *,
        rows_dim: int | None = None,
        columns_dim: int | None = None,
        percentile: float | None = None,
    ) -> Tile:
        """The same of `trace` minus `baseline`."""

    def stats(self, trace: Trace, site: str) -> Stats:
        """Statistics of a record, over its finite elements."""

    def sizes(
        self, trace: Trace, sites: Sequence[str], baseline: Trace | None = None
    ) -> list[Size | None]:
        """How large each record is or, with `baseline`, its difference from the record there."""

    def value(self, trace: Trace, site: str, index: Sequence[int]) -> str:
        """One element of a record, exactly, as text."""

    def check(self, interventions: Sequence[Intervention]) -> list[str]:
        """Per intervention, what is wrong with it before any run, or ""."""


class LocalSession(Viewing):
    """Runs plans on a model in this process."""

    def __init__(self, model: nn.Module, tokenizer: Any = None) -> None:
        """Take a model, wrapped or not, and optionally what reads strings for it.

        Raises:
            TypeError: `model` is not an ``nn.Module``.
            CaptureUnsupportedError: it cannot be shown whole.
        """
        self._model = unwrap(model)
        refuse(index(self._model), to_run=False)
        self.tokenizer = tokenizer
        self.title = type(self._model).__name__
        self.summary = _summary(self._model)

    @property
    def root(self) -> nn.Module:
        """The model under its wrappers."""
        return self._model

    def tree(self) -> list[ModuleRow]:
        """The rows of the module tree; of a model that is split over ranks, with how it is."""
        return placed(tree(self._model), self._model, index(self._model))

    def trace(
        self,
        inputs: Any,
        sites: str | Iterable[str] = "**",
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        keep_output: bool = False,
        keep: Any = None,
        max_bytes: int | None = None,
        check: bool = False,
        watch: Watch | None = None,
    ) -> Trace:
        """One run; see `lensview.trace`."""
        plan = Plan.make(
            sites, interventions, keep_output=keep_output, keep=keep, max_bytes=max_bytes
        )
        return run(self._model, inputs, plan, tokenizer=self.tokenizer, check=check, watch=watch)

    def tile(
        self,
        trace: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        *,
        rows_dim: int | None = None,
        columns_dim: int | None = None,
        percentile: float | None = None,
    ) -> Tile:
        """What a screen can show of a record; reduced on the tensor's device."""
        return tile(
            trace[site],
            window,
            max_rows,
            max_columns,
            index,
            rows_dim=rows_dim,
            columns_dim=columns_dim,
            percentile=percentile,
        )

    def difference_tile(
        self,
        trace: Trace,
        baseline: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
        *,
        rows_dim: int | None = None,
        columns_dim: int | None = None,
        percentile: float | None = None,
    ) -> Tile:
        """The same of `trace` minus `baseline`."""
        gap: Tensor = difference(trace[site], baseline[site])
        return tile(
            gap,
            window,
            max_rows,
            max_columns,
            index,
            rows_dim=rows_dim,
            columns_dim=columns_dim,
            percentile=percentile,
        )

    def stats(self, trace: Trace, site: str) -> Stats:
        """Statistics of a record."""
        return trace.stats(site)

    def sizes(
        self, trace: Trace, sites: Sequence[str], baseline: Trace | None = None
    ) -> list[Size | None]:
        """How large each record is or, with `baseline`, how far from the one there; None where
        shapes differ, or a value cannot be read element by element."""
        return [_size(trace, baseline, site) for site in sites]

    def value(self, trace: Trace, site: str, index: Sequence[int]) -> str:
        """One element of a record, exactly."""
        return element(trace[site], index)

    def logit_lens(self, trace: Trace, **options: Any) -> LogitLens:
        """What each layer's residual stream predicts; see `lensview.logit_lens`."""
        return logit_lens(trace, self._model, **options)

    def source(self, path: str, inputs: Any = None, watch: Watch | None = None) -> Source:
        """The code of a module's forward, with its ops where inputs are run; see
        `lensview.source`."""
        return source(self._model, path, inputs, self.tokenizer, watch=watch)

    def check(self, interventions: Sequence[Intervention]) -> list[str]:
        """Per intervention, what is wrong with its site, or ""."""
        modules = index(self._model)
        found = []
        for intervention in interventions:
            try:
                resolve([intervention.site], modules)
                found.append("")
            except LensError as error:
                found.append(str(error))
        return found


def _size(trace: Trace, baseline: Trace | None, site: str) -> Size | None:
    try:
        if baseline is None:
            return size(trace[site])
        return difference_size(trace[site], baseline[site]) if site in baseline else None
    except TypeError:
        return None  # a dtype without numbers: selecting the site says which


def _summary(model: nn.Module) -> str:
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in parameters})
    devices = sorted({str(p.device) for p in parameters})
    modules = sum(1 for _ in model.modules())
    parts = [f"{_human(count)} parameters", ", ".join(dtypes), ", ".join(devices)]
    parts += [f"{modules:,} modules", "train mode" if model.training else ""]
    return " · ".join(p for p in parts if p)


def _human(count: int) -> str:
    for least, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= least:
            return f"{count / least:.3g}{unit}"
    return str(count)
