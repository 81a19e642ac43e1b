"""Verdicts: when a rank has failed, and which.

Owns the rules that tell a failure from a long run, and the text of the error. It looks at what came
back and at the state of the processes; it stops nothing.

A rank has failed when its process ended; when it is stopped (SIGSTOP); when its command raised
there and the others do not come to the same end; when no rank at all has computed or said anything
for a while, which no run does, however long it is; or when nothing was heard for a very long time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import WorkerError
from .job import Job, RankState, ended_how
from .pending import Pending

SHOWN_LINES = 8


@dataclass(frozen=True)
class Limits:
    """How long the kernel waits, in seconds.

    Attributes:
        idle: for ranks of which none computes or says anything while a command is under way.
        silent: for ranks that compute but pass no module.
        cancelled: the same, once they were asked to stop.
        notice: before it is said where such ranks are.
        stopped: for a rank that is stopped.
        apart: for the others, once a command has raised on one rank.
        ended: for the last words of a rank whose process ended.
        where: for ranks to say where they are.
        leave: for ranks to leave when asked to.
    """

    idle: float = 8.0
    silent: float = 1800.0
    cancelled: float = 60.0
    notice: float = 30.0
    stopped: float = 3.0
    apart: float = 6.0
    ended: float = 0.5
    where: float = 2.0
    leave: float = 3.0


@dataclass(frozen=True)
class Verdict:
    """One rank's failure.

    Attributes:
        rank: None where it cannot be told.
        what: what happened, as a sentence.
        traceback: the error's, or where the rank was.
        wants_where: whether ranks are to be asked where they are, before all are stopped.
    """

    rank: int | None
    what: str
    traceback: str = ""
    wants_where: bool = False
    stacks: dict[int, str] = field(default_factory=dict)

    def with_where(self, pending: Pending) -> Verdict:
        """The same, with where the ranks were: the one that waits for no other is to blame."""
        if not self.wants_where or not pending.where:
            return self
        stacks = {rank: str(told.get("stack", "")) for rank, told in pending.where.items()}
        silent = [rank for rank in pending.waiting if rank not in stacks]
        alone = silent or [r for r in sorted(stacks) if "torch/distributed" not in stacks[r]]
        blamed = alone[0] if len(alone) == 1 else self.rank
        what = self.what if blamed is None else f"Rank {blamed} hangs. {self.what}"
        return replace(
            self, rank=blamed, what=what, traceback=stacks.get(blamed or 0, ""), stacks=stacks
        )

    def error(self, job: Job) -> WorkerError:
        """The error, with the last lines of every rank."""
        lines = {state.rank: list(state.lines) for state in job.ranks}
        code = None if self.rank is None else job.ranks[self.rank].exit
        parts = [self.what]
        if self.traceback:
            parts.append(f"On rank {self.rank}:\n{self.traceback.rstrip()}")
        for rank, last in lines.items():
            if last:
                parts.append(f"Last lines of rank {rank}:\n  " + "\n  ".join(last[-SHOWN_LINES:]))
        if not any(lines.values()) and job.launcher:
            said = "\n  ".join(list(job.launcher)[-SHOWN_LINES:])
            parts.append(f"Last lines of torchrun:\n  {said}")
        stopped = "To go on" if job.lost else "All ranks were stopped, and what they held is gone"
        parts.append(f"{stopped}: {job.remedy}.")
        return WorkerError("\n".join(parts), self.rank, code, self.traceback, lines)


Rule = Callable[[Pending, Job, Limits, float], Verdict | None]


def verdict(pending: Pending, job: Job, limits: Limits) -> Verdict | None:
    """What has failed of a command that is under way; None where nothing has."""
    now = time.monotonic()
    rules: tuple[Rule, ...] = (_raised_alone, _ended, _gone, _lost, _stopped, _hangs)
    for rule in rules:
        if (found := rule(pending, job, limits, now)) is not None:
            return found
    return None


def _ended(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    ended = [s for s in job.ranks if s.exit is not None]
    if not ended and not job.gone.is_set():
        return None
    if not ended:
        return Verdict(None, "torchrun ended before its ranks had come.")
    # Of several, those that were killed because the first had ended say so by their signal.
    first = next((s for s in ended if s.exit not in (-15, -9)), None) or _earliest(ended)
    if now - first.ended_at < limits.ended and not job.gone.is_set():
        return None
    assert first.exit is not None
    failed = p.answers.get(first.rank)
    trace = str(failed.body["traceback"]) if failed and failed.kind == "failed" else ""
    return Verdict(first.rank, f"Rank {first.rank} {ended_how(first.exit)}.", trace)


def _gone(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    gone = [s for s in job.ranks if s.gone]
    if not gone or now - min(s.ended_at for s in gone) < limits.ended:
        return None
    first = _earliest(gone)
    return Verdict(first.rank, f"Rank {first.rank} is gone: {first.gone}.")


def _lost(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    ended = any(s.gone or s.exit is not None for s in job.ranks)
    return Verdict(None, job.lost) if job.lost and not ended else None


def _earliest(ended: list[RankState]) -> RankState:
    return min(ended, key=lambda state: state.ended_at)


def _stopped(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    for state in job.ranks:
        if state.stopped_at is not None and now - state.stopped_at > limits.stopped:
            return Verdict(
                state.rank,
                f"Rank {state.rank} is stopped (SIGSTOP), and the others cannot go on without it.",
            )
    return None


def _raised_alone(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    if p.failed_at is None or now - p.failed_at < limits.apart:
        return None
    rank = min(r for r, m in p.answers.items() if m.kind == "failed")
    body = p.answers[rank].body
    waiting = ", ".join(map(str, sorted(p.waiting)))
    return Verdict(
        rank,
        f"Rank {rank} raised {body['class']}: {body['text']}\nRank {waiting} did not come to the "
        "same end.",
        str(body["traceback"]),
    )


def _hangs(p: Pending, job: Job, limits: Limits, now: float) -> Verdict | None:
    quiet = now - max([p.news_at, *(job.ranks[rank].alive_at for rank in p.to)])
    if quiet > limits.idle:
        return Verdict(
            min(p.waiting),
            f"No rank has computed or said anything for {quiet:.0f} s.",
            wants_where=True,
        )
    silent = now - max(p.news_at, p.cancelled_at or 0.0)
    stop = p.cancelled_at is not None
    if silent > (min(limits.cancelled, limits.silent) if stop else limits.silent):
        why = ", though all were asked to stop" if stop else ""
        what = f"No rank has passed a module for {silent:.0f} s{why}."
        return Verdict(min(p.waiting), what, wants_where=True)
    return None


def long_silent(p: Pending, limits: Limits) -> bool:
    """Whether a command's ranks have passed no module for so long that it is worth a word: it may
    be a long computation in a function of the user's, or one without an end."""
    return time.monotonic() - p.news_at > limits.notice


