"""Sources: what an intervention takes its values from, when that is more than a number or a tensor.

Owns a patch's records of another run, the mean over a reference, and the value given to a skip.
What is done with them is `changes.py`'s; it keeps no trace alive beyond the records it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import InterventionError, NotRecordedError, near
from .sites import Site, glob_pattern
from .values import Path, children, leaves, replace

INPUT = "input"
"""In a skip's value: the module's own main input stands here."""


@dataclass(frozen=True)
class PatchSource:
    """Where values come from: records by canonical site text, and their run's real tokens.

    `whole` stands in for all of them where the source is one tensor.
    """

    records: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    whole: Tensor | None = None

    def at(self, site: Site) -> Tensor:
        """The tensor recorded at `site`, or without its call where the source has one call only."""
        if self.whole is not None:
            return self.whole
        for text in (str(site), str(site.at_call(None))):
            if text in self.records:
                return self.records[text]
        raise InterventionError(f"The source holds no {site}; it holds {', '.join(self.records)}.")


def patch_source(op: str, text: str, source: Any) -> PatchSource:
    """The records that `source` (a Trace, a mapping, a tensor) holds at the sites of `text`.

    Raises:
        InterventionError: it is something else.
        NotRecordedError: it holds none.
    """
    if isinstance(source, (PatchSource, Tensor)):
        return source if isinstance(source, PatchSource) else PatchSource(whole=source.detach())
    if not isinstance(source, Mapping):
        raise InterventionError(
            f"{op} at {text}: the source is a {type(source).__name__}; it takes a Trace, a "
            "mapping of sites to tensors, or a tensor."
        )
    wanted = Site.parse(text)
    pattern = glob_pattern(wanted.path)
    found = {}
    for key in source:
        site = Site.parse(key)
        fits = pattern.fullmatch(site.path) and wanted.takes_op(site.op, site.op_index)
        fits = fits and wanted.call in (None, site.call)
        if fits and (site.side, site.leaf) == (wanted.side, wanted.leaf):
            found[str(site)] = _whole(source, key)
    if not found:
        raise NotRecordedError(
            f"{op}: the source holds no {wanted} among its {len(source)} sites."
            f"{near(str(wanted), source)} Record it there first."
        )
    tokens = getattr(source, "tokens", None)
    return PatchSource(found, getattr(tokens, "mask", None))


# --- means -----------------------------------------------------------------------------------


def mean_source(text: str, reference: Any) -> PatchSource:
    """The means over a reference, each without the dims that were averaged over.

    A record whose dims 0 and 1 are the reference's batch and tokens is averaged over both, real
    tokens only; a bare tensor over all dims but the last; any other record over dim 0.

    Raises:
        InterventionError: a record is no floating-point tensor, is empty, or has padding that
            cannot be told from real tokens.
    """
    source = patch_source("mean", text, reference)
    if source.whole is not None:
        return PatchSource(whole=_mean_of_all(text, source.whole))
    means = {site: _mean(site, t, source.mask) for site, t in source.records.items()}
    return PatchSource(means)


def _mean_of_all(text: str, tensor: Tensor) -> Tensor:
    if tensor.dim() < 2:
        raise InterventionError(
            f"mean at {text}: the reference has shape {tuple(tensor.shape)}; a tensor is averaged "
            "over all dims but the last, so it needs 2 or more. lv.put replaces by a vector."
        )
    return _averaged(text, tensor.reshape(-1, tensor.shape[-1]))


def _mean(site: str, tensor: Tensor, mask: Tensor | None) -> Tensor:
    if tensor.dim() == 0:
        raise InterventionError(f"mean at {site}: the reference is one number; use lv.put.")
    if mask is None:
        return _averaged(site, tensor)
    if tensor.dim() > 2 and tuple(tensor.shape[:2]) == tuple(mask.shape):
        return _averaged(site, tensor[mask.to(tensor.device)])
    if tensor.shape[0] != mask.shape[0] and not bool(mask.all()):
        raise InterventionError(
            f"mean at {site}: the reference has padding, and in shape {tuple(tensor.shape)} it "
            f"cannot be told from real tokens, which are {tuple(mask.shape)} (batch, tokens). Use "
            "a reference without padding, or compute the mean and lv.put it."
        )
    return _averaged(site, tensor)


def _averaged(site: str, rows: Tensor) -> Tensor:
    if not (rows.is_floating_point() or rows.is_complex()) or rows.numel() == 0:
        raise InterventionError(
            f"mean at {site}: the reference is {rows.dtype} of shape {tuple(rows.shape)}, which "
            "has no mean."
        )
    wide = rows.detach() if rows.is_complex() else rows.detach().to(_wide(rows.dtype))
    return wide.mean(0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# --- given values ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Given:
    """The whole value of a skipped module: tensors, None and `INPUT` in containers or bare."""

    value: Any

    def __str__(self) -> str:
        return _shown(self.value)

    def parts(self) -> Iterator[tuple[Path, Any]]:
        """Its leaves with their paths."""
        return leaves(self.value)

    def built(self, make: Callable[[Any], Any]) -> Any:
        """The value with `make` done to each leaf; containers are copied."""
        value = self.value
        for path, leaf in list(self.parts()):
            value = replace(value, path, make(leaf))
        return value


def given(text: str, value: Any) -> Given | PatchSource:
    """What `lv.skip` was given, checked; a Trace or a mapping is a source.

    Raises:
        InterventionError: a leaf is no tensor, None or "input", or no leaf is a tensor.
        NotRecordedError: the source holds no such site.
    """
    record = getattr(value, "record", None)
    if isinstance(value, Mapping) and not hasattr(value, "__dataclass_fields__"):
        source = patch_source("skip", text, value)
        for site in source.records:
            leaf = record(site).leaf if record is not None else ()
            if leaf:
                raise InterventionError(
                    f"skip at {site}: in the source this tensor stood at "
                    f"{''.join(f'[{k}]' for k in leaf)} of a larger value. Give the whole value, "
                    f"for example lv.skip({site!r}, (trace[{site!r}], None))."
                )
        return source
    found = Given(value)
    kept = [leaf for _, leaf in found.parts() if leaf is not None]
    if not kept or not all(isinstance(leaf, Tensor) or leaf == INPUT for leaf in kept):
        raise InterventionError(
            f"skip at {text}: the value is {_shown(value)}; it takes a tensor, 'input' (the "
            "module's main input), a tuple, list or output object of these and None, or a Trace."
        )
    # Containers of its own; a tensor that needs a gradient keeps its graph, for grad=True.
    return Given(found.built(lambda leaf: leaf))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor{tuple(value.shape)}"
    members = children(value)
    if members is None:
        return str(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(_shown(v) for _, v in members)})"
    return f"{type(value).__name__}({', '.join(f'{k}={_shown(v)}' for k, v in members)})"


def _whole(source: Mapping[str, Any], key: str) -> Any:
    """The source's tensor at `key`, if it is the whole value: an index could not tell."""
    part = getattr(source.record(key), "part", "") if hasattr(source, "record") else ""
    if part:
        raise InterventionError(
            f"patch at {key}: the source kept only [{part}] of the value there (keep=), so an "
            "index would fall on other elements. Give the tensor itself with lv.put, or record "
            "the source without keep=."
        )
    return source[key]
