"""Launch: start the ranks of a model from a notebook.

Owns what a user says about them, and the order of a start: processes, hello of every rank, the
load, the tokenizer.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from os import PathLike
from typing import Any

from ..errors import InputError
from .processes import Processes
from .session import RankSession
from .summary import error_of
from .team import Team
from .verdicts import Limits

LOADING_SECONDS = 1800.0
Tokenizer = Callable[[Team, Mapping[str, Any]], Any]
"""Reads the ranks' tokenizer, from what rank 0 said of it."""


def launch(
    path: str | PathLike[str],
    *,
    tp: int = 2,
    dp: int = 1,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    timeout: float = 7200.0,
    loading: float = LOADING_SECONDS,
    idle: float = Limits.idle,
    silent: float = Limits.silent,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
) -> RankSession:
    """Load a model over several processes of this machine, and drive it from here.

    ``torchrun`` starts one fresh interpreter per rank; nothing is forked, no port is chosen here.
    What the ranks print comes to stderr, marked ``[rank 1]``. When this process ends, however it
    ends, the ranks end too; ``session.stop()`` or the end of a ``with`` ends them before.

    Args:
        path: what transformers loads, a folder or an id, split over the ranks by its own tensor
            parallel plan; or ``"module:function"`` of yours, which every rank calls and which
            returns a model, or a model and its tokenizer. The ranks see this process's `sys.path`.
        tp: over how many ranks the model is split.
        dp: how many such groups of ranks there are, each with a model of its own. A dataset's
            extraction is spread over them; all else runs on the first, and the others sleep.
        device: "cpu" keeps off the GPUs; None takes one GPU for each rank where there are so many.
        options: for ``from_pretrained`` or your function, as keywords.
        timeout: of the ranks' process group, in seconds. Time between commands does not count.
        loading: seconds that a load may go without any sign of life.
        idle: seconds after which ranks of which none computes or says anything, while a command is
            under way, are taken to hang.
        silent: the same for ranks that compute, but pass no module.
        env: more environment variables for the ranks.
        quiet: do not print what the ranks print; ``session.ranks`` has their last lines.

    Raises:
        WorkerError: a rank did not come, or failed; with its last lines.
        InputError: an argument that cannot be.
        LensError, Exception: what loading raised, where all ranks raised it.
    """
    name = os.fspath(path)
    for word, number in {"tp": tp, "dp": dp}.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InputError(f"{word} is a number of ranks, 1 or more, not {number!r}.")
    if device not in (None, "cpu"):
        raise InputError(f"device is 'cpu' or None, not {device!r}.")
    spec = spec_of(name, options or {}, timeout, tp)
    limits = Limits(idle=idle, silent=silent)
    patient = replace(limits, idle=loading, silent=loading, notice=loading)
    variables = _environment(tp * dp, device, env or {})

    def start() -> tuple[Team, dict[str, Any], Any]:
        team = Team(Processes(tp * dp, tp, variables), limits, quiet)
        _teams.add(team)
        return prepared(team, spec, patient, _tokenizer)

    begun = time.monotonic()
    session = RankSession(start)
    if not quiet:
        seconds = time.monotonic() - begun
        ranks = f"{dp} x {tp}" if dp > 1 else tp
        print(f"lens: {session.title} is ready on {ranks} ranks ({seconds:.0f} s)", file=sys.stderr)
    return session


def prepared(
    team: Team, spec: Mapping[str, Any], patient: Limits, tokenizer: Tokenizer
) -> tuple[Team, dict[str, Any], Any]:
    """The team once its ranks have come and hold the model; what rank 0 said of it."""
    try:
        if not team.job.attached:
            team.come(patient)
        pending = team.run("load", spec, None, patient, range(len(team.job.groups)))
        error = team.settled(pending)
        if error is not None:
            raise error_of(error, None, None)
        about = pending.result()
        for rank in team.ranks:
            rank.does("ready")
        return team, about, tokenizer(team, about)
    except BaseException:
        team.close()
        raise


def spec_of(name: str, options: Mapping[str, Any], timeout: float, tp: int) -> dict[str, Any]:
    """What the ranks load, as they take it; see `launch`."""
    return {
        "loader": name if _is_function(name) else "",
        "path": os.path.abspath(name) if os.path.isdir(name) else name,
        "options": dict(options),
        "timeout": timeout,
        "tp": tp,
    }


def _is_function(name: str) -> bool:
    module, colon, function = name.partition(":")
    names = [*module.split("."), *function.split(".")]
    return bool(colon) and all(part.isidentifier() for part in names)


def _environment(size: int, device: str | None, more: Mapping[str, str]) -> dict[str, str]:
    # What can be imported here can be imported there: lensview, and the user's own modules.
    paths = [path or os.getcwd() for path in sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    # torchrun would say at length that it sets this.
    env.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // size)))
    return {**env, **more}


def _tokenizer(team: Team, about: Mapping[str, Any]) -> Any:
    if about["tokenizer"] != "kept":
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(team.job.folder / "tokenizer")


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for team in list(_teams):
        team.close()
