"""Fingerprint: what a dataset is of, so that another call does not add to it.

Owns the description of a call (model with its weights and config, sites, what is kept of them,
interventions, how texts are read), its file, and the sentence that names what differs. The items
themselves are known by their keys (`keys.py`); how they are batched and by how many workers is no
part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import DatasetError, InputError
from ..parallel.agreement import digest
from ..plan import Plan
from .files import host, write_whole
from .kept import Portion
from .manifests import FORMAT
from .weights import weight_digests

NAME = "dataset.json"
Body = dict[str, Any]
_PROBE = "The quick brown fox, 42 — naïve über 東京!\n"
_VOLATILE = {"transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype"}
"""Of a config, what says nothing of what is computed; weights have their dtypes."""


def fingerprint(
    module: nn.Module,
    plan: Plan,
    kept: Mapping[str, Portion],
    tokenizer: Any,
    reading: Mapping[str, Any],
) -> Body:
    """What a call is, as JSON.

    Args:
        plan: with the texts of the sites as they were asked for.
        kept: by the same texts.
        reading: how items are read, by the names of the arguments.

    Raises:
        InputError: an intervention with a function that means nothing in another process.
    """
    for edit in plan.interventions:
        if not edit.portable:
            raise InputError(
                f"{edit}: its function cannot be told from another one later, so that the dataset "
                "could not be resumed. Give one that can be imported, or its source."
            )
    body, tensors = plan.to_json()
    return {
        "format": FORMAT,
        "model": f"{type(module).__module__}.{type(module).__qualname__}",
        "config": _config(module),
        "train or eval mode": "train" if module.training else "eval",
        "weights": weight_digests(module),
        "sites": list(plan.sites),
        "keep": {site: portion.to_json() for site, portion in kept.items()},
        "interventions": [body["interventions"], {n: digest(t) for n, t in tensors.items()}],
        "tokenizer": _tokenizer(tokenizer, bool(reading.get("chat"))),
        "reading": dict(reading),
    }


def _config(module: nn.Module) -> Body:
    to_dict = getattr(getattr(module, "config", None), "to_dict", None)
    if not callable(to_dict):
        return {}
    text = json.dumps(to_dict(), default=str, sort_keys=True)
    return {k: v for k, v in json.loads(text).items() if k not in _VOLATILE}


def _tokenizer(tokenizer: Any, chat: bool) -> Body:
    """Its kind, its contents where it can tell them, and what it makes of one text."""
    if tokenizer is None:
        return {}
    body = {"kind": type(tokenizer).__name__, "reads": list(tokenizer(_PROBE)["input_ids"])}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    vocabulary = getattr(tokenizer, "get_vocab", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # of the last call
            rules.pop(state, None)
        body["contents"] = _hash(json.dumps(rules, sort_keys=True))
    elif callable(vocabulary):
        body["contents"] = _hash(json.dumps(sorted(vocabulary().items())))
    if chat:
        body["template"] = _hash(str(getattr(tokenizer, "chat_template", None)))
    return body


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, each in a few words; empty where nothing does."""
    found = []
    for part in [*old, *(p for p in new if p not in old)]:
        was, now = old.get(part), new.get(part)
        if was == now:
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping) and part != "tokenizer":
            names = [
                n for n in [*was, *(n for n in now if n not in was)] if was.get(n) != now.get(n)
            ]
            found.append(f"{part} ({_listed(names)})")
        elif part in ("model", "train or eval mode", "sites", "format"):
            found.append(f"{part} (now {now}; the dataset has {was})")
        else:
            found.append(part)
    return found


def _listed(names: Iterable[str]) -> str:
    some = list(names)
    more = f" and {len(some) - 3} more" if len(some) > 3 else ""
    return ", ".join(some[:3]) + more


def begin(folder: Path, body: Body) -> None:
    """Write what the dataset is of, unless it stands there; refuse a call that is another one.

    Raises:
        DatasetError: something differs; names what.
        OSError: it could not be written.
    """
    place = folder / NAME
    text = json.dumps(body, indent=1)
    if not place.exists():
        fresh = folder / f".{NAME}.{host()}.{os.getpid()}.part"
        write_whole(fresh, lambda file: file.write(text.encode()))
        try:
            os.link(fresh, place)  # of several workers that begin, one is the first
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(fresh, place)
        fresh.unlink(missing_ok=True)
    refuse(folder, json.loads(text))


def refuse(folder: Path, body: Body) -> None:
    """Raise where the dataset in `folder` is of another call.

    Raises:
        DatasetError: it is; names what differs.
    """
    if differing := differences(read(folder), body):
        error = DatasetError(
            f"{folder} has a dataset of another call; nothing was run. What differs: "
            f"{'; '.join(differing)}. Give another path, or overwrite=True to begin again."
        )
        error.differs = tuple(differing)
        raise error


def read(folder: Path) -> Body:
    """What the dataset in `folder` is of.

    Raises:
        DatasetError: there is none, or its description cannot be read.
    """
    place = folder / NAME
    try:
        body: Body = json.loads(place.read_text("utf-8"))
        written = int(body["format"])
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetError(f"{folder} is no dataset of lensview: it has no {NAME}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{place} cannot be read: {error!r}.") from error
    if written > FORMAT:
        raise DatasetError(
            f"{place} has format {written}; this lensview reads up to {FORMAT}. Upgrade it."
        )
    return body
