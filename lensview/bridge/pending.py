"""Pending: a command on its way, and how it is cancelled.

Owns what came back for one command so far, and the kernel's side of stopping all ranks at one and
the same boundary (`steps.py` has a rank's side). It sends through a function that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .wire import Message

Send = Callable[[str, int, Any], None]
"""A message's kind, the rank that it goes to, and what it holds."""
QUIET_SECONDS = 0.1
"""Without news for so long, ranks that stand hold up the others."""


@dataclass(eq=False)
class Pending:
    """One command.

    Attributes:
        number: of the command.
        to: the ranks that it went to.
        waiting: the ranks whose answer is still to come.
        answers: by rank, "reply" and "failed" messages.
        progress: the latest of any rank, until somebody takes it.
        standing: by rank, the boundary at which it waits to be let on.
        where: by rank, what it said when asked where it is.
        failed_at: when the first rank's error came.
        cancelled_at: when it was asked to stop.
        asked_at: when its ranks were asked where they are.
        told: whether it was told that a rank takes long.
    """

    number: int
    waiting: set[int]
    answers: dict[int, Message] = field(default_factory=dict)
    progress: tuple[int, int, str] | None = None
    standing: dict[int, int] = field(default_factory=dict)
    where: dict[int, dict[str, Any]] = field(default_factory=dict)
    failed_at: float | None = None
    cancelled_at: float | None = None
    asked_at: float | None = None
    told: bool = False
    news_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.to = frozenset(self.waiting)

    def take(self, rank: int, message: Message) -> None:
        """Take what a rank said about this command."""
        if message.kind != "where":
            self.news_at = time.monotonic()
        if message.kind == "progress":
            self.progress = tuple(message.body)
        elif message.kind == "paused":
            self.standing[rank] = int(message.body)
        elif message.kind == "where":
            self.where[rank] = dict(message.body)
        else:
            self.answers[rank] = message
            self.waiting.discard(rank)
            self.standing.pop(rank, None)
            if message.kind == "failed" and self.failed_at is None:
                self.failed_at = time.monotonic()

    @property
    def first(self) -> Message:
        """The answer of the first of its ranks, which holds what they came to together."""
        return self.answers[min(self.to)]

    def result(self) -> Any:
        """What the first of its ranks answered."""
        return self.first.body["result"]


class Cancel:
    """Stopping one command on all ranks alike. `step` is called again and again until it is over.

    All are asked to stand. A rank that others wait for (in a collective) is let on boundary by
    boundary; when all stand, the farthest boundary is where all end. Where a rank has finished
    before it stood, the others finish too: the cancel came too late.
    """

    def __init__(self, pending: Pending, send: Send) -> None:
        self._pending = pending
        self._send = send
        self._over = False
        pending.cancelled_at = time.monotonic()
        for rank in pending.waiting:
            send("pause", rank, None)

    def step(self) -> None:
        """Do what can be done now."""
        pending = self._pending
        if self._over or not pending.waiting:
            return
        if pending.answers:
            self._over = True
            for rank in pending.waiting:
                self._send("go", rank, 1 << 60)
        elif pending.waiting <= pending.standing.keys():
            self._over = True
            last = max(pending.standing.values())
            for rank in pending.waiting:
                self._send("end", rank, last)
        elif pending.standing and time.monotonic() - pending.news_at > QUIET_SECONDS:
            rank = min(pending.standing, key=pending.standing.__getitem__)
            count = pending.standing.pop(rank)
            pending.news_at = time.monotonic()
            self._send("go", rank, count + 1)
