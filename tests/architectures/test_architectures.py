"""Capture on the architectures of transformers: every site against hooks by hand, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

from ..by_hand import by_hand
from .calls import Row
from .shrink import tiny
from .table import LEFT_OUT, ROWS

CASES = [pytest.param(row, id=row.kind, marks=() if row.fast else pytest.mark.full) for row in ROWS]


def state(model: nn.Module) -> list[Any]:
    """Hooks, forwards and modes of every module, as they stand."""
    return [
        (
            list(m._forward_hooks.items()),
            list(m._forward_pre_hooks.items()),
            dict(m._forward_hooks_with_kwargs),
            dict(m._forward_pre_hooks_with_kwargs),
            dict(m._forward_hooks_always_called),
            m.__dict__.get("forward"),
            m.training,
            set(m.__dict__),
        )
        for m in model.modules()
    ]


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in a model's output, in order."""
    if isinstance(value, Tensor):
        return [value]
    members = value.values() if isinstance(value, dict) else value
    if isinstance(value, (dict, tuple, list)):
        return [t for member in members for t in tensors(member)]
    return []


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in dtype and bit for bit, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


@pytest.mark.parametrize("row", CASES)
def test_every_site_is_what_hooks_by_hand_see_and_the_model_is_as_before(row: Row) -> None:
    model = tiny(row.kind, row.auto, row.sizes)
    kwargs = row.inputs(model.config)
    with torch.no_grad():
        model(**kwargs)  # big_bird makes itself other attention modules in its first call
    torch.manual_seed(3)
    with torch.no_grad():
        plain = model(**kwargs)
    random = torch.get_rng_state()
    torch.manual_seed(3)
    expected = by_hand(model, lambda: model(**kwargs))
    before = state(model)

    torch.manual_seed(3)
    trace = lv.trace(model, kwargs, ["**", "**:input"], keep_output=True)

    assert torch.equal(torch.get_rng_state(), random)
    assert state(model) == before
    outputs = tensors(plain)
    assert outputs and len(outputs) == len(tensors(trace.output))
    assert all(map(same, outputs, tensors(trace.output)))
    assert set(trace.sites) == set(expected)
    assert [site for site, tensor in expected.items() if not same(trace[site], tensor)] == []


def test_the_table_covers_what_it_says() -> None:
    kinds = [row.kind for row in ROWS]
    assert len(kinds) == len(set(kinds)) >= 300
    assert not set(kinds) & set(LEFT_OUT)
    fast = {row.group for row in ROWS if row.fast}
    assert fast == {row.group for row in ROWS}
