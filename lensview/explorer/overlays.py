"""Overlays: numbers of the user's code that are shown with the model's.

Owns what was given to `Explorer.overlay`: per module, for the tree's bars; per token, for a strip
beside a heatmap's rows. Nothing here is computed from the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..errors import InputError, SiteError, near
from ..sites import Site
from ..traces.trace import Trace
from .protocol import Strip, StripsReply

MAX_NAME = 60
MAX_OVERLAYS = 20
MAX_TOKENS = 50_000
ANY_SITE = ""


class Overlays:
    """The overlays of one explorer, by name; the latest one of modules is the tree's."""

    def __init__(self) -> None:
        self.revision = 0
        self._modules: dict[str, dict[str, float]] = {}
        self._tokens: dict[str, dict[str, list[float]]] = {}

    def put(self, name: str, values: Any, paths: Iterable[str], trace: Trace | None) -> None:
        """Lay `values` over the picture as `name`, in the place of what it was; None takes it away.

        Args:
            name: a short text.
            values: a mapping of module paths to numbers; a mapping of sites to 1-D tensors, one
                number per token; a 1-D tensor alone, for every site that has tokens; or None.
            paths: the paths of all modules.
            trace: the latest run, whose number of tokens a strip must have.

        Raises:
            InputError: a name or values of another kind, or of another length than the tokens.
            SiteError: a module that is not in the model.
        """
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME:
            raise InputError(f"An overlay's name is a text of 1 to {MAX_NAME} characters.")
        modules, tokens = ({}, {}) if values is None else _read(values, paths, trace)
        self._modules.pop(name, None)
        self._tokens.pop(name, None)
        if modules:
            self._modules[name] = modules
        if tokens:
            self._tokens[name] = tokens
        for old in list(self._modules)[:-MAX_OVERLAYS]:
            del self._modules[old]
        for old in list(self._tokens)[:-MAX_OVERLAYS]:
            del self._tokens[old]
        self.revision += 1

    def of_modules(self) -> tuple[str, Mapping[str, float]]:
        """The latest overlay of modules, and its name; ("", {}) without one."""
        for name in reversed(self._modules):
            return name, self._modules[name]
        return "", {}

    def at(self, site: str, trace: Trace | None) -> StripsReply:
        """The strips beside a site's rows, of those that fit the tokens of `trace`."""
        count = _token_count(trace)
        strips = [
            Strip(name, values)
            for name, by_site in self._tokens.items()
            if (values := by_site.get(site, by_site.get(ANY_SITE))) is not None
            and count in (None, len(values))
        ]
        return StripsReply(site=site, strips=strips)


def _read(
    values: Any, paths: Iterable[str], trace: Trace | None
) -> tuple[dict[str, float], dict[str, list[float]]]:
    if not isinstance(values, Mapping):
        return {}, {ANY_SITE: _per_token(values, "the values", trace)}
    if not values:
        raise InputError("An overlay of no values shows nothing: give None to clear it.")
    known = set(paths)
    modules: dict[str, float] = {}
    tokens: dict[str, list[float]] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise InputError(f"An overlay maps module paths or sites, not {key!r:.60}.")
        site = Site.parse(key or ":output")
        if site.path not in known:
            raise SiteError(f"There is no module {site.path!r}.{near(site.path, known)}")
        number = _number(value)
        if number is None:
            tokens[str(site)] = _per_token(value, key, trace)
        else:
            modules[site.path] = number
    if modules and tokens:
        raise InputError("One overlay has numbers for modules or for tokens: give two names.")
    return modules, tokens


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return float(value.item())
    return None


def _per_token(value: Any, name: str, trace: Trace | None) -> list[float]:
    if not hasattr(value, "ndim") and not isinstance(value, Sequence):
        raise InputError(
            f"{name!r} is a {type(value).__name__}: give a number, or a 1-D tensor of one number "
            "per token."
        )
    try:
        tensor = torch.as_tensor(value).detach().to("cpu", torch.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name!r} cannot be read as numbers: {error}") from error
    if tensor.dim() != 1 or len(tensor) > MAX_TOKENS:
        raise InputError(
            f"{name!r} has the shape {tuple(tensor.shape)}: give one dim, one number per token."
        )
    count = _token_count(trace)
    if count not in (None, len(tensor)):
        raise InputError(f"{name!r} has {len(tensor)} numbers; the latest run has {count} tokens.")
    numbers: list[float] = tensor.tolist()
    return numbers


def _token_count(trace: Trace | None) -> int | None:
    """Columns of the batch, padding included; None where the run had no tokens."""
    return None if trace is None or trace.tokens is None else trace.tokens.ids.shape[1]
