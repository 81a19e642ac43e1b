"""Targets: which modules of a model the text of a site means.

Owns the lookup of paths, wrapper prefixes and globs against a model's index, before any forward,
and the errors with near matches. What the values there are, only a run can tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from .errors import SiteError, near
from .modules import only_holds
from .sites import Site, glob_pattern, split_path, without_wrappers


@dataclass(frozen=True, eq=False)
class Target:
    """One site of one module that a text means.

    Attributes:
        asked: the text as it was given.
        site: with the module's own path, and the call that was asked for.
        module: the module there.
        expanded: whether a glob found it.
    """

    asked: str
    site: Site
    module: nn.Module
    expanded: bool


def resolve(texts: Iterable[str], modules: Mapping[str, nn.Module]) -> list[Target]:
    """The targets of all texts, in the order given, a glob's in definition order.

    Raises:
        SiteError: a path or glob that matches nothing; the text has near matches.
    """
    return [target for text in texts for target in _resolve_one(text, modules)]


def _resolve_one(text: str, modules: Mapping[str, nn.Module]) -> list[Target]:
    site = Site.parse(text)
    if not site.path_is_glob:
        path = find(site.path, modules, text)
        return [Target(text, site.at_path(path), modules[path], site.op_is_glob)]
    pattern = glob_pattern(site.path)
    found = [
        Target(text, site.at_path(path), module, True)
        for path, module in modules.items()
        if pattern.fullmatch(path) and not only_holds(module)
    ]
    if not found:
        raise SiteError(
            f"The glob {text!r} matches none of the model's {len(modules)} modules. '*' stays "
            f"within a name, '**' crosses dots.{near(site.path.replace('*', ''), modules)}"
        )
    return found


def find(path: str, modules: Mapping[str, nn.Module], text: str) -> str:
    """The path in `modules` that `path` means, wrapper prefixes allowed.

    Raises:
        SiteError: there is none.
    """
    if path in modules:
        return path
    if (plain := without_wrappers(path)) in modules:
        return plain
    parent, _, last = path.rpartition(".")
    owner = modules.get(parent)
    if owner is not None and split_path(last)[0] in owner._parameters:
        raise SiteError(
            f"{text!r} is a parameter, not a module: sites are values that pass in a forward. Its "
            f"module is {str(Site(parent))!r}."
        )
    raise SiteError(f"There is no module {path!r} in this model.{near(path, modules)}")
