"""Detect: every state of a model, or of its inputs, whose values cannot be shown whole.

Owns the scan that precedes each run. It looks at classes, attributes and hooks, runs nothing of
the model, imports nothing, and never raises: what it cannot look at is a finding too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from torch import Tensor, nn

from ..modules import index
from ..parallel.styles import is_sharded, off_mesh
from ..sites import escape, split_path
from ..values import leaves
from .findings import Finding
from .hidden import ATOMS, Search, Unfinished
from .kinds import Kinds, refused

_STANDARD = tuple(nn.Module().__dict__)
"""Attributes that every module has; those that can hide something are looked at by name."""
_LAST = _STANDARD[-1]
_PLAIN = frozenset({Tensor, nn.Parameter, nn.Buffer, type(None)})
_TP_FORWARDS = ("transformers.distributed.", "transformers.integrations.tensor_parallel")
_TP_ATTRIBUTES = frozenset({"_device_mesh", "_mesh_manager", "_hf_device_mesh", "_hf_tp_plan"})


def scan(modules: Mapping[str, nn.Module]) -> tuple[Finding, ...]:
    """Every state that a capture must refuse among the modules of `modules.index`; often none."""
    look = _Look(modules)
    for path, module in modules.items():
        look.at(path, module)
    whole = _whole(look.found, modules)
    return tuple(f for f in look.found if f not in whole)


def _whole(findings: Iterable[Finding], modules: Mapping[str, nn.Module]) -> set[Finding]:
    """The findings that are of transformers' tensor parallelism, whose values are made whole."""
    parallel = [f for f in findings if f.kind in ("tensor parallel", "DTensor", "DeviceMesh")]
    root = modules.get("")
    if not parallel or root is None or not is_sharded(root):
        return set()
    off = off_mesh(modules, [f.where for f in parallel if f.kind == "DTensor"])
    return {f for f in parallel if f.kind != "DTensor" or f.where not in off}


def split_inputs(inputs: Any) -> tuple[Finding, ...]:
    """The inputs that are split over ranks. Their values are not read: reading one waits for the
    other ranks."""
    kinds = Kinds()
    try:
        found = [(path, kinds.of(type(leaf))) for path, leaf in leaves(inputs)]
    except Exception as error:
        return (refused("unfinished scan", "inputs", f"they could not be walked: {error!r:.200}."),)
    return tuple(
        refused(kind, "inputs" + "".join(f"[{key}]" for key in path))
        for path, kind in found
        if kind in ("DTensor", "ShardedTensor")
    )


class _Look:
    """One scan: its findings, and what it has seen."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.found: dict[Finding, None] = {}
        self._modules = modules
        self._kinds = Kinds()
        self._search = Search(self._kinds)
        self._met = {id(m) for m in modules.values()}

    def at(self, path: str, module: nn.Module) -> None:
        """Look at one module, but not at its submodules."""
        try:
            self._module(path, module)
        except Unfinished as error:
            self._add("unfinished scan", path, str(error))
        except Exception as error:  # somebody's class answers a look with an error
            self._add("unfinished scan", path, f"it could not be looked at: {error!r:.200}.")

    def _module(self, path: str, module: nn.Module) -> None:
        if kind := self._kinds.of(type(module)):
            if kind != "DataParallel inside" or len(getattr(module, "device_ids", ())) > 1:
                self._add(kind, path)
            if kind == "ScriptModule":
                return  # its attributes are not Python's
        state = module.__dict__
        for held in (state["_parameters"], state["_buffers"]):
            if held:
                for name, tensor in held.items():
                    if type(tensor) not in _PLAIN or (tensor is not None and tensor.is_meta):
                        self._tensor(path, module, name, tensor)
        if state["_forward_hooks"] or state["_forward_pre_hooks"]:
            self._hooks(path, state)
        own = _own(state)
        if not ATOMS.issuperset(map(type, own)) and not self._search.knows(own):
            self._attributes(path, state)
        if "forward" in state:
            room = getattr(state["forward"], "__module__", None) or ""
            if room.startswith(_TP_FORWARDS):
                self._add("tensor parallel", path)
        if state.get("_distribute_module_applied") is True:
            self._add("parallelize_module", path)

    def _tensor(self, path: str, owner: nn.Module, name: str, tensor: Any) -> None:
        if kind := self._kinds.of(type(tensor)):
            self._add(kind, _name(path, name))
        elif tensor.is_meta and not self._offloaded(path, owner):
            self._add("meta parameters", _name(path, name))

    def _hooks(self, path: str, state: Mapping[str, Any]) -> None:
        for table in ("_forward_hooks", "_forward_pre_hooks"):
            # A list first: another thread's run may add its hooks meanwhile.
            for hook in list(state[table].values()):
                inner = getattr(hook, "func", hook)
                room = getattr(inner, "__module__", None) or ""
                if room.startswith("torch.distributed.tensor"):
                    self._add("parallelize_module", path)
                self._contents(path, table, hook)

    def _attributes(self, path: str, state: dict[str, Any]) -> None:
        for name, value in list(state.items()):
            if name in _TP_ATTRIBUTES and value is not None:
                self._add("tensor parallel", path)
            elif name not in _STANDARD and type(value) not in ATOMS:
                self._contents(path, name, value)

    def _contents(self, path: str, name: str, value: Any) -> None:
        for at, member in self._search.inside(_name(path, name), value):
            if isinstance(member, nn.Module):
                self._unregistered(at, member)
            elif kind := self._kinds.of(type(member)):
                self._add(kind, at)

    def _unregistered(self, at: str, module: nn.Module) -> None:
        """A module that stands in no tree of modules, such as one in a plain list."""
        for path, inner in index(module).items():
            if id(inner) not in self._met:
                self._met.add(id(inner))
                self.at(_name(at, path) if path else at, inner)

    def _offloaded(self, path: str, owner: nn.Module) -> bool:
        """Whether accelerate's hooks bring the weights: on the module, or above for its parts."""
        hook = owner.__dict__.get("_hf_hook")
        if hook is not None and _brings(hook):
            return True
        names = split_path(path) if path else []
        above = (".".join(map(escape, names[:depth])) for depth in range(len(names)))
        hooks = (self._modules[p].__dict__.get("_hf_hook") for p in above if p in self._modules)
        return any(_brings(h) and getattr(h, "place_submodules", False) for h in hooks if h)

    def _add(self, kind: str, where: str, what: str = "") -> None:
        self.found[refused(kind, where, what)] = None


def _own(state: dict[str, Any]) -> list[Any]:
    """The values of the attributes that this module has and not every module has."""
    # The standard ones come first, unless a class set its own before calling Module.__init__.
    if next(islice(state, len(_STANDARD) - 1, None), "") == _LAST:
        return list(state.values())[len(_STANDARD) :]
    return [value for name, value in list(state.items()) if name not in _STANDARD]


def _brings(hook: Any) -> bool:
    return any(getattr(h, "offload", True) for h in getattr(hook, "hooks", (hook,)))


def _name(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
