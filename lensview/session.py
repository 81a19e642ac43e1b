"""Session: something that can run plans, in this process or over ranks.

Owns the protocol that explorers and the magic work against, and `LocalSession`, which runs in this
process. It draws nothing; tiles and statistics are asked of it, so that a session whose tensors
live elsewhere can reduce them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from .capture.run import run
from .errors import LensError
from .interventions import Intervention
from .modules import ModuleRow, index, tree
from .parallel.rows import placed
from .plan import Plan
from .resolve import resolve
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
    ) -> Tile:
        """The same of `trace` minus `baseline`."""

    def stats(self, trace: Trace, site: str) -> Stats:
        """Statistics of a record, over its finite elements."""

    def value(self, trace: Trace, site: str, index: Sequence[int]) -> str:
        """One element of a record, exactly, as text."""

    def check(self, interventions: Sequence[Intervention]) -> list[str]:
        """Per intervention, what is wrong with it before any run, or ""."""


class LocalSession:
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
        max_bytes: int | None = None,
        check: bool = False,
        watch: Watch | None = None,
    ) -> Trace:
        """One run; see `lensview.trace`."""
        plan = Plan.make(sites, interventions, keep_output=keep_output, max_bytes=max_bytes)
        return run(self._model, inputs, plan, tokenizer=self.tokenizer, check=check, watch=watch)

    def tile(
        self,
        trace: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
    ) -> Tile:
        """What a screen can show of a record; reduced on the tensor's device."""
        return tile(trace[site], window, max_rows, max_columns, index)

    def difference_tile(
        self,
        trace: Trace,
        baseline: Trace,
        site: str,
        window: Window | None = None,
        max_rows: int = 512,
        max_columns: int = 512,
        index: Sequence[int] = (),
    ) -> Tile:
        """The same of `trace` minus `baseline`."""
        gap: Tensor = difference(trace[site], baseline[site])
        return tile(gap, window, max_rows, max_columns, index)

    def stats(self, trace: Trace, site: str) -> Stats:
        """Statistics of a record."""
        return trace.stats(site)

    def value(self, trace: Trace, site: str, index: Sequence[int]) -> str:
        """One element of a record, exactly."""
        return element(trace[site], index)

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
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
