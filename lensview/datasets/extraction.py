"""Extraction: many items through one model, into a folder.

Owns the public function and the order of its checks: what was asked for, of what model, and what is
there already. The runs are `share.py`'s, reading what they wrote is `reading.py`'s.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import InputError, LensWarning
from ..interventions import Intervention
from ..modules import index
from ..plan import Plan
from ..resolve import resolve
from ..watch import Watch
from ..wrappers.refusal import refuse
from ..wrappers.unwrap import unwrap
from .batches import Reader
from .files import writing
from .fingerprint import fingerprint
from .items import check_items
from .prior import Asked, open_folder
from .progress import Progress
from .reading import ActivationDataset
from .share import Call, Share
from .workers import worker_of

SHARD_BYTES = 256 << 20


def extract_dataset(
    model: nn.Module,
    items: Any,
    sites: str | Iterable[str],
    path: str | PathLike[str],
    interventions: Intervention | Iterable[Intervention] = (),
    *,
    tokenizer: Any = None,
    chat: bool = False,
    text_key: str = "text",
    keep: Any = "all",
    dtype: Any = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    shard_bytes: int = SHARD_BYTES,
    rank: int | None = None,
    world_size: int | None = None,
    stop: bool = True,
    overwrite: bool = False,
    progress: bool = True,
    watch: Watch | None = None,
) -> ActivationDataset:
    """Run every item through `model` and keep what passes at `sites`, in the folder `path`.

    The same call goes on where an earlier one was stopped, by what the items *are*: an item that
    was put between the others is run, and no other again. On a finished dataset it runs nothing.
    Every row equals the item's own single run (up to the rounding of a batch), and is the same bit
    for bit for any number of workers and interruptions.

    Args:
        model: as `lensview.trace` takes it.
        items: texts, dicts (the model's arguments for one row, or a text under `text_key`; a
            member ``id`` names the item), rows of token ids: a list, a ``datasets.Dataset``, a
            ``Dataset`` or ``DataLoader`` of torch, or any other iterable. They are read as a
            stream, 64 batches at a time.
        sites: what to record, by name or glob.
        path: a folder of its own.
        interventions: changes to apply in every run.
        tokenizer, chat: read texts.
        text_key: which member of a dict is its text.
        keep: "all" tokens, the "last" one, their "mean" (in float32), a list of positions among
            the real tokens, or a mapping of sites or globs to these.
        dtype: a floating dtype to keep values in, or a mapping of sites to such; None keeps theirs.
        batch_size: items in one forward.
        max_tokens: longer items are cut to this many tokens, and to the model's context anyway.
        shard_bytes: about how large a file becomes.
        rank, world_size: which share this process takes; without them torchrun's.
        stop: end each forward once every site was seen; not with interventions.
        overwrite: remove the dataset that is there and begin again.
        progress: show a bar on stderr (of the first worker).
        watch: follows the extraction and can cancel it.

    Returns:
        The dataset. Where other workers are not done yet, it is complete once they are.

    Raises:
        DatasetError: the folder has a dataset of another call (names what differs), or could not
            be written to; what is whole there stays.
        InputError, TypeError, SiteError, CaptureUnsupportedError: as `lensview.trace`.
        RunCancelled: `watch` was cancelled. As after a KeyboardInterrupt, what was done is there.
    """
    if batch_size < 1 or shard_bytes < 1:
        raise InputError("batch_size and shard_bytes are 1 or more.")
    if max_tokens is not None and max_tokens < 1:
        raise InputError(f"max_tokens is 1 or more, not {max_tokens}.")
    check_items(items)
    call = Call(unwrap(model), Plan.make(sites, interventions), keep, dtype, stop)
    modules = index(call.module)
    refuse(modules, call.plan.sites)
    targets = resolve(call.plan.sites, modules)
    kept = call.portions(dict.fromkeys(str(target.site) for target in targets))
    worker = worker_of(call.module, rank, world_size)
    reader = Reader(call.module, tokenizer, chat, max_tokens)
    reading = {"chat": chat, "text_key": text_key, "max_tokens": max_tokens}
    body = fingerprint(call.module, call.plan, kept, tokenizer, reading)
    folder = Path(path)
    asked = Asked(items, text_key, reader.argument)
    with writing(folder):
        prior = open_folder(folder, body, overwrite, worker)
    if not prior.state.empty and (order := asked.order()) is not None:
        prior.check(folder, order)
        if prior.finished is not None:
            return ActivationDataset(folder)
    if _by_chance(call.module):
        warnings.warn(
            "The model is in train mode and drops values by chance, or takes statistics of each "
            "batch, so that no row is what its own run would give. Call model.eval() first, unless "
            "that is meant.",
            LensWarning,
            stacklevel=2,
        )
    bar = Progress(asked.length, worker, progress, watch)
    Share(call, worker, reader, folder, prior, shard_bytes).run(asked, batch_size, bar)
    return ActivationDataset(folder)


def _by_chance(module: nn.Module) -> bool:
    """Whether a row depends on chance, or on the rows beside it."""
    drops = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    active = [m for m in module.modules() if m.training]
    return any(isinstance(m, norms) or (isinstance(m, drops) and m.p > 0) for m in active)
