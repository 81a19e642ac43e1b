"""The module tree: what is in a model, before any forward.

Owns the rows of the tree and the index from site paths to modules. It runs nothing and reads no
weight's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .sites import escape

QUANTIZERS = ("bitsandbytes", "auto_gptq", "gptqmodel", "awq", "hqq", "quanto", "torchao", "aqlm")
"""Packages that quantize modules, by the beginning of their names; none is imported."""
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(frozen=True)
class ModuleRow:
    """One row of the tree.

    Attributes:
        path: the module's path as written in a site; "" is the root.
        name: the last segment of `path`; "" for the root.
        depth: 0 for the root.
        class_name: the class's own name.
        parameters: elements in the whole subtree, shared ones once.
        weights: shape of the module's own ``weight`` or, without one, of its largest own
            parameter; None without any.
        dtype, device: of that parameter; "" without one.
        note: short remarks, comma separated: "tied", "container", "quantized", "offloaded" (its
            values are brought by a hook), "no values" (on the meta device, with none),
            "also at …".
    """

    path: str
    name: str
    depth: int
    class_name: str
    parameters: int
    weights: tuple[int, ...] | None
    dtype: str
    device: str
    note: str


def only_holds(module: nn.Module) -> bool:
    """Whether a module only holds others: it is never called, so it has no values.

    A list with a forward of its own (the parametrizations of a weight) is called.
    """
    return isinstance(module, _CONTAINERS) and type(module).forward is nn.Module.forward


def index(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its site path, in definition order; a module under two names has both."""
    return {path: module for path, _, _, module in _walk(model)}


def tree(model: nn.Module) -> list[ModuleRow]:
    """The rows of the tree, parents before children, in definition order."""
    owners = _parameter_owners(model)
    first_path: dict[int, str] = {}
    rows = []
    for path, name, depth, module in _walk(model):
        known = first_path.setdefault(id(module), path)
        rows.append(_row(path, name, depth, module, owners, known))
    return rows


def blocks(module: nn.Module) -> list[nn.Module]:
    """The steps that a forward can be followed by: the members of its outermost lists of modules,
    or, without any, its direct children."""
    found: dict[int, nn.Module] = {}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if isinstance(current, (nn.ModuleList, nn.Sequential)):
            found.update((id(m), m) for m in current.children())
        else:
            waiting.extend(current.children())
    return list(found.values()) or list(module.children())


def _walk(model: nn.Module) -> Iterator[tuple[str, str, int, nn.Module]]:
    """Depth first over all names; a module that contains itself is entered once per branch."""
    above: list[nn.Module] = []
    stack: list[tuple[str, str, int, nn.Module]] = [("", "", 0, original(model))]
    while stack:
        path, name, depth, module = stack.pop()
        yield path, name, depth, module
        if not module._modules:
            continue
        del above[depth:]
        above.append(module)
        for child_name, child in reversed(_children(module)):
            if not any(child is one for one in above):
                written = escape(child_name)
                child_path = f"{path}.{written}" if path else written
                stack.append((child_path, written, depth + 1, child))


def original(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped, for one that it made; any other as it is.

    The class is known by its name: importing it would load the whole compiler.
    """
    while type(module).__name__ == "OptimizedModule":
        inner = module._modules.get("_orig_mod")
        if inner is None:
            break
        module = inner
    return module


def _children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, torch.jit.ScriptModule):
        return []  # its parts run no Python; there is nothing to see in them
    return [(name, original(child)) for name, child in module._modules.items() if child is not None]


def _parameter_owners(model: nn.Module) -> dict[int, int]:
    """How many modules hold each parameter directly: more than one means tied."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    return owners


def _row(
    path: str, name: str, depth: int, module: nn.Module, owners: dict[int, int], known: str
) -> ModuleRow:
    own = {n: p for n, p in module._parameters.items() if p is not None}
    shown: Tensor | None = own.get("weight")
    if shown is None and own:
        shown = max(own.values(), key=lambda p: p.numel())
    notes = []
    if any(owners[id(p)] > 1 for p in own.values()):
        notes.append("tied")
    if only_holds(module):
        notes.append("container")
    if _is_quantized(module, shown):
        notes.append("quantized")
    if any(p.is_meta for p in own.values()):
        notes.append("offloaded" if hasattr(module, "_hf_hook") else "no values")
    if known != path:
        notes.append(f"also at {known or 'the root'}")
    return ModuleRow(
        path=path,
        name=name,
        depth=depth,
        class_name=type(module).__name__,
        parameters=sum(p.numel() for p in module.parameters()),
        weights=None if shown is None else tuple(shown.shape),
        dtype="" if shown is None else str(shown.dtype).removeprefix("torch."),
        device="" if shown is None else str(shown.device),
        note=", ".join(notes),
    )


def _is_quantized(module: nn.Module, shown: Tensor | None) -> bool:
    """Whether the module's own weight is held in fewer bits than it computes in."""
    made_by = type(module).__module__
    if made_by.partition(".")[0] in QUANTIZERS or made_by.startswith("torch.ao.nn.quantized"):
        return True
    if shown is None:
        return False
    if type(shown).__module__.partition(".")[0] in QUANTIZERS or shown.is_quantized:
        return True
    return shown.dtype.itemsize == 1 and shown.dtype != torch.bool
