"""Attach: drive a model that a scheduler's job holds.

Owns what a user says about it, the order of attaching, and the session's end, which is not the
job's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import LensError
from .attached import Attached
from .launch import LOADING_SECONDS, prepared
from .session import RankSession
from .team import Team
from .verdicts import Limits

PATIENCE_SECONDS = 10.0


class AttachedSession(RankSession):
    """A model over the ranks of a job that goes on when this session ends. Make it with
    `lensview.attach`."""

    def stop(self) -> None:
        """Detach: the job goes on, keeps its model, lets go of this session's traces, and can be
        attached to again. `end` ends it. A second call does nothing."""
        super().stop()

    def end(self) -> None:
        """End the job, on all its machines: its processes exit with status 0."""
        job = self._team.job
        assert isinstance(job, Attached)
        job.ask_to_end("its session asked for it")
        super().stop()

    def restart(self) -> None:
        """Detach, and attach again: to the same job, or to that which has taken its place in the
        connection file. It starts no job; see `lensview.attach` for what it raises."""
        super().restart()


def attach(
    connection_file: str | PathLike[str],
    *,
    address: str = "",
    patience: float = PATIENCE_SECONDS,
    loading: float = LOADING_SECONDS,
    idle: float = Limits.idle,
    silent: float = Limits.silent,
    quiet: bool = False,
) -> AttachedSession:
    """Drive a model that a job of a scheduler holds, from a notebook on any machine.

    The job is ``torchrun … -m lensview.bridge.worker --path MODEL --connection FILE``, on one
    machine or several. Its rank 0 writes FILE, with its address and a key; who can read it can run
    code in the job. One kernel at a time is attached; the session that it gets is that of
    `lensview.launch`, but that ``stop()``, the end of a ``with`` or of this process leave the job
    running. ``session.end()`` ends it.

    Args:
        connection_file: FILE, or a copy of it; readable by you alone.
        address: where the job is met from here if not where FILE says, such as
            ``tcp://localhost:5555`` for a tunnel.
        patience: seconds in which the job has to answer.
        loading, idle, silent, quiet: as in `lensview.launch`.

    Raises:
        InputError: FILE is missing, open to others, none of ours, or of another version.
        WorkerError: nobody answers; another kernel is attached; a rank failed.
        LensError, Exception: what loading raised, where all ranks raised it.
    """
    file = Path(connection_file).expanduser().absolute()
    limits = Limits(idle=idle, silent=silent)
    patient = replace(limits, idle=loading, silent=loading, notice=loading)

    def start() -> tuple[Team, dict[str, Any], Any]:
        job = Attached(file, address, patience)
        team = Team(job, limits, quiet)
        team.adopt(job.busy)
        return prepared(team, {}, patient, _tokenizer)

    return AttachedSession(start)


def _tokenizer(team: Team, about: Mapping[str, Any]) -> Any:
    """A copy of the ranks' tokenizer, from rank 0's files."""
    if about["tokenizer"] != "kept":
        return None
    from transformers import AutoTokenizer

    answer = team.read("tokenizer", {}).answers[0]
    if answer.kind == "failed":
        raise LensError(f"The job's tokenizer cannot be read: {answer.body['text']}")
    folder = team.job.folder / "tokenizer"
    folder.mkdir()
    for name, content in answer.body["result"].items():
        if Path(name).name == name:
            (folder / name).write_bytes(content)
    return AutoTokenizer.from_pretrained(folder)
