"""Writer: what was extracted, on its way to the disk beside the forwards.

Owns the thread that brings values to the CPU, gathers them into shards and lists each in the
manifest once it is whole. The queue to it is short, so that a slow disk slows the forwards down
instead of filling the memory.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .files import unwritten
from .manifests import SHARDS, Manifest
from .shards import Piece, Shard

_WAITING = 4
"""How many batches may wait for the disk."""
FLUSH_SECONDS = 600.0
"""A shard is written after this long in any case: what a stopped process can lose."""


@dataclass(eq=False)
class Job:
    """One batch to write.

    Attributes:
        piece: its rows, as they lie on the model's device.
        skipped, truncated: what is to be told of items, by key.
        ready: when the values are there, for a device that computes behind our back.
    """

    piece: Piece | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    truncated: dict[str, int] = field(default_factory=dict)
    ready: Any = None


class Writer:
    """Writes shards of about `shard_bytes` into `folder`, on a thread of its own."""

    def __init__(self, folder: Path, manifest: Manifest, shard_bytes: int) -> None:
        self._folder = folder
        self._manifest = manifest
        self._shard_bytes = shard_bytes
        self._queue: queue.Queue[Job | None] = queue.Queue(_WAITING)
        self._failure: BaseException | None = None
        self._shard = Shard()
        self._told: dict[str, dict[str, Any]] = {"skipped": {}, "truncated": {}}
        self._since = time.monotonic()
        self._streams: dict[torch.device, Any] = {}
        self._thread = threading.Thread(target=self._work, name="lensview dataset", daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Take a batch; waits where the disk is behind.

        Raises:
            DatasetError: earlier ones could not be written.
        """
        if job.piece is not None:
            job.ready = _recorded(job.piece)
        self._offer(job)

    def close(self) -> None:
        """Write what is left, and end.

        Raises:
            DatasetError: something could not be written.
        """
        try:
            self._offer(None)
        finally:
            self._thread.join()
        self._check()

    def _offer(self, job: Job | None) -> None:
        while True:
            self._check()
            try:
                return self._queue.put(job, timeout=0.2)
            except queue.Full:
                continue

    def _check(self) -> None:
        if self._failure is not None:
            raise unwritten(self._folder, self._failure) from self._failure

    # --- on the thread -------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                self._take(job)
            self._flush()
        except BaseException as error:
            self._failure = error

    def _take(self, job: Job) -> None:
        self._told["skipped"].update(job.skipped)
        self._told["truncated"].update(job.truncated)
        if job.piece is not None:
            self._shard.add(self._on_cpu(job.piece, job.ready))
        late = time.monotonic() - self._since > FLUSH_SECONDS
        if self._shard.bytes >= self._shard_bytes or late:
            self._flush()

    def _flush(self) -> None:
        line: dict[str, Any] = {name: told for name, told in self._told.items() if told}
        if self._shard.pieces:
            line |= self._shard.write(self._folder / SHARDS / self._manifest.shard_name())
        if line:
            self._manifest.add(line)
        self._shard, self._since = Shard(), time.monotonic()
        self._told = {"skipped": {}, "truncated": {}}

    def _on_cpu(self, piece: Piece, ready: Any) -> Piece:
        bring = self._bringer(piece, ready)
        ids = None if piece.ids is None else bring(piece.ids)
        values = {site: bring(value) for site, value in piece.values.items()}
        return Piece(piece.keys, piece.tokens, ids, values, piece.rows)

    def _bringer(self, piece: Piece, ready: Any) -> Callable[[Tensor], Tensor]:
        """What copies a tensor to the CPU: beside the next forward, on a stream of its own, once
        the values are there."""
        if ready is None:
            return lambda tensor: tensor.cpu()
        device = next(iter(piece.values.values())).device
        cuda = torch.get_device_module(device)
        stream = self._streams.setdefault(device, cuda.Stream(device))

        def bring(tensor: Tensor) -> Tensor:
            if tensor.device != device:
                return tensor.cpu()
            with cuda.stream(stream):
                stream.wait_event(ready)
                tensor.record_stream(stream)
                return tensor.cpu()  # waits for this stream alone

        return bring


def _recorded(piece: Piece) -> Any:
    """An event after the last of a batch's values; None where values are there at once."""
    device = next((t.device for t in piece.values.values()), torch.device("cpu"))
    if device.type != "cuda":
        return None
    event: Any = torch.get_device_module(device).Event()
    event.record(torch.get_device_module(device).current_stream(device))
    return event
