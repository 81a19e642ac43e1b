"""Unembedding: a model's own way from its last residual stream to its logits.

Owns how layers, final norm, head and what comes after the head are found, and the proof that they
are the model's: put together on the last layer's output they must give the logits of that run.
Names and classes are only where the search begins; nothing is taken that does not pass the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureUnsupportedError
from ..modules import index
from ..sites import join, split_path
from ..traces.trace import Trace

_ULPS = 32
_HALF_ULPS = 2
_HALF = 1e-4
"""Dtypes less precise than this are 16-bit floats."""
_MATRIX = 2
_HEADS = ("lm_head", "embed_out", "head", "unembed")
"""Names that heads have where a model does not tell its own."""


class LensUnsupportedError(CaptureUnsupportedError):
    """The logit lens cannot be had of this model or this run; says why."""


@dataclass(frozen=True, eq=False)
class After:
    """What a model does to its head's output: a text for people, and the function."""

    text: str
    apply: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Unembedding:
    """The proved way from residual stream to logits.

    Attributes:
        layers: the site paths of the layers, in order; each one's output is a residual stream.
        norm: the sites between the last layer and the head, in order; () where there are none.
        head: the head's site path.
        after: what the model does to the head's output, in words; "" for nothing.
        difference: the largest absolute difference from the model's own logits in the run that
            proved it; 0.0 is bit for bit.
    """

    layers: tuple[str, ...]
    norm: tuple[str, ...]
    head: str
    after: str
    difference: float
    _parts: tuple[nn.Module, ...]
    _after: After

    def logits(self, residual: Tensor) -> Tensor:
        """The logits (…, T, V) of a residual stream (…, T, D), in the model's dtype."""
        with torch.no_grad():
            return self._after.apply(_through(self._parts, residual))

    def __str__(self) -> str:
        norm = " → ".join(self.norm) or "no norm"
        after = f" → {self.after}" if self.after else ""
        return f"{norm} → {self.head}{after}"


def _through(parts: Sequence[nn.Module], value: Tensor) -> Tensor:
    for part in parts:
        value = part(value)
        value = value[0] if isinstance(value, tuple) else value
    return value


def layers_of(model: nn.Module) -> tuple[str, ...]:
    """The site paths of a language model's layers: the members of its longest outermost list.

    Raises:
        LensUnsupportedError: it is an encoder-decoder, or has no such list.
    """
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise LensUnsupportedError(
            f"{type(model).__name__} is an encoder-decoder: its decoder's layers also read the "
            "encoder, and its logits are not those of the tokens read. The logit lens is for "
            "decoders alone."
        )
    lists: dict[str, nn.ModuleList] = {}
    stem = _decoder(model)
    for path, module in index(model).items():
        inside = any(path.startswith(f"{outer}.") for outer in lists)
        here = path.startswith(f"{stem}." if stem else "")
        if isinstance(module, nn.ModuleList) and len(module) and here and not inside:
            lists[path] = module
    if not lists:
        raise LensUnsupportedError(
            f"{type(model).__name__} has no list of layers (nn.ModuleList) to look at one by one."
        )
    longest = max(lists, key=lambda path: len(lists[path]))
    return tuple(join(longest, name) for name, _ in lists[longest].named_children())


def _decoder(model: nn.Module) -> str:
    """The path of the part that reads the text: models of images have a longer list elsewhere."""
    own = getattr(model, "get_decoder", None)
    part = own() if callable(own) else None
    return next((p for p, m in index(model).items() if m is part), "")


def head_of(model: nn.Module) -> str:
    """The site path of the module that makes logits.

    Raises:
        LensUnsupportedError: there is none that the model, or its name, tells.
    """
    own = getattr(model, "get_output_embeddings", None)
    module = own() if callable(own) else None
    modules = index(model)
    if module is None:
        named = [p for p in modules if p and split_path(p)[-1] in _HEADS]
        path = min(named, key=lambda p: len(split_path(p)), default="")
    else:
        path = next((p for p, m in modules.items() if m is module), "")
    if not path:
        raise LensUnsupportedError(
            f"{type(model).__name__} has no output head over a vocabulary "
            "(get_output_embeddings() gives none), so nothing turns a residual stream into tokens."
        )
    return path


def unembedding(trace: Trace, model: nn.Module) -> Unembedding:
    """The way from residual stream to logits of `model`, proved on a run without interventions.

    Args:
        trace: of that run, with the last layer's output.
        model: unwrapped.

    Raises:
        LensUnsupportedError: the model has no such way, the trace no logits, or nothing that was
            found gives the run's own logits; says what came closest.
        NotRecordedError, SiteError: the trace lacks the last layer's output.
    """
    layers, head = layers_of(model), head_of(model)
    if trace.logits is None or not trace.predicts:
        raise LensUnsupportedError(
            f"This run has no next-token logits to prove the lens by: {type(model).__name__} does "
            "not generate text from these inputs."
        )
    last = trace[layers[-1]]
    if last.dim() != 3 or not trace.aligned(layers[-1]):
        raise LensUnsupportedError(
            f"The output of {layers[-1]} has shape {tuple(last.shape)}: not one row of features "
            "for each token of the run, so it is no residual stream that a head could read."
        )
    modules = index(model)
    best: Unembedding | None = None
    for norm, after in product(_norms(model, layers, head, last.shape[-1]), _afters(model)):
        parts = tuple(modules[path] for path in (*norm, head))
        try:
            gap = _gap(trace, last, parts, after)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
            continue  # not made for this: another candidate may be
        if best is None or gap < best.difference:
            best = Unembedding(layers, norm, head, after.text, gap, parts, after)
        if best.difference == 0.0:
            break
    if best is None or best.difference > allowed(trace.logits):
        raise LensUnsupportedError(_refusal(model, layers[-1], head, best))
    return best


