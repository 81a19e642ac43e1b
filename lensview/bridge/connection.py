"""Connection: where the kernel and the ranks meet, and the key that lets a peer in.

Owns the two files that say it: a launched job's, on one machine (a socket in a private folder, a
password), and a scheduler's job's (TCP with CURVE keys, so that what passes is secret and the job
is known to be the one that wrote the file). Nothing is read from a peer that has not shown the key,
and it is told nothing: it is refused in ZeroMQ's handshake, before any message.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import zmq

from ..errors import InputError
from ..version import VERSION

HEARTBEAT_MS = 1000
HEARTBEAT_LOST_MS = 10_000
"""A TCP connection whose other end is silent for so long is taken to be cut."""


@dataclass(frozen=True)
class Connection:
    """Where the kernel is met on this machine, and the key that a rank has to show."""

    endpoint: str
    key: str

    def write(self, path: Path) -> None:
        """Leave it in a file that the owner alone can read."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"endpoint": self.endpoint, "key": self.key}, file)

    @classmethod
    def read(cls, path: str | Path) -> Connection:
        """What `write` left."""
        body = json.loads(Path(path).read_text("utf-8"))
        return cls(body["endpoint"], body["key"])

    def admit(self, socket: zmq.Socket[bytes], keeper: Any) -> None:
        """Let peers with the key into a socket that others come to."""
        keeper.configure_plain(domain="lensview", passwords={"rank": self.key})
        socket.plain_server = True

    def show(self, socket: zmq.Socket[bytes]) -> None:
        """Show the key with a socket that comes."""
        socket.plain_username = b"rank"
        socket.plain_password = self.key.encode()


def private_folder() -> Path:
    """A new folder for the owner alone, with a name short enough for a socket in it."""
    place = tempfile.gettempdir()
    if len(place) > 60 and os.path.isdir("/tmp"):
        place = "/tmp"
    return Path(tempfile.mkdtemp(prefix="lensview-", dir=place))


def new_connection(folder: Path) -> Connection:
    """A place to meet in `folder`, with a key of its own."""
    return Connection(f"ipc://{folder / 'socket'}", secrets.token_hex(32))


# --- a scheduler's job --------------------------------------------------------------------------


@dataclass(frozen=True)
class JobConnection:
    """Where a job that a scheduler started is met: the file that `lensview.attach` reads.

    Attributes:
        endpoint: as ZeroMQ writes it, ``tcp://host:port``.
        server: the job's public key.
        public, secret: the key pair that a peer has to show.
        job: a name that no other job has; it is no secret.
        version: of lensview in the job.
        host: the machine of rank 0.
        ranks: how many there are.
        tp: how many of them hold one model together.
    """

    endpoint: str
    server: str
    public: str
    secret: str
    job: str
    version: str
    host: str
    ranks: int
    tp: int

    def write(self, path: Path) -> None:
        """Put it in the place of what is there, at once, readable by the owner alone.

        Raises:
            OSError: the folder cannot be written.
        """
        new = path.with_name(f".{path.name}.{self.job}")
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file)
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> JobConnection:
        """What `write` left.

        Raises:
            InputError: there is no such file; others can read or write it; it is no such file; or
                it is of another version of lensview.
        """
        text = _private_text(Path(path))
        try:
            body = json.loads(text)
            version = str(body["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is no connection file of lensview's worker.") from error
        if version != VERSION:
            raise InputError(
                f"{path} is of a job that runs lensview {version}; this is {VERSION}. Both have to "
                "be the same."
            )
        kinds = {"ranks": int, "tp": int}
        given = {f.name: body.get(f.name) for f in fields(cls)}
        if not all(isinstance(v, kinds.get(n, str)) for n, v in given.items()):
            raise InputError(f"{path} is no connection file of lensview's worker.")
        return cls(**given)

    def show(self, socket: zmq.Socket[bytes]) -> None:
        """Show the key with a socket that comes, and see that the job is the one."""
        socket.curve_serverkey = self.server.encode()
        socket.curve_publickey = self.public.encode()
        socket.curve_secretkey = self.secret.encode()
        watch_over(socket)


class JobKeys:
    """The keys of a job, in the process that others come to."""

    def __init__(self) -> None:
        self.server, self._secret = zmq.curve_keypair()
        self.public, self.secret = zmq.curve_keypair()
        self.job = secrets.token_hex(8)

    def admit(self, socket: zmq.Socket[bytes], keeper: Any) -> None:
        """Let peers with the key into a socket that others come to."""
        keeper.configure_curve_callback(domain="lensview", credentials_provider=self)
        socket.curve_server = True
        socket.curve_publickey = self.server
        socket.curve_secretkey = self._secret
        watch_over(socket)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a peer's public key is the one that the file gives."""
        return secrets.compare_digest(key, self.public)

    def connection(self, endpoint: str, **about: Any) -> JobConnection:
        """What the file is to say."""
        keys = (self.server.decode(), self.public.decode(), self.secret.decode())
        return JobConnection(endpoint, *keys, self.job, VERSION, **about)


def watch_over(socket: zmq.Socket[bytes]) -> None:
    """Notice a cut connection, though nothing is sent; ZeroMQ's own threads do it."""
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_LOST_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_LOST_MS)


def _private_text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            found = os.fstat(file.fileno())
            open_to = stat.S_IMODE(found.st_mode) & 0o077
            if open_to:
                raise InputError(
                    f"{path} holds the key to a job and is open to others (mode "
                    f"{stat.S_IMODE(found.st_mode):04o}): chmod 600 it, and start the job anew "
                    "where somebody may have read it."
                )
            if found.st_uid not in (os.getuid(), 0):
                raise InputError(f"{path} belongs to another user; it is not read.")
            return file.read(1 << 16)
    except FileNotFoundError as error:
        raise InputError(
            f"{path} does not exist. The job writes it once its rank 0 has started; see the job's "
            "output, or start it: torchrun … -m lensview.bridge.worker --connection FILE."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
