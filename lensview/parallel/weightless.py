"""Weightless: the same model again, unsharded and without weights, and what it is called with.

Owns how the copy is made (on the meta device, or of fake tensors) and its calls at two shapes. What
is read from its runs is `twin.py`'s.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

CACHES = ("cache", "past_key_values", "cache_params")
"""The names under which transformers' models take and give a cache."""

EXPERTS = "batched_mm"
"""The implementation of experts whose ops' shapes no routing decides."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one call: rows, tokens, and the tokens of a decoder beside an encoder."""

    rows: int
    tokens: int
    decoded: int


SHAPES = (Shape(2, 11, 7), Shape(3, 6, 10))
"""No size of one is that of the other: what is equal in both runs is no size of the call."""


@dataclass
class Weightless:
    """A model that computes shapes and no values.

    `fake` says whether its tensors are fake ones on the CPU (a forward that asks transformers
    whether it is traced is told so, and masks are made whatever they hold) or on the meta device.
    """

    model: nn.Module
    fake: bool
    _modes: list[Any] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Where its forwards are to run."""
        with self._modes[0] if self.fake else torch.device("meta"), torch.no_grad():
            yield

    def prefill(self, shape: Shape) -> tuple[dict[str, Any], Any]:
        """The call of a first forward at `shape`, and what it gave."""
        call = first_call(self.model, shape, masked=self.fake)
        return call, self.model(**call)

    def step(self, shape: Shape, call: dict[str, Any], output: Any) -> bool:
        """Run one decoding step after `prefill`; False where the model has none."""
        following = next_call(self.model, shape, call, output)
        if following is None:
            return False
        self.model(**following)
        return True


def weightless(model: nn.Module, fake: bool, stubbed: bool = False) -> Weightless:
    """The model of the same class from the same configuration, unsharded.

    Args:
        fake: see `Weightless`.
        stubbed: whether experts give back their input instead of running: the forwards of some
            loop over what the routing chose, which only values tell.

    Raises:
        Whatever its class raises where it cannot be made on the meta device.
    """
    with _same_randomness():
        with torch.device("meta"):
            made = type(model)(plain_config(model.config)).eval()
        if stubbed:
            for module in made.modules():
                if type(module).__name__.endswith("Experts"):
                    module.forward = _first_argument
        if not fake:
            return Weightless(made, fake)
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = FakeTensorMode()
        with mode:
            _refill(made)
        return Weightless(made, fake, [mode])


def _first_argument(hidden_states: Any, *_args: Any, **_kwargs: Any) -> Any:
    return torch.empty_like(hidden_states)


def plain_config(config: Any) -> Any:
    """A copy of a configuration without what splits the model, and with what no value decides."""
    plain = copy.deepcopy(config)
    for name in ("distributed_config", "quantization_config"):
        plain.__dict__.pop(name, None)
    if hasattr(plain, "_experts_implementation"):
        plain._experts_implementation = EXPERTS
    attention = getattr(plain, "_attn_implementation", None)
    if isinstance(attention, str) and attention not in ("eager", "sdpa"):
        plain._attn_implementation = "sdpa"
    return plain


def first_call(model: nn.Module, shape: Shape, masked: bool) -> dict[str, Any]:
    """What a first forward is called with.

    Raises:
        ValueError: the model is not called with ids of tokens.
    """
    takes = _parameters(model)
    name = getattr(model, "main_input_name", "input_ids")
    if "input_ids" not in takes:
        raise ValueError(f"it is called with {name!r}, not with ids of tokens")
    call: dict[str, Any] = {"input_ids": _ids(shape.rows, shape.tokens)}
    if masked and "attention_mask" in takes:
        call["attention_mask"] = _ids(shape.rows, shape.tokens)
    if "decoder_input_ids" in takes:
        call["decoder_input_ids"] = _ids(shape.rows, shape.decoded)
    if "use_cache" in takes:
        call["use_cache"] = True
    return call


def next_call(
    model: nn.Module, shape: Shape, call: dict[str, Any], output: Any
) -> dict[str, Any] | None:
    """What the forward after `call` is called with, one token further; None without a cache."""
    takes = _parameters(model)
    kept = next((output[n] for n in CACHES if _has(output, n)), None)
    name = next((n for n in CACHES if n in takes), None)
    if kept is None or name is None:
        return None
    following: dict[str, Any] = {**call, name: kept}
    if "decoder_input_ids" in call:
        following["decoder_input_ids"] = _ids(shape.rows, 1)
        if _has(output, "encoder_last_hidden_state") and "encoder_outputs" in takes:
            following["encoder_outputs"] = (output["encoder_last_hidden_state"],)
            following["input_ids"] = None
        return following
    following["input_ids"] = _ids(shape.rows, 1)
    if "attention_mask" in call:
        following["attention_mask"] = _ids(shape.rows, shape.tokens + 1)
    return following


def _has(output: Any, name: str) -> bool:
    return isinstance(output, dict) and output.get(name) is not None


def _ids(rows: int, tokens: int) -> Tensor:
    return torch.ones(rows, tokens, dtype=torch.int64)


def _parameters(model: nn.Module) -> set[str]:
    forward: Callable[..., Any] = type(model).forward
    return set(inspect.signature(forward).parameters)


def _refill(model: nn.Module) -> None:
    """Put tensors of the mode that is on where the model has them on the meta device."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = made.setdefault(id(old), torch.empty(old.shape, dtype=old.dtype))
                module._parameters[name] = nn.Parameter(new, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


@contextmanager
def _same_randomness() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