def whereabouts(p: Pending) -> str:
    """Where the ranks are that others wait for, in a line."""
    stacks = {rank: str(told.get("stack", "")) for rank, told in sorted(p.where.items())}
    working = [r for r in stacks if "torch/distributed" not in stacks[r]] or list(stacks)
    places = []
    for rank in working:
        lines = [line.strip() for line in stacks[rank].splitlines() if line.startswith("  File ")]
        places.append(f"rank {rank} is at {lines[-1].removeprefix('File ')}" if lines else "")
    return "; ".join(place for place in places if place)


def disagreement(pending: Pending) -> Verdict | None:
    """Whether the ranks came to different ends of a command that all have answered."""
    answers = pending.answers
    failed = {r: m.body for r, m in answers.items() if m.kind == "failed"}
    others = sorted(set(answers) - set(failed))
    # An error that only says that another rank failed is not the one to show.
    own = {r: b for r, b in failed.items() if b["class"] != "RankDivergenceError"}
    if failed and (others or len({b["class"] for b in failed.values()}) > 1 or not own):
        rank, body = next(iter((own or failed).items()))
        what = f"Rank {rank} raised {body['class']}: {body['text']}"
        if others:
            what += f"\nRank {', '.join(map(str, others))} did not."
        return Verdict(rank, what, str(body["traceback"]))
    if all("agreed" in m.body for m in answers.values()):
        first = min(answers)
        for rank in sorted(answers):
            told = _differs(answers[first].body, answers[rank].body)
            if told:
                return Verdict(rank, f"Rank {rank} and rank {first} do not agree: {told}.")
    return None


def _differs(first: dict[str, Any], other: dict[str, Any]) -> str:
    if first["count"] != other["count"]:
        return f"they passed {other['count']} and {first['count']} modules"
    if first["agreed"] != other["agreed"]:
        return f"one came to {other['agreed']!s:.200}, the other to {first['agreed']!s:.200}"
    return ""
