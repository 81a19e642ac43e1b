"""Why a site has no value: never called, bypassed, another name of one that has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

X = torch.ones(1, 2)


class Parts(nn.Module):
    """Uses some of its parts, each in another way."""

    def __init__(self, act: Callable[[Parts, Tensor], Tensor]) -> None:
        super().__init__()
        self.weighed, self.direct = nn.Linear(2, 2), nn.Linear(2, 2)
        self.listed = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.unused = nn.Sequential(nn.Linear(2, 2))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x)


class Weighs(Parts):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weighed.weight, self.weighed.bias)


class Direct(Parts):
    def forward(self, x: Tensor) -> Tensor:
        for part in self.listed:
            x = part.forward(x)
        return self.direct.forward(x)


@pytest.mark.parametrize("sites", [["site"], ["site", "**"]], ids=["alone", "with all"])
@pytest.mark.parametrize(
    ("kind", "site", "text"),
    [
        (Weighs, "weighed", "parent, the Weighs at ':output', uses its weights directly"),
        (Direct, "direct", r"Likely bypassed: .*calls its \.forward directly"),
        (Direct, "listed.1", r"Likely bypassed: .*calls its \.forward directly"),
        (Direct, "weighed", "took another path"),
        (Direct, "unused.0", "the Sequential at 'unused', was not called either"),
        (Direct, "listed", "only holds modules"),
    ],
)
def test_the_reason_names_what_the_parent_does(
    kind: type[Parts], site: str, text: str, sites: list[str]
) -> None:
    model = nn.Sequential(kind(lambda _, x: x))[0]
    asked = [site if s == "site" else s for s in sites]
    trace = lv.trace(model, X, asked)
    with pytest.raises(lv.NotRecordedError, match=text):
        trace[site]
    assert ":output" in trace or sites == ["site"]


def test_out_proj_of_multihead_attention_is_bypassed() -> None:
    x = torch.randn(1, 3, 8)
    trace = lv.trace(nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x), "out_proj")
    assert "never called" in trace.missed["out_proj"]
    assert "MultiheadAttention at ':output', uses its weights directly" in trace.missed["out_proj"]


class Twice(nn.Module):
    """One linear under two names, called through the second."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(x)
        return out


def test_other_names_of_a_module_are_told() -> None:
    model = Twice()
    trace = lv.trace(model, X, ["a", "a:input"])
    assert torch.equal(trace["a"], model(X))
    assert trace.aliases == {"a": ("b",), "a:input": ("b:input",)}
    with pytest.raises(lv.NotRecordedError, match="another name of 'a'"):
        trace["b"]
    both = lv.trace(model, X, "**")
    assert torch.equal(both["a"], both["b"])
    assert both.aliases == {"a": ("b",), "b": ("a",)}
    assert lv.trace(nn.Linear(2, 2), X, "**").aliases == {}


def test_parents_are_followed_without_a_record(tiny_llama: nn.Module) -> None:
    ids = torch.tensor([[1, 2, 3]])
    trace = lv.trace(tiny_llama, ids, "model.layers.0.self_attn.q_proj")
    assert trace.sites == ("model.layers.0.self_attn.q_proj",)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in tiny_llama.modules())
