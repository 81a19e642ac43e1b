"""Watch: the link between a run and whoever waits for it.

Owns the cancel flag and the progress callback of one run. It does not run anything, and knows
neither threads' life nor widgets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from .errors import RunCancelled

OnProgress = Callable[[int, int, str], None]


class Watch:
    """Hand one to a run to follow and to stop it; safe to use from any thread.

    Args:
        on_progress: called as ``on_progress(done, total, text)`` on the thread that runs, once per
            module boundary, so often; it must be quick. `total` is 0 while unknown.
    """

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._cancel = threading.Event()
        self._on_progress = on_progress

    def cancel(self) -> None:
        """Ask the run to stop; it raises `RunCancelled` at its next module boundary."""
        self._cancel.set()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancel.is_set()

    def check(self) -> None:
        """Raise `RunCancelled` if the run was asked to stop."""
        if self._cancel.is_set():
            raise RunCancelled("The run was cancelled; the model is as it was before.")

    def progress(self, done: int, total: int, text: str) -> None:
        """Tell how far the run is; raises `RunCancelled` where it was asked to stop."""
        self.check()
        if self._on_progress is not None:
            self._on_progress(done, total, text)
