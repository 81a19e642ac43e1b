"""Every exception that lensview raises on purpose.

Each is a `LensError` and the builtin that fits it, so that both ``except LensError`` and
``except KeyError`` do what a reader expects. The text of each says what happened, where, and what
to do next; `near` adds the closest real names to a misspelt one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LensError(Exception):
    """Base of all errors of lensview."""

    def __str__(self) -> str:
        # KeyError prints the repr of its argument; a message of several sentences is for reading.
        return "\n".join(str(a) for a in self.args)


class SiteError(LensError, LookupError):
    """A site is badly written, does not exist in the model, or does not name one value."""


class InterventionError(LensError, ValueError):
    """An intervention does not fit the value at its site (shape, index, dtype).

    Attributes:
        intervention: the one that does not fit, where the error came from a run; else None.
    """

    intervention: object | None = None


class IdleInterventionError(InterventionError):
    """A run ended, and an intervention met no value in it: its result is not what was asked for.

    Attributes:
        intervention: the first one that did nothing.
        trace: the `Trace` of the run as it went, with its reports.
    """

    def __init__(self, text: str, trace: object = None) -> None:
        super().__init__(text)
        self.trace = trace


class InputError(LensError, ValueError):
    """The inputs of a run cannot be run as they are."""


class LimitError(LensError, MemoryError):
    """A run would keep more than it may; it was not started."""


class NotRecordedError(LensError, KeyError):
    """A trace was asked for a site that it does not hold."""


class CaptureUnsupportedError(LensError, RuntimeError):
    """The model is in a state whose values cannot be shown whole, so nothing was run.

    Attributes:
        findings: every reason, one `lensview.wrappers.findings.Finding` each.
    """

    findings: tuple[Any, ...] = ()


class PlacementError(LensError, ValueError):
    """A value does not lie over the ranks as it was said to, or nothing tells how it lies."""


class RankDivergenceError(LensError, RuntimeError):
    """The ranks of one model were not asked for the same, or one did not come.

    It is raised on every rank that came, before anything runs on any.
    """


class DegreeError(LensError, ValueError):
    """A model cannot be split over so many ranks, or is not split but copied to each."""


class TraceFileError(LensError, ValueError):
    """A trace file is truncated, foreign, or newer than this lensview."""


class TraceMergeError(LensError, ValueError):
    """Traces are not parts of one run, or hold what is not known to be joined along the batch."""


class DatasetError(LensError, ValueError):
    """A dataset of activations is of another call, unfinished, damaged, or could not be written.

    Attributes:
        differs: where a call was refused, what differs from the call that began the dataset.
    """

    differs: tuple[str, ...] = ()


class RunCancelled(LensError):
    """A run was asked to stop, and did; the model is as it was."""


class WorkerError(LensError, RuntimeError):
    """A rank of a session failed, hangs or disagrees with the others; all of them were stopped.

    Attributes:
        rank: the rank that failed; None where it cannot be told.
        exit_code: its exit status, where its process ended; negative is the number of a signal.
        remote_traceback: of the error on that rank, or where it was when it was given up; or "".
        last_lines: per rank, the last lines that it printed.
    """

    def __init__(
        self,
        text: str,
        rank: int | None = None,
        exit_code: int | None = None,
        remote_traceback: str = "",
        last_lines: dict[int, list[str]] | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.exit_code = exit_code
        self.remote_traceback = remote_traceback
        self.last_lines = last_lines or {}


class MissingExtraError(LensError, ImportError):
    """An optional dependency is not installed; the text has the install line."""


class LensWarning(UserWarning):
    """Something that lensview did not refuse, but that a reader of its numbers must know."""


def near(name: str, names: Iterable[str], *, at_most: int = 5) -> str:
    """A sentence naming the real names closest to `name`, or "" where none is close."""
    pool = list(dict.fromkeys(names))
    close = difflib.get_close_matches(name, pool, n=at_most, cutoff=0.6)
    if not close:
        tail = name.rsplit(".", 1)[-1]
        close = [n for n in pool if tail and n.rsplit(".", 1)[-1] == tail][:at_most]
    return f" Did you mean {', '.join(repr(c) for c in close)}?" if close else ""
