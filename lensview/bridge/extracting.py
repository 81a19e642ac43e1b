"""Extracting: a dataset of activations over all groups of ranks at once.

Owns giving each group its share, and joining their progress and their ends. What an extraction is,
is `lensview.datasets`'.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from os import path as paths
from typing import Any

from ..datasets.reading import open_dataset
from ..errors import InputError, RunCancelled
from ..interventions import Intervention
from ..plan import Plan
from ..watch import Watch
from .pending import Pending
from .summary import error_of, plan_body
from .team import Team

LOOK_SECONDS = 0.1
INTERRUPT_SECONDS = 5.0


class Extracting:
    """The part of a session over ranks that keeps every group busy."""

    _team: Team

    def extract_dataset(
        self,
        items: Any,
        sites: str | Iterable[str],
        path: str | PathLike[str],
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        watch: Watch | None = None,
        **options: Any,
    ) -> Any:
        """Run many items and keep what passes; see `lensview.extract_dataset`, whose options it
        takes but for `tokenizer`, `rank` and `world_size`.

        Each group of ranks takes its share, each item is run once, and of each group the first
        rank writes. A later call goes on where this one was stopped, with any number of groups.

        Args:
            items: texts, dicts or rows of token ids, which are sent to the ranks; or
                ``"module:function"``, which every rank calls and which gives the same items to all.
            path: a folder that this machine and those of the ranks share.

        Returns:
            The dataset.

        Raises:
            WorkerError: a rank failed; what is whole in the folder stays.
            RunCancelled: `watch` was cancelled; what was done is there.
            LensError, Exception: what `lensview.extract_dataset` raises, where all ranks of a
                group raise it.
        """
        team = self._team
        plan = Plan.make(sites, interventions)
        folder = paths.abspath(fspath(path))
        body = {
            "plan": plan_body(plan),
            "items": items if isinstance(items, str) else list(_plain(items)),
            "path": folder,
            "options": {"progress": False, **options},
            "workers": len(team.job.groups),
        }
        for pending in _Shares(team, body, watch).run():
            error = team.settled(pending)
            if error is not None:
                raise error_of(error, plan, None)
        return open_dataset(folder)


def _plain(items: Any) -> Iterator[Any]:
    if not isinstance(items, Iterable) or isinstance(items, (bytes, Mapping)):
        raise InputError(f"items is a {type(items).__name__}, not a collection of items.")
    if type(items).__name__ == "DataLoader":
        raise InputError(
            "A DataLoader stays in this process. Give its dataset's items as a list, or "
            "items='module:function' for a function that makes them on every rank."
        )
    return iter(items)


class _Shares:
    """One command to each group, each on a thread of its own here."""

    def __init__(self, team: Team, body: Mapping[str, Any], watch: Watch | None) -> None:
        self._team = team
        self._body = body
        self._watch = watch
        self._groups = range(len(team.job.groups))
        self._done = {group: (0, 0) for group in self._groups}
        self._inner = [Watch(self._progress(group)) for group in self._groups]
        self._ended: dict[int, Pending] = {}
        self._raised: list[BaseException] = []

    def run(self) -> list[Pending]:
        """What each group answered, in their order, once all have ended."""
        threads = [
            threading.Thread(target=self._one, args=(g,), name=f"lensview group {g}", daemon=True)
            for g in self._groups
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                threads[0 if threads[0].is_alive() else -1].join(LOOK_SECONDS)
                self._look()
        except BaseException:
            self._cancel()
            for thread in threads:
                thread.join(INTERRUPT_SECONDS / len(threads))
            raise
        own = [e for e in self._raised if not isinstance(e, RunCancelled)]
        if self._raised:
            raise (own or self._raised)[0]
        return [self._ended[group] for group in self._groups]

    def _one(self, group: int) -> None:
        try:
            body = {**self._body, "worker": group}
            watch = self._inner[group]
            self._ended[group] = self._team.run("extract_dataset", body, watch, None, (group,))
        except BaseException as error:
            self._raised.append(error)

    def _look(self) -> None:
        failed = [p for p in self._ended.values() if p.first.kind == "failed"]
        stopped = self._watch is not None and self._watch.cancelled
        if self._raised or failed or stopped:
            self._cancel()
        elif self._watch is not None:
            done, total = (sum(column) for column in zip(*self._done.values(), strict=True))
            if done:
                self._watch.progress(done, total, f"item {done}")

    def _cancel(self) -> None:
        for watch in self._inner:
            watch.cancel()

    def _progress(self, group: int) -> Any:
        def told(done: int, total: int, _: str) -> None:
            self._done[group] = (done, total)

        return told
