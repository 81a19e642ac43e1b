"""Values between ops: what they are, whose they are, and that looking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lensview as lv

from .toys import Child, Toy, X, toy_by_hand


def test_every_op_of_a_forward_in_order_and_nothing_else() -> None:
    trace = lv.trace(Toy(), X, "/*")
    expected = toy_by_hand(X)
    assert trace.sites == tuple(expected)
    for site, tensor in expected.items():
        assert torch.equal(trace[site], tensor), site


def test_a_submodule_has_its_own_ops_also_while_its_parent_is_looked_at() -> None:
    trace = lv.trace(Toy(), X, ["/*", "child/*", "owner.inner/*"])
    child = {s.partition("@")[0] for s in trace.sites if s.startswith("child")}
    assert child == {"child/mul", "child/add", "child/softmax"}
    assert [s for s in trace.sites if s.startswith("/")] == list(toy_by_hand(X))
    assert torch.equal(trace["child/mul"], (X + 1) * 3)
    whole = lv.trace(Toy(), X, "**/*")
    assert set(whole.sites) == set(trace.sites)


def test_inputs_of_ops_are_bound_to_their_arguments() -> None:
    asked = [
        "/matmul.1:input",
        "/matmul.1:input[other]",
        "/matmul.1:input[1]",
        "/softmax:input",
        "/chunk[1]",
    ]
    trace = lv.trace(Toy(), X, asked)
    hand = toy_by_hand(X)
    assert torch.equal(trace["/matmul.1:input"], hand["/matmul"])
    assert torch.equal(trace["/matmul.1:input[other]"], X)
    assert torch.equal(trace["/matmul.1:input[1]"], X)
    assert torch.equal(trace["/softmax:input"], hand["/mul.2"])
    assert torch.equal(trace["/chunk[1]"], hand["/softmax"][:, 2:])


def test_edits_of_inputs_and_outputs() -> None:
    x = X
    trace = lv.trace(
        Toy(),
        x,
        ["/softmax", "/softmax:input", ":output"],
        [lv.scale("/softmax:input", 3.0), lv.zero("/softmax", (..., 0)), lv.zero("/mul.1")],
    )
    child = Child()
    d = torch.zeros_like(x)
    e = torch.softmax(d * 0.5 * 3.0, -1)
    e[:, 0] = 0
    left = e[:, :2]
    assert torch.equal(trace["/softmax"], e)
    assert torch.equal(trace[":output"], child(left @ left.T @ x) - d)
    assert [r.calls for r in trace.reports] == [1, 1, 1]
    assert [r.changed for r in trace.reports] == [0, 3, 12]


def test_a_glob_edits_every_op_that_it_matches() -> None:
    trace = lv.trace(Toy(), X, ["/matmul", "/matmul.1", ":output"], lv.zero("/mat*"))
    assert trace.reports[0].calls == 2
    assert not trace["/matmul"].any() and not trace["/matmul.1"].any()
    d = toy_by_hand(X)["/mul.1"]
    assert torch.equal(trace[":output"], Child()(torch.zeros(3, 4)) - d)


def test_patching_at_an_op_and_a_file_of_ops(tmp_path: Any) -> None:
    source = lv.trace(Toy(), X + 1, ["/*"])
    source.save(tmp_path / "ops.safetensors")
    loaded = lv.load(tmp_path / "ops.safetensors")
    assert loaded.sites == source.sites
    trace = lv.trace(Toy(), X, ["/softmax", "/matmul"], lv.patch("/softmax", loaded))
    assert torch.equal(trace["/softmax"], source["/softmax"])
    assert torch.equal(trace["/matmul"], source["/matmul"])


# --- several calls -------------------------------------------------------------------------------


class Twice(nn.Module):
    """A child called three times that runs one of its ops in the second call only."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Sometimes()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.part(self.part(x, False), True), False)


class Sometimes(nn.Module):
    def forward(self, x: Tensor, more: bool) -> Tensor:
        x = x.exp()
        if more:
            x = x.neg().abs()
        return x.exp()


def test_calls_of_a_module_count_its_ops_from_0_each() -> None:
    asked = ["part/exp", "part/exp.1", "part/abs", "part/neg@1"]
    trace = lv.trace(Twice(), -X.abs() - 1, asked)
    assert trace.sites == (
        "part/exp@0",
        "part/exp.1@0",
        "part/exp@1",
        "part/neg@1",
        "part/abs@1",
        "part/exp.1@1",
        "part/exp@2",
        "part/exp.1@2",
    )
    first = (-X.abs() - 1).exp()
    assert torch.equal(trace["part/exp@0"], first)
    assert torch.equal(trace["part/exp@1"], first.exp().exp())
    assert torch.equal(trace["part/abs@1"], trace["part/exp@1"])
    with pytest.raises(lv.SiteError, match="3 times"):
        trace["part/exp"]
    late = lv.trace(Twice(), X, ["part/abs@0", "part/exp@7"])
    assert "did not run abs; another call did" in late.missed["part/abs@0"]
    assert "called 3 times" in late.missed["part/exp@7"]


def test_an_edit_at_one_call_leaves_the_others() -> None:
    trace = lv.trace(Twice(), X, "part/exp", lv.zero("part/exp@1"))
    assert trace.reports[0].calls == 1
    assert trace["part/exp@0"].all() and not trace["part/exp@1"].any()


# --- in place ------------------------------------------------------------------------------------


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        view = y[:, :2]
        y.add_(1)
        y *= 2
        view.mul_(3)
        y[:, 3] = 7
        F.relu(y, inplace=True)
        torch.mul(y, 2, out=y)
        return F.dropout(y, 0.5, training=False) + y


