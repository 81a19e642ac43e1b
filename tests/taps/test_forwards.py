"""What stands around a module's own forward, and the names of its arguments."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

import lensview as lv
from lensview.taps.forwards import layers, signed
from lensview.taps.ops import forward_code


class Twice(nn.Module):
    def forward(self, states: Tensor, *, scale: float = 1.0) -> Tensor:
        return torch.mul(states, 2 * scale)


def nameless(module: nn.Module) -> None:
    """A wrapper as tensor parallelism puts it: it neither names arguments nor what it wraps."""
    original = module.forward

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return torch.add(original(*args, **kwargs), 1)

    module.forward = wrapper


def test_a_wrapper_without_names_is_looked_under() -> None:
    module = Twice()
    nameless(module)
    nameless(module)
    assert signed(module).__func__ is Twice.forward
    assert len(list(layers(module))) == 3
    assert forward_code(module) is Twice.forward.__code__


def test_arguments_and_ops_are_those_of_the_forward_itself() -> None:
    model = nn.Sequential(Twice())
    nameless(model[0])
    trace = lv.trace(model, torch.ones(2), ["0:input[states]", "0", "0/*"])
    assert torch.equal(trace["0"], torch.full((2,), 3.0))
    assert torch.equal(trace["0:input[states]"], torch.ones(2))
    assert torch.equal(trace["0/mul"], torch.full((2,), 2.0))
    assert not [site for site in trace.sites if "/add" in site]


def test_a_wrapper_that_says_what_it_wraps_keeps_its_names() -> None:
    module = Twice()
    original = module.forward

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    module.forward = wrapper  # type: ignore[method-assign]
    assert signed(module) is wrapper


def test_a_forward_of_someone_elses_is_its_own() -> None:
    module = Twice()

    def other(whatever: Tensor) -> Tensor:
        return whatever

    module.forward = other  # type: ignore[assignment, method-assign]
    assert list(layers(module)) == [other] and signed(module) is other
