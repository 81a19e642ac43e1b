"""Notes: what about a model changes nothing in a capture, or must be known beside its numbers.

Owns the findings of the levels "fine" and "warning". It looks at attributes and hooks, and runs
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from ..modules import QUANTIZERS, original
from ..parallel.styles import is_sharded, sharding
from ..sites import join
from ..values import leaves
from .findings import Finding, Level
from .fragments import fragment
from .unwrap import is_compiled

EAGERLY = "captured eagerly; a call outside a capture goes on compiled."
_OUR_ROOM = "lensview.taps"
_RECORDS_OUTPUTS = "transformers.utils."


def notes(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """What to know of a model, besides what `detect.scan` refuses; `modules` as `index` gives."""
    if part := fragment(model):
        yield Finding("fragment", "", part, level="warning")
    if is_sharded(model):
        yield _split(model)
    yield from _mode(model, modules)
    yield from hooks(modules)
    for path, module in modules.items():
        yield from _module(path, module)
    yield from _placement(model, modules)
    yield from _tied(modules)


def _split(model: nn.Module) -> Finding:
    how = sharding(model)
    if how.refused:
        what = f"split over {how.ranks} ranks, but {how.refused}: values are labelled rank-local."
        return Finding("tensor parallel", "", what, level="warning")
    what = (
        f"split by transformers over {how.ranks} ranks: values are read and edited whole, by code "
        "that every rank runs."
    )
    return Finding("tensor parallel", "", what, level="fine")


def notes_on_inputs(model: nn.Module, inputs: Any) -> Iterator[Finding]:
    """What to know of the inputs of a run, which are not split over ranks."""
    hook = getattr(model, "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    first = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    home = first if place is None else torch.device(place)
    for path, leaf in leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.device.type != home.type:
            where = "inputs" + "".join(f"[{key}]" for key in path)
            what = f"on {leaf.device}; it is moved to where the model takes its inputs."
            yield Finding("input elsewhere", where, what, level="fine")


def _mode(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    drawing = [p for p, m in modules.items() if m.training and "Dropout" in type(m).__name__]
    if model.training:
        more = f" {len(drawing)} dropout layers draw random numbers." if drawing else ""
        yield Finding(
            "train mode",
            "",
            f"captured in train mode, as it is.{more}",
            "Call model.eval() for the values of inference.",
            "warning",
        )
    elif drawing:
        what = "it is in train mode inside a model in eval mode, and draws random numbers."
        yield from (Finding("train mode", path, what, level="warning") for path in drawing)


def _module(path: str, module: nn.Module) -> Iterator[Finding]:
    cls = type(module)
    for name, child in module._modules.items():
        # The index has what the compiler wrapped, under the wrapper's own path.
        if child is not None and original(child) is not child:
            yield _fine("compiled", join(path, name), EAGERLY)
    if is_compiled(module):
        yield _fine("compiled", path, EAGERLY)
    if path and isinstance(module, nn.parallel.DistributedDataParallel):
        what = "its forward talks with the other ranks, so every rank must run the capture."
        yield Finding("DistributedDataParallel inside", path, what, level="warning")
    if path and isinstance(module, nn.DataParallel) and len(module.device_ids) < 2:
        yield _fine("DataParallel inside", path, "with one device it calls its module as it is.")
    if getattr(module, "gradient_checkpointing", False) is True:
        what = "the backward's recomputation adds no calls and no records."
        yield _fine("gradient checkpointing", path, what)
    if any(base.__module__.partition(".")[0] == "peft" for base in cls.__mro__):
        yield from _adapter(path, module)
    if cls.__module__.partition(".")[0] in QUANTIZERS:
        what = f"its values are those of {cls.__module__.partition('.')[0]}'s {cls.__name__}."
        yield _fine("quantized", path, what)
    elif cls.__module__.startswith("torch.ao.nn.quantized") and "PackedParams" not in cls.__name__:
        yield _fine("quantized", path, f"its values are those of torch's {cls.__name__}.")


def _adapter(path: str, module: nn.Module) -> Iterator[Finding]:
    if not hasattr(module, "merged") or not hasattr(module, "active_adapters"):
        return
    active: Any = module.active_adapters
    names = ", ".join(map(str, active)) or "none"
    off = getattr(module, "disable_adapters", False)
    state = "switched off" if off else "merged into the weights" if module.merged else "added"
    yield _fine("PEFT adapter", path, f"adapter {names}, {state}: values are with it as it stands.")


def hooks(modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    """The hooks that stand on a model and are not ours, by module path."""
    for path, module in modules.items():
        tables = (module._forward_hooks, module._forward_pre_hooks)
        if not any(tables):
            continue
        rooms = Counter(_room(h) for table in tables for h in list(table.values()))
        theirs = Counter({r: n for r, n in rooms.items() if not r.startswith(_OUR_ROOM)})
        own = sum(n for r, n in theirs.items() if r.startswith(_RECORDS_OUTPUTS))
        if own:
            what = "transformers records outputs here; what it collects shows the interventions."
            yield _fine("output recording", path, what)
        if count := sum(theirs.values()) - own:
            what = "hooks of others run here; records are taken after them, edits before them."
            yield from (Finding("hook", path, what, level="warning") for _ in range(count))
    globals_ = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
    )
    for _ in range(sum(map(len, globals_))):
        what = "it runs at every module, before the records are taken."
        yield Finding("global hook", "", what, level="warning")


def _room(hook: Any) -> str:
    inner = getattr(hook, "func", hook)
    return str(getattr(inner, "__module__", "") or "")


def _placement(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    offloaded = [
        path
        for path, module in modules.items()
        if getattr(module.__dict__.get("_hf_hook"), "offload", False)
    ]
    what = "its weights come to the device for each call; accelerate's own forward is kept."
    yield from (_fine("offload", path, what) for path in offloaded)
    devices = Counter(str(p.device) for p in model.parameters() if not p.is_meta)
    places = getattr(model, "hf_device_map", None)
    if places:
        used = ", ".join(sorted({str(place) for place in places.values()}))
        yield _fine("device map", "", f"spread over {used}; every record stays where it passed.")
    elif len(devices) > 1:
        what = f"its parameters are on {', '.join(sorted(devices))}, and nothing moves the values."
        yield Finding("several devices", "", what, "Check that a plain call runs.", "warning")


def _tied(modules: Mapping[str, nn.Module]) -> Iterator[Finding]:
    owners: dict[int, str] = {}
    seen: set[int] = set()
    for path, module in modules.items():
        if id(module) in seen:  # one module under two names
            continue
        seen.add(id(module))
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            here = f"{path}.{name}" if path else name
            first = owners.setdefault(id(parameter), here)
            if first != here:
                yield _fine("tied weights", here, f"one tensor with {first}.")


def _fine(kind: str, where: str, what: str) -> Finding:
    level: Level = "fine"
    return Finding(kind, where, what, level=level)
