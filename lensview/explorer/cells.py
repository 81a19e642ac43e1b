"""Cells: whether one of the user's notebook cells is running, and which one.

Owns the two IPython events and the frame look-up that tell so. A run that a person starts in the
page must not begin in the middle of a cell, which may be training the very model: it waits here.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

CellKey = tuple[str, int]
"""Which cell, and which execution of it."""


class Cells:
    """The user's cells in this process. Outside IPython none ever runs."""

    def __init__(self) -> None:
        self.count = 0
        """How many cells have started since this was made."""
        self.running = False
        self._shell: weakref.ref[Any] | None = None
        self._wakes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    def attach(self, shell: Any) -> None:
        """Follow the cells of this shell from now on; a second time it does nothing."""
        with self._lock:
            if self._shell is not None and self._shell() is shell:
                return
            self._shell = weakref.ref(shell)
            # Attached from inside a cell: its start was missed, its end will be seen.
            self.running = _inside_a_cell()
        shell.events.register("pre_run_cell", self._started)
        shell.events.register("post_run_cell", self._ended)

    def call_when_idle(self, owner: Any) -> None:
        """Call ``owner.wake()`` whenever a cell ends; the owner is held weakly."""
        with self._lock:
            self._wakes.add(owner)

    def key(self) -> CellKey | None:
        """The cell that is running on this thread, or None where the caller is in none."""
        shell = self._shell() if self._shell is not None else None
        if shell is None or not _inside_a_cell():
            return None
        parent = getattr(shell, "parent_header", None) or {}
        cell_id = (parent.get("metadata") or {}).get("cellId")
        history = shell.user_ns.get("In") or [""]
        return str(cell_id or history[-1]), int(shell.execution_count)

    # The events pass an argument that nothing here needs. Booleans, not a counter: a stray end
    # (IPython sends one for a blank cell) must never leave runs waiting for good.
    def _started(self, info: object = None) -> None:
        self.count += 1
        self.running = True

    def _ended(self, result: object = None) -> None:
        self.running = False
        with self._lock:
            owners = list(self._wakes)
        for owner in owners:
            owner.wake()


def _inside_a_cell() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_code" and (
            frame.f_globals.get("__name__") == "IPython.core.interactiveshell"
        ):
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


_cells = Cells()


def cells() -> Cells:
    """The process's cells, attached to IPython's shell where there is one."""
    # Not imported for its own sake: without IPython in the process there is no cell to follow.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        _cells.attach(shell)
    return _cells


class Replacer:
    """Remembers what each cell made, so that running the cell again closes it."""

    def __init__(self, close: Callable[[Any], None]) -> None:
        self._close = close
        self._made: dict[str, tuple[int, list[weakref.ref[Any]]]] = {}

    def add(self, thing: Any) -> None:
        """Note that the running cell made `thing`; closes what its earlier execution made."""
        key = cells().key()
        if key is None:
            return
        cell, execution = key
        before, made = self._made.get(cell, (execution, []))
        if before != execution:
            for reference in made:
                old = reference()
                if old is not None:
                    self._close(old)
            made = []
        made.append(weakref.ref(thing))
        self._made[cell] = (execution, made)
