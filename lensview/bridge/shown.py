"""Shown: what ranks printed and warned of, given again in the kernel.

Owns how it is marked with the rank that it came from. It goes to stderr, never to stdout.
"""

from __future__ import annotations

import builtins
import sys
import warnings
from collections.abc import Iterable
from typing import Any

from .. import errors
from .pending import Pending


def show(lines: Iterable[tuple[int | None, str]]) -> None:
    """Print lines of ranks, each marked with its rank; torchrun's own (None) are left out."""
    for rank, line in lines:
        if rank is not None:
            print(f"[rank {rank}] {line}", file=sys.stderr)


def tell(text: str) -> None:
    """Say something of the ranks in the kernel's own name."""
    print(f"lens: {text}", file=sys.stderr)


def warn(pending: Pending) -> None:
    """Give the ranks' warnings again, each once, marked with those that had it."""
    seen: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(pending.answers):
        for name, text in pending.answers[rank].body["warnings"]:
            seen.setdefault((name, text), []).append(rank)
    for (name, text), ranks in seen.items():
        kind: Any = getattr(errors, name, None) or getattr(builtins, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Warning)):
            kind = UserWarning
        marked = "" if len(ranks) == len(pending.answers) else f"[rank {ranks[0]}] "
        warnings.warn(marked + text, kind, stacklevel=5)
