"""RankSession: a session over ranks.

Owns its life, and the runs of a model that lies over several processes; what needs no run is
`looking.py`'s. Each method is one command to the ranks (`team.py`); what they answer is made into
the objects that `LocalSession` would give.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..capture.generation import Generation
from ..errors import InputError, WorkerError
from ..interventions import Intervention
from ..plan import Plan
from ..traces.reading import extracted
from ..traces.trace import Trace
from ..watch import Watch
from .extracting import Extracting
from .job import RankState
from .looking import Looking
from .pending import Pending
from .remote import RemoteTrace
from .states import RankView, views
from .summary import error_of, generation_of, plan_body
from .team import Team

Start = Callable[[], tuple[Team, dict[str, Any], Any]]
"""Starts the ranks: the team, what rank 0 said of the model, and the tokenizer."""


class RankSession(Looking, Extracting):
    """A model over several processes, driven from this one. Make it with `lensview.launch`.

    Attributes:
        title, summary: the model's class and size, for people.
        tokenizer: a copy of the ranks' tokenizer, or None.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._team, about, self.tokenizer = start()
        # Let go of without `stop`, it does not keep its ranks.
        self._held = [self._team]
        weakref.finalize(self, _end_later, self._held).atexit = False
        self.title = str(about["title"])
        self.summary = f"{about['summary']} · {_ranks_text(self.groups)}"

    # --- its life ------------------------------------------------------------------------------

    @property
    def root(self) -> object:
        """This session: runs on it never overlap."""
        return self

    @property
    def ranks(self) -> tuple[RankState, ...]:
        """What is known of each rank: its process, its memory, its last lines."""
        return tuple(self._team.ranks)

    def states(self) -> tuple[RankView, ...]:
        """What each rank does, since when, its memory and its last line; nothing is asked of it."""
        return views(self._team.job)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the ranks that hold one model together, for each copy of it. All but a
        dataset's extraction runs on the first group."""
        return tuple(map(tuple, self._team.job.groups))

    @property
    def ready(self) -> bool:
        """Whether the ranks are there; else `restart` brings them back."""
        return self._team.failure is None and not self._team.closed

    def stop(self) -> None:
        """End the ranks. When it returns, their processes are gone; a second call does nothing."""
        self._team.close()

    def restart(self) -> None:
        """End the ranks, if they are there, and start them anew. Earlier traces are gone with the
        ranks that held them, but for tensors that were fetched."""
        self._team.close()
        self._team, _, self.tokenizer = self._start()
        self._held[:] = [self._team]

    def __enter__(self) -> RankSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        team = self._team
        state = "failed: restart()" if team.failure else "stopped" if team.closed else "ready"
        return f"RankSession of {self.title} ({self.summary}), {state}"

    def ping(self) -> None:
        """Have every rank answer."""
        everyone = range(len(self.groups))
        self._ran(self._team.run("ping", {}, groups=everyone), None)

    # --- runs ----------------------------------------------------------------------------------

    def trace(
        self,
        inputs: Any,
        sites: str | Iterable[str] = "**",
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        chat: bool = False,
        keep_output: bool = False,
        keep: Any = None,
        stop: bool = False,
        grad: bool = False,
        max_bytes: int | None = None,
        check: bool = False,
        watch: Watch | None = None,
    ) -> Trace:
        """One run, in step on every rank; see `lensview.trace`.

        The tensors stay on rank 0 and are fetched when they are looked at. Functions of
        `lensview.call` travel by import path or as source text.

        Raises:
            WorkerError: a rank failed, hangs or disagrees; all were stopped.
            InputError: the inputs cannot be sent, or `keep_output` or `grad` is asked for.
            LensError, Exception: what `lensview.trace` raises, where all ranks raise it.
        """
        if keep_output:
            raise InputError(
                "A model's whole output stays on the ranks. Record what you need of it: "
                'sites=[":output[logits]"], or read trace.logits.'
            )
        if grad:
            raise InputError(
                "A loss is made from tensors of the process that has the graph, and that is the "
                "ranks' here. Where gradients are needed, run one script on every rank, with "
                "lensview.trace(model, inputs, grad=True) in it and torchrun around it: "
                "docs/tensor-parallel.md, 'In a script'."
            )
        plan = Plan.make(sites, interventions, keep=keep, stop=stop, max_bytes=max_bytes)
        body = {"plan": plan_body(plan), "inputs": inputs, "chat": chat, "check": check}
        return self._trace(self._ran(self._team.run("trace", body, watch), plan), plan)

    def extract(
        self,
        inputs: Any,
        sites: str | Iterable[str],
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        chat: bool = False,
        keep: Any = None,
        stop: bool = False,
        watch: Watch | None = None,
    ) -> dict[str, Tensor]:
        """The tensors at `sites`; see `lensview.extract`, and `trace` for what it raises."""
        asked = (sites,) if isinstance(sites, str) else tuple(sites)
        seen = self.trace(
            inputs, asked, interventions, chat=chat, keep=keep, stop=stop, watch=watch
        )
        assert isinstance(seen, RemoteTrace)
        self._fetch_all(seen)
        return extracted(seen, asked)

    def generate(
        self,
        inputs: Any,
        sites: str | Iterable[str] = "**",
        interventions: Intervention | Iterable[Intervention] = (),
        *,
        max_new_tokens: int = 20,
        chat: bool = False,
        keep: Any = None,
        max_bytes: int | None = None,
        seed: int | None = None,
        watch: Watch | None = None,
        **generate_kwargs: Any,
    ) -> Generation:
        """Generate, in step on every rank; see `lensview.generate`, and `trace` for what it raises.

        Args:
            seed: of the ranks' random state, for sampling; without one, sampling goes on with the
                state that the ranks have, one and the same.
        """
        plan = Plan.make(sites, interventions, keep=keep, max_bytes=max_bytes)
        if generate_kwargs.get("do_sample") and seed is None:
            seed = int(torch.randint(1 << 62, ()).item())
        body = {
            "plan": plan_body(plan),
            "inputs": inputs,
            "chat": chat,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "options": generate_kwargs,
        }
        told = self._ran(self._team.run("generate", body, watch), plan)
        traces = [self._trace(step, plan) for step in told["steps"]]
        return generation_of(told, plan, traces, self.tokenizer)

    def _ran(self, pending: Pending, plan: Plan | None) -> Any:
        error = self._team.settled(pending)
        if error is None:
            return pending.result()
        seen = error.get("trace")
        held = self._trace(seen, plan) if seen is not None and plan is not None else None
        raise error_of(error, plan, held)

    def _trace(self, body: dict[str, Any], plan: Plan) -> RemoteTrace:
        team = self._team

        def fetch(number: int, site: str) -> Tensor:
            if team is not self._team:
                raise WorkerError(
                    f"{site}: the ranks that held this trace are gone. Run it again.", None
                )
            return self._read("fetch", {"trace": number, "sites": [site]})[site]  # type: ignore[no-any-return]

        def drop(number: int) -> None:
            team.tell("drop", {"trace": number})

        return RemoteTrace(body, plan, self.tokenizer, fetch, drop)

    def _fetch_all(self, trace: RemoteTrace) -> None:
        body = {"trace": trace.number, "sites": list(trace.sites)}
        for site, tensor in self._read("fetch", body).items():
            object.__setattr__(trace.record(site), "_tensor", tensor)


def _ranks_text(groups: Sequence[Sequence[int]]) -> str:
    size = len(groups[0])
    ranks = f"{size} rank{'s' if size > 1 else ''}"
    return ranks if len(groups) == 1 else f"{len(groups)} groups of {ranks}"


def _end_later(teams: list[Team]) -> None:
    for team in teams:
        # Ending takes a moment, and a finalizer may run anywhere.
        threading.Thread(target=team.close, name="lensview end", daemon=True).start()
