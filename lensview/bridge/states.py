"""States: what a person is told of each rank, at a glance.

Owns the words for it. It is read from what was heard anyway: nothing is asked of a rank.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from .job import Job, RankState

Word = Literal["starting", "idle", "running", "stopped", "gone"]


@dataclass(frozen=True)
class RankView:
    """One rank, as it was when it was last heard of.

    Attributes:
        rank: its number.
        group: which of the session's groups it is in.
        host: its machine; "" where that is this one.
        pid: of its process there.
        state: "starting" until its model is loaded.
        doing: the command that it runs, what it loads, or how it ended.
        since: seconds for which it has done that.
        memory: bytes of its process in main memory.
        gpu_memory: bytes that it held on its GPU after its last command; 0 without one.
        line: the last line that it printed.
    """

    rank: int
    group: int
    host: str
    pid: int
    state: Word
    doing: str
    since: float
    memory: int
    gpu_memory: int
    line: str


def views(job: Job) -> tuple[RankView, ...]:
    """Every rank of a job."""
    now = time.monotonic()
    groups = {rank: number for number, group in enumerate(job.groups) for rank in group}
    return tuple(_view(state, groups[state.rank], now) for state in job.ranks)


def _view(state: RankState, group: int, now: float) -> RankView:
    return RankView(
        rank=state.rank,
        group=group,
        host=state.host,
        pid=state.pid,
        state=_word(state),
        doing=state.doing,
        since=max(0.0, now - state.since),
        memory=state.memory,
        gpu_memory=state.gpu_memory,
        line=state.lines[-1] if state.lines else "",
    )


def _word(state: RankState) -> Word:
    if state.exit is not None or state.gone:
        return "gone"
    if state.stopped_at is not None:
        return "stopped"
    if state.doing == READY:
        return "idle"
    return "running" if state.running else "starting"


READY = "ready"
