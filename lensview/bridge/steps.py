"""Steps: the boundaries of a run at which all ranks can be stopped alike.

Owns a rank's side of a cancel. Every rank passes the same boundaries in the same order, but not at
the same time: a rank that just stopped would leave the others waiting in a collective. So each is
asked to stand at its next boundary and to say which one that is; those that others wait for are
let on; when all stand, the farthest boundary is where all end (`cancel.py` has the kernel's side).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from ..errors import RunCancelled
from ..watch import OnProgress, Watch

PROGRESS_SECONDS = 0.1


class Steps(Watch):
    """The watch of one run on one rank.

    Args:
        stands: called with the number of the boundary at which this rank waits.
        on_progress: as in `Watch`, but at most ten times a second.

    Attributes:
        count: how many boundaries this rank has passed.
    """

    def __init__(self, stands: Callable[[int], None], on_progress: OnProgress) -> None:
        super().__init__()
        self.count = 0
        self._stands = stands
        self._told = on_progress
        self._last = 0.0
        self._limit = sys.maxsize
        self._end: int | None = None
        self._turn = threading.Condition()

    def check(self) -> None:
        """Pass a boundary; stand there if asked to."""
        self.count += 1
        if self.count >= self._limit:
            self._stand()

    def progress(self, done: int, total: int, text: str) -> None:
        """Pass a boundary, and tell how far the run is."""
        self.check()
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._told(done, total, text)

    def _stand(self) -> None:
        with self._turn:
            if self._end is None:
                self._stands(self.count)
            while self._end is None and self.count >= self._limit:
                self._turn.wait()
            if self._end is not None and self.count >= self._end:
                raise RunCancelled("The run was cancelled; the model is as it was before.")

    def pause(self) -> None:
        """Stand at the next boundary."""
        self.go(0)

    def go(self, limit: int) -> None:
        """Go on up to boundary `limit`, and stand there."""
        with self._turn:
            self._limit = limit
            self._turn.notify_all()

    def end(self, at: int) -> None:
        """Go on up to boundary `at`, and end the run there."""
        with self._turn:
            self._end = self._limit = at
            self._turn.notify_all()