def test_in_place_ops_are_records_of_their_moment() -> None:
    trace = lv.trace(InPlace(), X, ["/*", "/*:input", ":output"])
    y1 = X + 1
    y2 = y1 * 2
    y3 = y2.clone()
    y3[:, :2] *= 3
    y4 = y3.clone()
    y4[:, 3] = 7
    y5 = y4.relu()
    y6 = y5 * 2
    expected = {
        "/add_:input": X,
        "/add_": y1,
        "/mul_": y2,
        "/mul_.1:input": y2[:, :2],
        "/mul_.1": y3[:, :2],
        "/setitem:input": y3,
        "/setitem": y4,
        "/relu:input": y4,
        "/relu": y5,
        "/mul": y6,
        "/dropout": y6,
        ":output": y6 * 2,
    }
    for site, tensor in expected.items():
        assert torch.equal(trace[site], tensor), site


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("site", ["/add_", "/mul_", "/mul_.1", "/setitem", "/relu", "/mul"])
def test_an_edit_of_an_op_in_place_is_what_the_model_carries_on_with(
    site: str, inference: bool
) -> None:
    """By hand: the same forward, with the edit written out after its line."""
    y = X.clone()
    view = y[:, :2]
    steps: dict[str, Any] = {
        "/add_": lambda: y.add_(1),
        "/mul_": lambda: y.mul_(2),
        "/mul_.1": lambda: view.mul_(3),
        "/setitem": lambda: y[:, 3].fill_(7),
        "/relu": y.relu_,
        "/mul": lambda: y.mul_(2),
    }
    for name, step in steps.items():
        step()
        if name == site:
            (view if name == "/mul_.1" else y).add_(0.25)
    with torch.inference_mode(inference):
        trace = lv.trace(InPlace(), X.clone(), ["/dropout", ":output"], lv.add(site, 0.25))
    assert torch.equal(trace[":output"], y * 2)
    assert trace.reports[0].calls == 1


def test_an_edit_of_what_an_op_hands_back_does_not_reach_its_argument() -> None:
    """Dropout in eval mode returns the tensor that it got; the model still uses the old one."""
    trace = lv.trace(InPlace(), X, ["/mul", "/dropout", ":output"], lv.zero("/dropout"))
    assert torch.equal(trace[":output"], trace["/mul"])
    assert not trace["/dropout"].any() and trace["/mul"].any()


def test_an_input_edit_of_an_op_in_place_reaches_the_tensor() -> None:
    trace = lv.trace(InPlace(), X, ["/add_", "/mul_"], lv.zero("/add_:input"))
    assert torch.equal(trace["/add_"], torch.ones(3, 4))
    assert torch.equal(trace["/mul_"], torch.full((3, 4), 2.0))


def test_lazy_conjugates_are_values_of_their_own() -> None:
    class Conjugates(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.conj(x.clone()).clone().conj().imag.exp()

    z = torch.complex(X, X + 2)
    trace = lv.trace(Conjugates(), z, ["/*", "/conj:input"])
    assert torch.equal(trace["/conj:input"], z)
    assert torch.equal(trace["/conj"], z.conj().resolve_conj())
    assert torch.equal(trace["/conj.1"].resolve_conj(), z)


# --- whose ops -----------------------------------------------------------------------------------


class Direct(nn.Module):
    """Calls a submodule's forward, and a module that it does not own."""

    def __init__(self, stranger: nn.Module) -> None:
        super().__init__()
        self.child = Child()
        self.strangers = (stranger,)

    def forward(self, x: Tensor) -> Tensor:
        return self.strangers[0](self.child.forward(x).exp())


def test_a_forward_called_directly_is_a_helper_and_a_called_stranger_is_not() -> None:
    trace = lv.trace(Direct(Child()), X, "/*")
    assert trace.sites == ("/mul", "/add", "/softmax", "/exp")


def test_hooks_of_others_are_no_ops_of_the_forward() -> None:
    model = Toy()
    model.register_forward_pre_hook(lambda m, args: (args[0].exp().log(),))
    model.register_forward_hook(lambda m, args, output: output.exp().log())
    model.child.register_forward_hook(lambda m, args, output: output.tanh().atanh())
    trace = lv.trace(model, X, "**/*")
    assert [s for s in trace.sites if s.startswith("/")] == list(toy_by_hand(X))
    assert not any("tanh" in s or "log" in s for s in trace.sites)


def test_module_edits_stand_around_the_ops() -> None:
    edits = [lv.put(":input", 0.0), lv.put(":output", 5.0)]
    trace = lv.trace(Toy(), X, ["/add", "/sub", ":output"], edits)
    assert torch.equal(trace["/add"], torch.ones(3, 4))
    assert not torch.equal(trace["/sub"], trace[":output"])
    assert torch.equal(trace[":output"], torch.full((3, 4), 5.0))


def test_a_wrapped_forward_has_the_ops_of_the_forward_inside() -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module

    class Moves(ModelHook):  # type: ignore[misc]
        def pre_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return tuple(a.clone().exp().log() for a in args), kwargs

        def post_forward(self, module: nn.Module, output: Tensor) -> Tensor:
            return output + 0

    model = Toy()
    add_hook_to_module(model, Moves())
    add_hook_to_module(model.child, Moves())
    trace = lv.trace(model, X, "**/*")
    assert [s for s in trace.sites if s.startswith("/")] == list(toy_by_hand(X))
    assert {s for s in trace.sites if s.startswith("child")} == {
        "child/mul",
        "child/add",
        "child/softmax",
    }


def test_ops_inside_vmap_are_no_values_of_the_run() -> None:
    class Mapped(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.vmap(lambda row: (row * 2).exp())(x) + 1

    trace = lv.trace(Mapped(), X, ["/*", ":output"])
    assert trace.sites == ("/add", ":output")
    assert torch.equal(trace["/add"], (X * 2).exp() + 1)