def allowed(logits: Tensor) -> float:
    """How far logits may be off: a few units of their dtype's precision at their largest."""
    largest = float(logits.float().abs().nan_to_num(posinf=0.0).max()) if logits.numel() else 0.0
    precision = torch.finfo(logits.dtype).eps
    return (_ULPS if precision < _HALF else _HALF_ULPS) * precision * max(largest, 1e-6)


def last_tokens(trace: Trace, residual: Tensor) -> Tensor:
    """(B, 1, D): the rows of the last real token of each prompt, whose logits a trace keeps."""
    if trace.tokens is None:
        return residual[:, -1:]
    mask = trace.tokens.mask
    places = torch.arange(mask.shape[1]).expand_as(mask).masked_fill(~mask, -1).amax(-1)
    rows = torch.arange(len(places), device=residual.device)
    return residual[rows, places.to(residual.device)][:, None]


def gap(trace: Trace, last: Tensor, found: Unembedding) -> float:
    """The largest difference from a run's own logits of the found way on its last residual."""
    return _gap(trace, last, found._parts, found._after)


def _gap(trace: Trace, last: Tensor, parts: Sequence[nn.Module], after: After) -> float:
    with torch.no_grad():
        # All tokens first, as the model does: matrix products of another height differ in bits.
        whole = last if last.shape[0] * last.shape[1] <= _ROWS else last_tokens(trace, last)
        made = after.apply(_through(parts, whole))
        made = made if whole is not last else last_tokens(trace, made)
    own = trace.logits
    assert own is not None
    if made[:, 0].shape != own.shape:
        raise ValueError("other logits")
    distance = (made[:, 0].float() - own.float().to(made.device)).abs()
    return float("inf") if bool(distance.isnan().any()) else float(distance.max())


_ROWS = 64


def _norms(
    model: nn.Module, layers: Sequence[str], head: str, width: int
) -> Iterator[tuple[str, ...]]:
    """What may stand between the last layer and the head, the likeliest first: modules beside the
    list of layers whose weights have one number for each feature, then one that changes the width,
    then nothing."""
    beside = ".".join(split_path(layers[0])[:-2])
    modules = index(model)
    candidates = []
    while True:
        candidates += [join(beside, n) for n, _ in modules[beside].named_children()]
        if not beside:
            break
        beside = beside.rpartition(".")[0]
    fitting = [p for p in dict.fromkeys(candidates) if p != head and _is_norm(modules[p], width)]
    # Defined after the layers, as in nearly all models: the last first.
    norms = sorted(fitting, key=lambda p: list(modules).index(p), reverse=True)
    linears = [p for p in dict.fromkeys(candidates) if p != head and _is_linear(modules[p], width)]
    yield from ((norm,) for norm in norms)
    yield ()
    yield from ((norm, out) for norm in norms for out in linears)
    yield from ((out,) for out in linears)


def _is_norm(module: nn.Module, width: int) -> bool:
    weights = [p for p in module.parameters() if p.numel()]
    if any(True for _ in module.children()) or not all(p.shape == (width,) for p in weights):
        return False
    return bool(weights) or "norm" in type(module).__name__.lower()


def _is_linear(module: nn.Module, width: int) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == _MATRIX and weight.shape[1] == width


def _afters(model: nn.Module) -> Iterator[After]:
    """What models of transformers do to their logits, by the names of their settings."""
    config = getattr(model, "config", None)
    text = getattr(config, "get_text_config", lambda: config)()
    yield After("", lambda logits: logits)
    yield from _settings(text, "config")
    yield from _settings(model, "model")


def _settings(place: Any, name: str) -> Iterator[After]:
    def number(setting: str) -> float | None:
        value = getattr(place, setting, None)
        return float(value) if isinstance(value, (int, float)) and value else None

    if (cap := number("final_logit_softcapping")) is not None:
        yield After(
            f"tanh(logits / {cap:g}) × {cap:g} ({name}.final_logit_softcapping)",
            lambda logits: torch.tanh(logits / cap) * cap,
        )
    for setting in ("logit_scale", "lm_head_multiplier", "logits_scale"):
        if (scale := number(setting)) is not None:
            yield After(f"× {scale:g} ({name}.{setting})", partial(torch.mul, other=scale))
    if (scale := number("logits_scaling")) is not None:
        yield After(f"÷ {scale:g} ({name}.logits_scaling)", partial(torch.div, other=scale))


def _refusal(model: nn.Module, last: str, head: str, best: Unembedding | None) -> str:
    closest = "nothing that was tried could be computed"
    if best is not None:
        closest = f"the closest, {best}, is off by {best.difference:.3g}"
    return (
        f"No norm and head of {type(model).__name__} give this run's own logits from the output of "
        f"{last}: {closest}. The model does something else between {last} and its logits (its head "
        f"is {head}), its weights have changed since the run, or an intervention stands there; a "
        "lens without it would show tokens that the model never would."
    )
