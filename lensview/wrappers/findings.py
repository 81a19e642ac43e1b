"""Findings: what about a model makes a capture wrong, and the refusal that lists all of it.

Owns the detection of states whose values cannot be shown whole. It only looks; taking wrappers off
is `unwrap.py`'s. Classes of packages that may be absent or not imported are recognised by module
and name, so that looking imports nothing.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import CaptureUnsupportedError
from ..modules import index


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


_DISTRIBUTED = "torch.distributed"
_WHOLE = "Capture a copy of the model from before it was wrapped."


def scan(model: nn.Module) -> tuple[Finding, ...]:
    """Every state of `model` that a capture must refuse; empty for a model that is fine."""
    found: list[Finding] = []
    for path, module in index(model).items():
        found.extend(_module_findings(path, module))
        for name, parameter in module._parameters.items():
            if parameter is not None and _is_dtensor(parameter):
                found.append(
                    Finding(
                        "DTensor",
                        f"{path}.{name}" if path else name,
                        "this parameter is split over ranks, so activations may be fragments.",
                        "Capture an unsharded copy.",
                    )
                )
    return tuple(found)


def refuse(model: nn.Module) -> None:
    """Raise where `scan` finds anything.

    Raises:
        CaptureUnsupportedError: for wrappers of this process (ScriptModule).
        DistributedCaptureUnsupportedError: for anything split over ranks.
    """
    found = scan(model)
    if not found:
        return
    lines = [str(f) for f in found]
    shown = [*lines[:8], *([f"… and {len(lines) - 8} more"] if len(lines) > 8 else [])]
    text = "This model cannot be captured; nothing was run.\n  " + "\n  ".join(shown)
    if any(f.kind != "ScriptModule" for f in found):
        raise DistributedCaptureUnsupportedError(text, found)
    raise CaptureUnsupportedError(text)


def _module_findings(path: str, module: nn.Module) -> list[Finding]:
    if isinstance(module, torch.jit.ScriptModule):
        what = "its calls run no Python, so its values cannot be taken."
        return [Finding("ScriptModule", path, what, "Use the nn.Module that it was made from.")]
    names = {c.__name__ for c in type(module).__mro__ if c.__module__.startswith(_DISTRIBUTED)}
    return [
        Finding(kind, path, "the parameters are sharded across ranks.", _WHOLE)
        for kind, name in (("FSDP", "FullyShardedDataParallel"), ("FSDP2", "FSDPModule"))
        if name in names
    ]


def _is_dtensor(value: Any) -> bool:
    dtensor = sys.modules.get("torch.distributed.tensor")
    return dtensor is not None and isinstance(value, dtensor.DTensor)
