"""Styles: how transformers split a model over ranks, as far as its modules and plan tell.

Owns what is read from transformers (the plan, the wrappers around forwards, the mesh) and which
styles are known; nothing else of this package reads a name that transformers may move. What a
value's whole is, is `layout.py`'s.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..errors import CaptureUnsupportedError
from ..modules import index
from ..sites import split_path

MINIMUM = (5, 19)
"""The first transformers whose wrappers stand inside of module hooks."""

GATHERING = frozenset({"moe_tp_experts", "all_reduce", "ep_dispatch_experts"})
"""Styles of modules that sum what their parts gave: whole on both sides, partial inside."""

PLAIN = frozenset(
    "colwise colwise_gather_output colwise_rep rowwise rowwise_split_input rowwise_rep "
    "packed_colwise packed_rowwise embedding_rowwise embedding_colwise local_params mla_kv_a_proj "
    "moe_identity_expert replicate replicated_with_grad_allreduce grouped_gemm".split()
)
"""Styles that say nothing about values beyond their own module's sides."""

REDUCING = GATHERING | frozenset(
    "rowwise rowwise_split_input rowwise_rep packed_rowwise embedding_rowwise".split()
)
"""Styles whose module's own ops hold sums over a part only, before the ranks' are added up."""

_UNWRAPPED = frozenset({"replicated_with_grad_allreduce"})
"""Styles that only add a hook to gradients: before 5.22 they leave the forward alone."""

_EXPERT_DIM = frozenset({"ep_dispatch_experts", "grouped_gemm"})
_HOMES = ("transformers.distributed.", "transformers.integrations.tensor_parallel")


@dataclass(frozen=True)
class Split:
    """How one parameter is split over ranks: its dim, the whole's size there, and in how many
    equal parts each rank holds a chunk (1: one chunk)."""

    dim: int
    size: int
    parts: int


@dataclass(frozen=True)
class Sharding:
    """How a model is split.

    Attributes:
        mesh: the one-dimensional mesh of tensor parallelism.
        rank, ranks: this process's place in it.
        styles: the style at each module, by site path; modules without one are not in it.
        refused: why no value of the model can be told from the others by its shape; "" where they
            can.
    """

    mesh: Any
    rank: int
    ranks: int
    styles: dict[str, str]
    refused: str

    @property
    def group(self) -> Any:
        """The process group of the mesh."""
        return self.mesh.get_group()


def is_sharded(model: nn.Module) -> bool:
    """Whether transformers split this model, or the one that it is a part of, over ranks.

    A model that others split (FSDP, DTensor by hand) is not meant.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return False
    degree = getattr(model, "tp_size", None)
    if isinstance(degree, int):
        return degree > 1
    return any(_is_wrapped(module) and any(_splits(module)) for module in model.modules())


def sharding(model: nn.Module) -> Sharding:
    """How `model` is split; it must be `is_sharded`.

    Raises:
        CaptureUnsupportedError: transformers is too old, or is not built as this package knows it.
    """
    version = _version()
    modules = index(model)
    mesh = _mesh(modules, version)
    styles = _styles(model, modules, version)
    return Sharding(
        mesh, mesh.get_local_rank(), mesh.size(), styles, _refused(model, styles, mesh.size())
    )


def split_of(module: nn.Module, name: str = "weight") -> Split | None:
    """How a parameter is split; None where it is whole on every rank, or not there."""
    parameter = module._parameters.get(name)
    placements = getattr(parameter, "placements", None)
    if parameter is None or placements is None:
        return None
    for placement in placements:
        dim = getattr(placement, "dim", None)
        if dim is None:
            continue
        dim %= parameter.ndim
        return Split(dim, parameter.shape[dim], int(getattr(placement, "split_factor", 1)))
    return None


def splits(module: nn.Module) -> dict[str, Split]:
    """Every own parameter that is split, by name."""
    found = ((name, split_of(module, name)) for name in module._parameters)
    return {name: split for name, split in found if split is not None}


def off_mesh(modules: Mapping[str, nn.Module], names: Iterable[str]) -> set[str]:
    """Those parameters, by their site names, that are not split over the mesh of the model's
    tensor parallelism; `modules` are those of `modules.index` of a sharded model.

    Raises:
        CaptureUnsupportedError: this version of transformers splits in another way.
    """
    asked = list(names)
    mesh = _mesh(modules, _version()) if asked else None
    off = set()
    for name in asked:
        path, _, parameter = name.rpartition(".")
        owner = modules.get(path)
        tensor = None if owner is None else owner._parameters.get(parameter)
        own = getattr(tensor, "device_mesh", None)
        if own is None or not (own == mesh or _is_experts(own, mesh)):
            off.add(name)
    return off


def _is_experts(mesh: Any, ours: Any) -> bool:
    """Whether this is the mesh of experts: one of its own, over the same ranks."""
    return bool(mesh.mesh_dim_names == ("ep",) and mesh.mesh.tolist() == ours.mesh.tolist())


def _version() -> str:
    """The transformers that runs.

    Raises:
        CaptureUnsupportedError: it is too old.
    """
    import transformers

    version = transformers.__version__
    if tuple(int(n) for n in re.findall(r"\d+", version)[:2]) < MINIMUM:
        raise CaptureUnsupportedError(
            f"Whole values of a model that is split over ranks need transformers "
            f"{'.'.join(map(str, MINIMUM))} or newer; this is {version}. Update it."
        )
    return version


def _splits(module: nn.Module) -> Iterator[str]:
    return iter(splits(module))


def _mesh(modules: Mapping[str, nn.Module], version: str) -> Any:
    """The mesh of the first split weight of a module that transformers wrapped."""
    for module in modules.values():
        for name in splits(module):
            mesh: Any = getattr(module._parameters[name], "device_mesh", None)
            if mesh is None:
                continue
            if mesh.ndim == 1:
                return mesh
            if "tp" in (mesh.mesh_dim_names or ()):
                return mesh["tp"]
    raise CaptureUnsupportedError(
        f"transformers {version} says that {len(modules)} modules are split over ranks, but no "
        "weight of theirs is a DTensor on a mesh of tensor parallelism: this lensview does not "
        "know how this version splits models. Run it with a version that it was tested on."
    )


def _styles(model: nn.Module, modules: dict[str, nn.Module], version: str) -> dict[str, str]:
    """The style at each module: by the model's plan, or for a part of a model, which has none, by
    what stands around the module's forward."""
    plan = _plan(model)
    found: dict[str, str] = {}
    for path, module in modules.items():
        wrapped = _is_wrapped(module)
        if plan is None:
            if wrapped:
                found[path] = _installed(module, path, version)
            continue
        style = plan.get(_wildcards(".".join(split_path(path))))
        if style is not None:
            found[path] = style
        if wrapped != (style is not None) and (wrapped or style not in _UNWRAPPED):
            raise _moved(path, style, wrapped, version)
    return found


