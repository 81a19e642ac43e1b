"""Ranks: what an explorer shows of a session over ranks besides what every session has.

Owns the answer to ``ranks``, which asks nothing of any rank, and looking at one rank's piece of a
record through the ways by which the whole is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, cast

from ..bridge.pieces import split_dim
from ..errors import LensError
from ..session import Session
from ..tensors.tiles import Tile
from ..traces.trace import Trace
from . import params
from .bodies import RankRow, RanksReply
from .jobs import Answer, Job, Work
from .protocol import Request
from .runs import Runs

Methods = dict[str, Callable[[Request], None]]
MAX_LINE = 400
ROW_DIMS = 2
"""Of (B, T, D): a piece of these dims has not the rows that the labels are of."""


def rank_methods(runs: Runs, read: Callable[[Request, Work], None]) -> Methods:
    """The methods that sessions over ranks add."""

    def ranks(request: Request) -> None:
        site = params.text(request.params, "site")

        def work(job: Job) -> Answer:
            return Answer(asdict(ranks_reply(runs.session, runs.shown().trace, site)))

        read(request, work)

    return {"ranks": ranks}


def ranks_reply(session: Session, trace: Trace | None, site: str) -> RanksReply:
    """What is known of the ranks; of no rank where the session is in one process."""
    if not _has_ranks(session):
        return RanksReply([], 0, "")
    own = RankRow.__dataclass_fields__
    rows = [
        RankRow(**{n: v for n, v in asdict(s).items() if n in own} | {"line": s.line[:MAX_LINE]})
        for s in cast(Any, session).states()
    ]
    if trace is None or not site:
        return RanksReply(rows, 0, "")
    try:
        dim, record = split_dim(trace, site), trace.record(site)
    except LensError:  # the run did not record it, which the heatmap says
        return RanksReply(rows, 0, "")
    shown = dim is not None and (dim >= ROW_DIMS or len(trace.shape(site)) <= ROW_DIMS)
    group = len(cast(Any, session).groups[0])
    return RanksReply(rows, group if shown else 0, record.placement)


def _has_ranks(session: Session) -> bool:
    return hasattr(type(session), "states")


def one_rank(session: Session, rank: int | None) -> Session:
    """The session as it shows what rank `rank` holds; itself where that is None.

    Raises:
        RequestError: it has no ranks.
    """
    if rank is None:
        return session
    if not _has_ranks(session):
        raise params.RequestError("This session is in one process: there are no ranks.")
    return cast(Session, _OneRank(session, rank))


class _OneRank:
    """A session whose pictures and numbers are of one rank's pieces."""

    def __init__(self, session: Any, rank: int) -> None:
        self._session, self._rank = session, rank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def tile(self, *given: Any, **options: Any) -> Tile:
        return self._noted(self._session.tile(*given, rank=self._rank, **options))

    def difference_tile(self, *given: Any, **options: Any) -> Tile:
        return self._noted(self._session.difference_tile(*given, rank=self._rank, **options))

    def stats(self, *given: Any) -> Any:
        return self._session.stats(*given, rank=self._rank)

    def value(self, *given: Any) -> Any:
        return self._session.value(*given, rank=self._rank)

    def _noted(self, tile: Tile) -> Tile:
        said = f"rank {self._rank}'s piece alone, its numbers its own"
        return replace(tile, note="; ".join(n for n in (said, tile.note) if n))
