"""Absent: why a module that was asked for has no value in a run.

Owns the likely cause, from whether the parent was called and from what the parent's source does
with the module. It is asked after a run, and only about what was missed.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Mapping

from torch import nn

from ..modules import only_holds
from ..sites import Site, split_path


def parent_of(path: str, modules: Mapping[str, nn.Module]) -> str | None:
    """The path of the nearest module above `path` that can be called; None above the root."""
    while path:
        path = next((p for p in _above(path) if p in modules), "")
        if not only_holds(modules[path]):
            return path
    return None


def _above(path: str) -> list[str]:
    """The paths above a site path, nearest first; an escaped dot parts nothing."""
    cuts = [m.start() for m in re.finditer(r"(?<!\\)(?:\\\\)*\.", path)]
    return [path[:cut] for cut in reversed(cuts)]


def never_called(
    path: str, modules: Mapping[str, nn.Module], called: Mapping[nn.Module, int]
) -> str:
    """The likely reason why the module at `path` was never called.

    Args:
        path: as written in a site.
        modules: the model's index.
        called: calls in this run of the modules that were followed; others are unknown.
    """
    module, parent = modules[path], parent_of(path, modules)
    kind = type(module).__name__
    if parent is None:
        return "the model itself was never called in this run."
    owner = modules[parent]
    who = f"its parent, the {type(owner).__name__} at {str(Site(parent))!r},"
    head = f"the {kind} at {path} was never called in this run"
    if owner in called and not called[owner]:
        return f"{head}: {who} was not called either."
    use = _use(type(owner), split_path(path)[len(split_path(parent)) :][0])
    if use == "weights":
        return f"{head}. Likely bypassed: {who} uses its weights directly, without calling it."
    if use == "forward":
        return f"{head}. Likely bypassed: {who} calls its .forward directly, around every hook."
    return f"{head}: {who} took another path, or used its weights directly."


_sources: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""By class: finding the source of one in a long file takes longer than a small model's forward."""


def _use(owner: type[nn.Module], name: str) -> str:
    """What the source of `owner` does with its member `name` besides calling it, if anything."""
    source = "".join(map(_source, owner.__mro__[: owner.__mro__.index(nn.Module)]))
    member = rf"self\.{re.escape(name)}(?:\[[^\]]*\])?"
    if re.search(rf"{member}\.forward\(", source):
        return "forward"
    if re.search(rf"{member}\.(?:weight|bias)\b", source):
        return "weights"
    loop = rf"for\b[^:\n]*\b(\w+)\s+in\b[^:\n]*self\.{re.escape(name)}\b"
    if any(f"{each}.forward(" in source for each in re.findall(loop, source)):
        return "forward"
    return ""


def _source(kind: type) -> str:
    if kind not in _sources:
        try:
            _sources[kind] = inspect.getsource(kind)
        except (OSError, TypeError):  # written at a prompt, or built in
            _sources[kind] = ""
    return _sources[kind]
