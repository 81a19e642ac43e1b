"""Findings: what about a model makes a capture wrong, and the refusal that lists all of it.

Owns the detection of states whose values cannot be shown whole. It only looks; taking wrappers off
is `unwrap.py`'s. Classes of packages that may be absent or not imported are recognised by module
and name, so that looking imports nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..errors import CaptureUnsupportedError


@dataclass(frozen=True)
class Finding:
    """One reason why a capture would be wrong.

    Attributes:
        kind: a short name, e.g. "FSDP2".
        where: the site path of the module or the name of the parameter; "" is the root.
        what: a sentence: what it is and why it stops a capture.
        remedy: what to do instead.
    """

    kind: str
    where: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.where or 'the root module'}: {self.what} {self.remedy}"


class DistributedCaptureUnsupportedError(CaptureUnsupportedError):
    """The model is split over ranks in a way that nobody here can put together again.

    Attributes:
        findings: every reason, one `Finding` each.
    """

    def __init__(self, message: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(message)
        self.findings = findings


_SHARDED = (
    "its parameters are sharded across ranks.",
    "Capture a copy of the model from before it was wrapped.",
)
_SAID = {
    "FSDP": _SHARDED,
    "FSDP2": _SHARDED,
    "ScriptModule": (
        "its calls run no Python, so its values cannot be taken.",
        "Use the nn.Module that it was made from.",
    ),
}


def scan(modules: Mapping[str, nn.Module]) -> tuple[Finding, ...]:
    """Every state that a capture must refuse among the modules of `modules.index`; often none."""
    found: list[Finding] = []
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    kinds = {kind: _kinds(kind) for kind in {type(m) for m in modules.values()}}
    for path, module in modules.items():
        found.extend(Finding(kind, path, *_SAID[kind]) for kind in kinds[type(module)])
        for name, parameter in module._parameters.items():
            if isinstance(parameter, dtensor):
                found.append(
                    Finding(
                        "DTensor",
                        f"{path}.{name}" if path else name,
                        "this parameter is split over ranks, so activations may be fragments.",
                        "Capture an unsharded copy.",
                    )
                )
    return tuple(found)


def refuse(modules: Mapping[str, nn.Module]) -> None:
    """Raise where `scan` finds anything.

    Raises:
        CaptureUnsupportedError: for wrappers of this process (ScriptModule).
        DistributedCaptureUnsupportedError: for anything split over ranks.
    """
    found = scan(modules)
    if not found:
        return
    lines = [str(f) for f in found]
    shown = [*lines[:8], *([f"… and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    text = "This model cannot be captured; nothing was run.\n  " + "\n  ".join(shown)
    if any(f.kind != "ScriptModule" for f in found):
        raise DistributedCaptureUnsupportedError(text, found)
    raise CaptureUnsupportedError(text)


def _kinds(module: type[nn.Module]) -> list[str]:
    """The kinds of finding that a module's class alone makes."""
    names = {c.__name__ for c in module.__mro__ if c.__module__.startswith("torch.distributed")}
    return [
        *(["ScriptModule"] if issubclass(module, torch.jit.ScriptModule) else []),
        *(["FSDP"] if "FullyShardedDataParallel" in names else []),
        *(["FSDP2"] if "FSDPModule" in names else []),
    ]
