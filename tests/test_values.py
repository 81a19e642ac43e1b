"""Nested values: walked, read and rebuilt without losing their types or touching the original."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lensview.errors import SiteError
from lensview.values import binder, get, leaves, main_path, replace

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Box:
    label: str
    inside: Tensor
    later: Any = field(default=None, init=False)


def test_main_tensor_is_the_first_depth_first_integers_included() -> None:
    a, b = torch.zeros(2), torch.ones(2, dtype=torch.int64)
    assert main_path(a) == ()
    assert main_path((None, "x", [3, {"k": b}], a)) == (2, 1, "k")
    assert main_path(Box("x", a)) == ("inside",)
    assert main_path({"cache": object()}) is None
    assert main_path(None) is None


@pytest.mark.parametrize(
    "value",
    [
        (torch.zeros(2), None, {"a": 1}),
        [torch.zeros(2), "text"],
        Pair(torch.zeros(2), 5),
        OrderedDict(x=torch.zeros(2), y=None),
        Box("x", torch.zeros(2)),
        torch.max(torch.zeros(2, 2), 0),
        nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_container_comes_back_as_the_type_it_was(value: Any) -> None:
    path = main_path(value)
    assert path is not None
    before = [leaf for _, leaf in leaves(value)]
    new = torch.full_like(get(value, path), 7)
    changed = replace(value, path, new)
    assert type(changed) is type(value)
    assert get(changed, path) is new
    assert [p for p, _ in leaves(changed)] == [p for p, _ in leaves(value)]
    # The caller's own container and all other members are the very objects they were.
    assert all(x is y for x, y in zip(before, [v for _, v in leaves(value)], strict=True))
    others = [(p, v) for p, v in leaves(value) if p != path]
    assert all(get(changed, p) is v for p, v in others)


def test_model_output_keeps_attributes_and_keys_in_step() -> None:
    from transformers.modeling_outputs import CausalLMOutputWithPast

    value = CausalLMOutputWithPast(logits=torch.zeros(2), hidden_states=(torch.ones(1),))
    assert main_path(value) == ("logits",)
    changed = replace(value, ("hidden_states", 0), torch.full((1,), 3.0))
    assert isinstance(changed, CausalLMOutputWithPast)
    assert changed.hidden_states is not None
    assert changed.hidden_states[0].item() == 3 == changed["hidden_states"][0].item()
    assert value.hidden_states is not None and value.hidden_states[0].item() == 1


def test_a_missing_member_names_those_that_are_there() -> None:
    with pytest.raises(SiteError, match="attention_mask"):
        get({"attention_mask": 1}, ("attention_msk",))
    with pytest.raises(SiteError, match="Tensor"):
        get((torch.zeros(1),), (0, 1))
    with pytest.raises(SiteError):
        replace([1], (3,), 0)


def test_calls_are_bound_by_name_and_passed_on_the_way_they_came() -> None:
    def forward(a: Any, b: Any = 1, *rest: Any, c: Any = 2, **more: Any) -> None: ...

    bind = binder(forward)
    bound = bind((1, 2, 3, 4), {"z": 5, "c": 6})
    assert list(bound.value.items()) == [("a", 1), ("b", 2), ("rest", (3, 4)), ("c", 6), ("z", 5)]
    assert bound.call(bound.value) == ((1, 2, 3, 4), {"c": 6, "z": 5})
    bound = bind((), {"z": 5, "b": 3, "a": 1})
    assert list(bound.value) == ["a", "b", "z"]
    assert bound.call(bound.value) == ((), {"a": 1, "b": 3, "z": 5})


def test_a_call_that_does_not_fit_still_has_names() -> None:
    def forward(a: Any) -> None: ...

    bound = binder(forward)((1, 2), {})
    assert bound.value == {"a": 1, "arg1": 2}
    assert bound.call(bound.value) == ((1, 2), {})
