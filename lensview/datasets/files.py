"""Files: writing one so that it is complete or absent, whenever the machine stops.

Owns temporary names, which tell whose they are, and the sweep of what processes that are gone left.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ..errors import DatasetError

_PART = re.compile(r"^\..*\.(?P<host>[^.]+)\.(?P<pid>\d+)\.part$")


def host() -> str:
    """This machine's name, without dots."""
    return socket.gethostname().replace(".", "-") or "localhost"


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What is written to a dataset within the block.

    Raises:
        DatasetError: for an error of the disk; says that what is whole stays.
    """
    try:
        yield
    except OSError as error:
        raise unwritten(folder, error) from error


def unwritten(folder: Path, error: BaseException) -> DatasetError:
    """The error for what could not be written."""
    return DatasetError(
        f"The dataset at {folder} could not be written: {error}. The shards that are whole stay; "
        "make room, and run the same call again to go on."
    )


def write_whole(target: Path, write: Callable[[IO[bytes]], Any]) -> Any:
    """Write a file beside its place, put it on the disk, and rename it; what `write` gave.

    Raises:
        OSError: it could not be written; nothing is left at `target`.
    """
    part = target.parent / f".{target.name}.{host()}.{os.getpid()}.part"
    try:
        with part.open("wb") as file:
            given = write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)
    return given


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a system without folders that can be opened
        return
    try:
        os.fsync(handle)
    except OSError:  # a file system that has no such thing; the file itself is on the disk
        return
    finally:
        os.close(handle)


def sweep_parts(folder: Path) -> None:
    """Remove what processes of this machine that are gone were writing."""
    for path in folder.glob(".*.part"):
        match = _PART.match(path.name)
        if match and match["host"] == host() and not alive(int(match["pid"])):
            path.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether a process of this machine runs, as far as can be told."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