def _plan(model: nn.Module) -> dict[str, str] | None:
    """Styles by name with ``*`` for numbers, experts' rules first; None for a part of a model."""
    if not isinstance(getattr(model, "tp_size", None), int):
        return None
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    plan: dict[str, str] = dict(getattr(model, "tp_plan", None) or {})
    if (getattr(config, "ep_size", None) or 1) > 1 or getattr(
        config, "enable_expert_parallel", False
    ):
        experts: dict[str, str] = dict(getattr(model, "ep_plan", None) or {})
        inside = tuple(f"{name}." for name in experts)
        plan = {n: s for n, s in plan.items() if not n.startswith(inside)} | experts
    return plan


def _wildcards(name: str) -> str:
    """A name as plans write it: numbers between dots are ``*``."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _wrapper(module: nn.Module) -> Any:
    """The function of transformers that stands in a module's forward, or None."""
    function = vars(module).get("forward")
    while function is not None:
        home = getattr(function, "__module__", None) or ""
        if home.startswith(_HOMES):
            return function
        function = getattr(function, "__wrapped__", None) or getattr(function, "func", None)
    return None


def _is_wrapped(module: nn.Module) -> bool:
    return _wrapper(module) is not None


def _installed(module: nn.Module, path: str, version: str) -> str:
    """The name of the style whose wrapper stands around a module."""
    try:
        from transformers.distributed import tensor_parallel
    except ImportError as error:
        raise _moved(path, None, True, version) from error
    wrapper = _wrapper(module)
    cells = dict(
        zip(
            wrapper.__code__.co_freevars,
            (c.cell_contents for c in wrapper.__closure__),
            strict=True,
        )
    )
    if "is_already_hooked" in cells:
        return "replicated_with_grad_allreduce"
    registry: Any = getattr(tensor_parallel, "ALL_PARALLEL_STYLES", {})
    for name in registry:
        style = registry[name]
        if style is cells.get("self"):
            return str(name)
    raise _moved(path, None, True, version)


def _moved(path: str, style: str | None, wrapped: bool, version: str) -> CaptureUnsupportedError:
    said = f"has the style {style!r}" if style else "has no style"
    found = "is wrapped" if wrapped else "is not wrapped"
    return CaptureUnsupportedError(
        f"{path or 'The root'} {said} in the model's plan, but its forward {found} by transformers "
        f"{version}: this lensview does not know how this version splits models. Run it with a "
        "version that it was tested on."
    )


def _refused(model: nn.Module, styles: dict[str, str], ranks: int) -> str:
    """Why shapes tell nothing in this model; "" where they do."""
    for path, style in styles.items():
        if style == "sequence_parallel":
            return f"{path} splits the sequence, so that ranks hold different tokens"
        if style.startswith("megamoe"):
            return f"{path} has the style {style!r}, whose kernel moves tokens between ranks itself"
        if style not in PLAIN | GATHERING:
            return f"{path} has the style {style!r}, which this lensview does not know"
    config = getattr(getattr(model, "config", None), "distributed_config", None)
    degree = getattr(config, "ep_size", None) or 1
    if degree not in (1, ranks) and _EXPERT_DIM & set(styles.values()):
        return f"experts are split over {degree} ranks and the rest over {ranks}"
    return ""
