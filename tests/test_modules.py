"""The tree: every module once per name, without a forward, against PyTorch's own count."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lensview as lv
from lensview.errors import SiteError
from lensview.modules import index, tree
from lensview.resolve import resolve


def test_rows_are_named_modules_in_order(tiny_llama: nn.Module) -> None:
    rows = tree(tiny_llama)
    assert [r.path for r in rows] == [n for n, _ in tiny_llama.named_modules()]
    for row, (name, module) in zip(rows, tiny_llama.named_modules(), strict=True):
        assert row.class_name == type(module).__name__
        assert row.parameters == sum(p.numel() for p in module.parameters())
        assert row.depth == (name.count(".") + 1 if name else 0)
    by_path = {r.path: r for r in rows}
    projection = by_path["model.layers.0.mlp.down_proj"]
    assert projection.weights == (16, 32) and projection.dtype == "float32"
    assert by_path["model.layers"].note == "container"
    assert by_path["model.layers.0"].weights is None


def test_the_tree_never_runs_the_model() -> None:
    class Untouchable(nn.Linear):
        def forward(self, *args: object) -> torch.Tensor:
            raise AssertionError("the tree ran a forward")

    assert len(tree(nn.Sequential(Untouchable(2, 2)))) == 2


def test_tied_weights_shared_modules_and_cycles() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.b = nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight
            self.again = self.a
            self.register_module("nothing", None)
            self._modules["me"] = self

    rows = {r.path: r for r in tree(Odd())}
    assert set(rows) == {"", "a", "b", "again"}
    assert rows["b"].note == "tied"
    assert rows["again"].note == "tied, also at a"
    assert rows[""].parameters == 4


def test_names_with_reserved_characters_are_escaped() -> None:
    model = nn.ModuleDict({"a:b": nn.Linear(1, 1), "<img src=x>": nn.Linear(1, 1)})
    rows = tree(model)
    assert [r.name for r in rows] == ["", r"a\:b", "<img src=x>"]
    (target,) = resolve([rows[1].path], index(model))
    assert target.module is model["a:b"]


def test_near_matches(tiny_llama: nn.Module) -> None:
    modules = index(tiny_llama)
    with pytest.raises(SiteError, match=r"'model\.layers\.0\.mlp'"):
        resolve(["model.layers.0.mpl"], modules)
    with pytest.raises(SiteError, match=r"'model\.layers\.0\.self_attn\.q_proj'"):
        resolve(["q_proj"], modules)
    with pytest.raises(SiteError, match="matches none"):
        resolve(["layers.*.mlp"], modules)
    with pytest.raises(SiteError, match="is a parameter"):
        resolve(["lm_head.weight"], modules)
    with pytest.raises(SiteError, match=r"'model\.layers\.0\.self_attn'"):
        resolve(["model.layers.0.self_atn/softmax"], modules)
    (target,) = resolve(["module.model.layers.0.self_attn/softmax"], modules)
    assert str(target.site) == "model.layers.0.self_attn/softmax" and not target.expanded
    assert all(t.expanded for t in resolve(["model.layers.0.mlp/*", "**.mlp/mul"], modules))


def test_wrapper_prefixes_mean_the_inner_module(tiny_llama: nn.Module) -> None:
    modules = index(tiny_llama)
    for text in ("module.lm_head", "_orig_mod.lm_head", "module._orig_mod.lm_head"):
        (target,) = resolve([text], modules)
        assert target.module is tiny_llama.get_submodule("lm_head")
        assert str(target.site) == "lm_head"


def test_a_list_with_a_forward_of_its_own_is_no_container() -> None:
    """The parametrizations of a weight are a list that is called; a plain list never is."""
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    model = nn.Sequential(linear)
    trace = lv.trace(model, torch.randn(2, 3), "**")
    assert torch.equal(trace["0.parametrizations.weight"], linear.weight)
    assert [r.path for r in tree(model) if "container" in r.note] == ["0.parametrizations"]
