"""Storage: a trace as one safetensors file, and back.

Owns the file's format: each record's tensor under its site's text, tensors that belong to the run
under ``//…`` names, everything else as JSON in the file's metadata. Nothing is ever unpickled. A
file is complete or absent: it is written beside its place and renamed.

`trace.output`, an arbitrary object, is not stored.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import TraceFileError
from ..plan import Plan
from ..sites import Site
from .parts import InterventionReport, Parts, Record
from .plain import from_json, to_json
from .tokens import Tokens, likeliest, speller

FORMAT = 1
"""The newest format this version reads and the one it writes."""

_SPELT = 64
"""For how many of each row's likeliest tokens the text is kept, as the tokenizer is not."""


def write(parts: Parts, path: str | PathLike[str]) -> None:
    """Write a trace to `path`.

    Tensors come back bit for bit, in their dtype, on the CPU; ones at several sites are stored
    once.

    Raises:
        TraceFileError: a record's layout cannot be stored (sparse, nested); names the site.
        OSError: the place cannot be written.
    """
    from safetensors.torch import save_file

    target = Path(path)
    table = _Table()
    plan, named = parts.plan.to_json()
    body = {
        "format": FORMAT,
        "plan": plan,
        "sites": [
            {
                "site": s,
                "leaf": list(r.leaf),
                "part": r.part,
                "aligned": r.aligned,
                "placement": r.placement,
                "tensor": table.put(s, r.tensor),
            }
            for s, r in parts.records.items()
        ],
        "missed": dict(parts.missed),
        "plain": {site: to_json(value) for site, value in parts.plain.items()},
        "aliases": {site: list(others) for site, others in parts.aliases.items()},
        "calls": dict(parts.calls),
        "asked": {text: list(sites) for text, sites in parts.asked.items()},
        "reports": [[r.calls, r.changed, r.overflowed] for r in parts.reports],
        "labels": None if parts.tokens is None else parts.tokens.labels,
        "scope": "" if parts.tokens is None else parts.tokens.scope,
        "spelt": _spelt(parts),
        "meta": dict(parts.meta),
        "run": {
            name: table.put(f"//{name}", tensor)
            for name, tensor in {**_run_tensors(parts), **_prefixed("plan/", named)}.items()
        },
    }
    metadata = {"lensview": json.dumps(body, ensure_ascii=False, allow_nan=False)}
    target.parent.mkdir(parents=True, exist_ok=True)
    _replacing(target, lambda part: save_file(table.tensors, part, metadata))


def read(path: str | PathLike[str], tokenizer: Any, device: str | torch.device) -> Parts:
    """Read what `write` wrote; see `lensview.load`."""
    from safetensors import SafetensorError, safe_open

    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no file {place}.")
    try:
        with safe_open(place, framework="pt", device=str(device)) as file:
            body = _body(place, file.metadata())
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise TraceFileError(
            f"{place} is no whole safetensors file ({error}): it was cut short, or is something "
            "else. Nothing was read."
        ) from error
    try:
        return _parts(body, tensors, tokenizer)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TraceFileError(f"{place} is not a trace as lensview writes it: {error!r}.") from error


class _Table:
    """The tensors of a file by name; the same values under two names are stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._known: dict[tuple[object, ...], str] = {}

    def put(self, name: str, tensor: Tensor) -> str:
        """Take `tensor` in; the name under which the file has it."""
        ready = _storable(name, tensor)
        key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        known = self._known.setdefault(key, name)
        self.tensors.setdefault(known, ready)
        return known


def _run_tensors(parts: Parts) -> dict[str, Tensor]:
    found = {} if parts.tokens is None else {"ids": parts.tokens.ids, "mask": parts.tokens.mask}
    return found if parts.logits is None else {**found, "logits": parts.logits}


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _storable(name: str, tensor: Tensor) -> Tensor:
    """A contiguous tensor over memory of its own size, which is what safetensors can write."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        kind = "nested" if tensor.is_nested else str(tensor.layout)
        raise TraceFileError(
            f"{name} is a {kind} tensor, which a trace file cannot hold: leave the site out, or "
            "make it dense."
        )
    ready = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if ready.untyped_storage().nbytes() != ready.nbytes:
        ready = ready.clone()
    return ready


def _spelt(parts: Parts) -> dict[str, str]:
    if parts.logits is None or parts.spell is None:
        return {}
    rows = [likeliest(row, _SPELT, parts.spell) for row in parts.logits]
    return {str(token.id): token.text for row in rows for token in row}


def _replacing(target: Path, write: Callable[[str], None]) -> None:
    handle, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    try:
        write(part)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        # mkstemp makes files for the owner alone; a trace is an ordinary file.
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _body(place: Path, metadata: dict[str, str] | None) -> dict[str, Any]:
    text = (metadata or {}).get("lensview")
    if text is None:
        raise TraceFileError(f"{place} is a safetensors file, but not a trace of lensview.")
    try:
        body = json.loads(text)
        written = int(body["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise TraceFileError(f"{place}: its description cannot be read ({error!r}).") from error
    if written > FORMAT:
        raise TraceFileError(
            f"{place} has format {written}; this lensview reads up to {FORMAT}. Upgrade lensview."
        )
    return dict(body)


def _parts(body: dict[str, Any], tensors: dict[str, Tensor], tokenizer: Any) -> Parts:
    own = {name: tensors[stored] for name, stored in body["run"].items()}
    named = {n.removeprefix("plan/"): t for n, t in own.items() if n.startswith("plan/")}
    plan = Plan.from_json(body["plan"], named)
    records = {
        r["site"]: Record(
            Site.parse(r["site"]),
            tensors[r["tensor"]],
            tuple(r["leaf"]),
            # Files of earlier versions hold whole values only.
            r.get("part", ""),
            r.get("aligned", True),
            placement=r.get("placement", ""),
        )
        for r in body["sites"]
    }
    tokens = None
    if body["labels"] is not None:
        tokens = Tokens(own["ids"], own["mask"], body["labels"], body["scope"])
    reports = tuple(
        InterventionReport(i, *counts)  # older files have no count of overflows
        for i, counts in zip(plan.interventions, body["reports"], strict=True)
    )
    return Parts(
        plan=plan,
        records=records,
        missed=body["missed"],
        # Files of the first versions have neither.
        plain={site: from_json(v) for site, v in body.get("plain", {}).items()},
        aliases={site: tuple(others) for site, others in body.get("aliases", {}).items()},
        calls=body["calls"],
        asked={text: tuple(sites) for text, sites in body["asked"].items()},
        reports=reports,
        tokens=tokens,
        logits=own.get("logits"),
        meta=body["meta"],
        spell=_speller(body["spelt"], tokenizer),
    )


def _speller(spelt: dict[str, str], tokenizer: Any) -> Callable[[int], str]:
    otherwise = speller(tokenizer) or (lambda token: f"#{token}")
    return lambda token: spelt.get(str(token)) or otherwise(token)
