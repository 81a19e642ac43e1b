"""Progress: how far an extraction is, for who looks at stderr or waits with a `Watch`.

Owns the bar, its rate and the time left. What was done before does not count into the rate.
"""

from __future__ import annotations

import time
from typing import Any

from tqdm import tqdm

from ..watch import Watch
from .workers import Worker


class Progress:
    """Follows one worker's share; a context manager. The bar is the first worker's alone.

    Args:
        items: how many there are for all workers; None where nobody knows.
    """

    def __init__(self, items: int | None, worker: Worker, shown: bool, watch: Watch | None) -> None:
        self._total = None if items is None else -(-items // worker.world_size)
        self._watch = watch
        self._shown = shown and worker.rank == 0 and worker.writes
        self._bar: Any = None
        self._tokens = 0
        self._started = time.monotonic()
        self.items = 0

    def __enter__(self) -> Progress:
        self._bar = tqdm(total=self._total, unit="item", disable=not self._shown)
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._bar.total is not None:
            self._bar.total = max(self._bar.n, self.items)  # the share was an estimate
        self._bar.close()

    def skip(self, items: int) -> None:
        """Some items were done by an earlier call."""
        self.items += items
        if self._shown:
            self._bar.initial += items
            self._bar.update(items)

    def step(self, items: int, tokens: int) -> None:
        """Some items are done.

        Raises:
            RunCancelled: whoever waits asked to stop.
        """
        self.items += items
        self._tokens += tokens
        if self._shown:
            rate = self._tokens / max(time.monotonic() - self._started, 1e-9)
            self._bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
            self._bar.update(items)
        if self._watch is not None:
            self._watch.progress(self.items, self._total or 0, f"item {self.items}")
