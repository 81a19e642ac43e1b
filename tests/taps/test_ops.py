"""Values between ops: what they are, whose they are, and that looking changes nothing."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import lensview as lv

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def modes() -> list[Any]:
    return list(torch.overrides._get_current_function_mode_stack())


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    assert modes() == []
    yield
    assert modes() == []


class Child(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 3 + 1).softmax(-1)


@torch.no_grad()
def helper(x: Tensor) -> Tensor:
    return F.softmax(x * 0.5, dim=-1)


class Toy(nn.Module):
    """Functions, methods, operators, a helper, a submodule, a nested one called past its owner."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Child()
        self.owner = nn.ModuleDict({"inner": Child()})

    def forward(self, x: Tensor) -> Tensor:
        a = x + 1
        assert a.shape[0] == 3 and a.dim() == 2 and a.dtype == x.dtype
        b = self.child(a)
        c = torch.add(a, b)
        d = c.mul(2) * x
        e = helper(d)
        left, _ = e.chunk(2, dim=-1)
        return self.owner["inner"](left.matmul(left.T) @ x) - d


def toy_by_hand(x: Tensor) -> dict[str, Tensor]:
    child = Child()
    a = x + 1
    b = child(a)
    c = a + b
    d0 = c * 2
    d = d0 * x
    h = d * 0.5
    e = torch.softmax(h, -1)
    left = e[:, :2]
    m0 = left @ left.T
    m1 = m0 @ x
    return {
        "/add": a,
        "/add.1": c,
        "/mul": d0,
        "/mul.1": d,
        "/mul.2": h,
        "/softmax": e,
        "/chunk": left,
        "/matmul": m0,
        "/matmul.1": m1,
        "/sub": child(m1) - d,
    }


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


# --- other modes, threads, captures --------------------------------------------------------------


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_modes_of_others_stay_and_see_what_they_saw() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Child()

        def forward(self, x: Tensor) -> Tensor:
            with torch.device("cpu"), Counting():
                x = self.child(x + torch.ones(4))
            return x.exp()

    outer = Counting()
    with outer:
        trace = lv.trace(Own(), X, "**/*")
        assert modes() == [outer]
    assert trace.sites == ("/ones", "/add", "child/mul", "child/add", "child/softmax", "/exp")
    assert outer.names.count("softmax") == 1 and outer.names.count("exp") == 1


def test_a_mode_that_a_hook_of_others_leaves_on_survives() -> None:
    stays = Counting()
    model = Toy()
    model.child.register_forward_hook(lambda m, a, o: (stays.__enter__(), None)[1])
    try:
        lv.trace(model, X, "/*")
        assert modes() == [stays]
    finally:
        stays.__exit__(None, None, None)


def test_two_threads_each_see_their_own() -> None:
    model = Toy()
    barrier = threading.Barrier(2)
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
        expected = toy_by_hand(x)
        barrier.wait()
        for _ in range(40):
            trace = lv.trace(model, x, "**/*")
            if not all(torch.equal(trace[s], t) for s, t in expected.items()) or modes():
                wrong.append(str(seed))

    threads = [threading.Thread(target=work, args=(s,)) for s in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_capture_inside_a_capture_keeps_to_itself() -> None:
    model = Toy()
    inner: list[lv.Trace] = []

    def nested(_m: nn.Module, _a: Any, _o: Any) -> None:
        if not inner:
            inner.append(lv.trace(Toy(), X * 2, "/*"))
            inner.append(lv.trace(model, X * 3, "**/*"))
            inner.append(lv.trace(model.child, X * 4, "/*"))

    model.child.register_forward_hook(nested)
    outer = lv.trace(model, X, ["/*", "child/*"])
    assert all(torch.equal(outer[s], t) for s, t in toy_by_hand(X).items())
    assert [s for s in outer.sites if s.startswith("/")] == list(toy_by_hand(X))
    assert all(torch.equal(inner[0][s], t) for s, t in toy_by_hand(X * 2).items())
    assert all(torch.equal(inner[1][s], t) for s, t in toy_by_hand(X * 3).items())
    assert inner[2].sites == ("/mul", "/add", "/softmax")


def test_a_nested_capture_of_the_same_part_is_counted_once_by_each() -> None:
    """Both runs look at the inner child: the outer must not take the inner's copies for ops."""

    class Nests(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Child()
            self.inner: lv.Trace | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.inner = lv.trace(self.child, x, ["/*", "/*:input"])
            return self.child(x)

    model = Nests()
    outer = lv.trace(model, X, "child/*")
    assert model.inner is not None and len(model.inner) == 6
    assert {s.partition("@")[0] for s in outer.sites} == {"child/mul", "child/add", "child/softmax"}
    assert torch.equal(outer["child/softmax@1"], Child()(X))


# --- errors --------------------------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self, error: type[BaseException], caught: bool = False) -> None:
        super().__init__()
        self.child = Raises(error)
        self.caught = caught

    def forward(self, x: Tensor) -> Tensor:
        x = x.exp()
        try:
            x = self.child(x)
        except BaseException:
            if not self.caught:
                raise
        return x.log()


class Raises(nn.Module):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        x = x.neg()
        raise self.error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_no_mode_and_no_hook(error: type[BaseException]) -> None:
    model = Fails(error)
    with pytest.raises(error):
        lv.trace(model, X, "**/*")
    assert modes() == []
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_model_that_catches_errors_goes_on_with_its_own_ops(error: type[BaseException]) -> None:
    trace = lv.trace(Fails(error, caught=True), X, "**/*")
    assert trace.sites == ("/exp", "child/neg", "/log")


def test_a_wrong_edit_ends_the_run_also_where_the_model_catches_it() -> None:
    class Catches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            try:
                return x.exp()
            except Exception:
                return x

    with pytest.raises(lv.InterventionError, match=r"add at /exp"):
        lv.trace(Catches(), X, (), lv.add("/exp", torch.ones(9)))


def test_an_op_of_no_tensor_is_no_op() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.sum().item() > 0 and x.size(0) and bool((x > 5).any()) and torch.equal(x, x):
                return x
            return x.exp()

    trace = lv.trace(Asks(), X, ["/*", "/item", "/exp.3", "/epx"])
    assert trace.sites == ("/sum", "/gt", "/any", "/exp")
    assert "this forward (Asks) ran sum" in trace.missed["/item"]
    assert "Did you mean 'exp'" in trace.missed["/exp.3"]
    assert "Did you mean 'exp'" in trace.missed["/epx"]


def test_a_site_that_never_passed_says_what_did() -> None:
    said = r"sofmax.*ran mul, add, softmax.*'softmax'"
    with pytest.raises(lv.IdleInterventionError, match=said) as caught:
        lv.trace(Toy(), X, "child/mul", lv.zero("child/sofmax"))
    assert isinstance(caught.value.trace, lv.Trace)
    assert caught.value.trace.reports[0].calls == 0
    globbed = lv.trace(Toy(), X, ["**/sofmax", "**/softmax"])
    assert set(globbed.missed) == {"**/sofmax"}
    assert "none of the" in globbed.missed["**/sofmax"]
    assert set(globbed.sites) == {"/softmax", "child/softmax", "owner.inner/softmax"}
    with pytest.raises(lv.SiteError, match="no module 'chil'"):
        lv.trace(Toy(), X, "chil/softmax")
    with pytest.raises(lv.SiteError, match="glob of ops"):
        lv.trace(Toy(), X, "child/soft*.1")
    empty = lv.trace(nn.Sequential(nn.ReLU()), X, "/*")
    assert "no ops of its own" in empty.missed["/*"]


def test_a_glob_of_ops_keeps_to_the_limit() -> None:
    trace = lv.trace(Toy(), X, "/*", max_bytes=2 * X.nbytes)
    assert trace.sites == ("/add", "/add.1")
    assert "left out" in trace.missed["/mul"]


def test_selecting_tells_ops_from_modules() -> None:
    trace = lv.trace(Toy(), X, ["**", "**/*"])
    assert set(trace.select("**")) == {":output", "child", "owner.inner"}
    assert set(trace.select("**/softmax")) == {"/softmax", "child/softmax", "owner.inner/softmax"}
    assert set(trace.select("child/*")) == {"child/mul", "child/add", "child/softmax"}


def test_a_copy_made_meanwhile_is_not_looked_at() -> None:
    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Child()

        def forward(self, x: Tensor) -> Tensor:
            other = copy.deepcopy(self.child)
            assert torch.equal(other(x), self.child(x))
            return self.child(x).exp()

    model = Copies()
    trace = lv.trace(model, X, ["child/mul", "/*"])
    assert trace.sites == ("child/mul@0", "child/mul@1", "/exp")
    assert not copy.deepcopy(model).child._forward_hooks


def test_random_numbers_are_those_of_a_plain_call() -> None:
    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(x, 0.5) + torch.rand(4) + torch.empty(4).normal_()

    model = Drops()
    torch.manual_seed(3)
    expected = model(X)
    after = torch.rand(2)
    torch.manual_seed(3)
    trace = lv.trace(model, X, ["**/*", "**/*:input", ":output"])
    assert torch.equal(trace[":output"], expected)
    assert torch.equal(torch.rand(2), after)
    assert {"/dropout", "/rand", "/normal_"} <= set(trace.sites)


def test_compiled_functions_show_their_ops() -> None:
    inner = torch.compile(lambda x: (x * 2).exp(), backend="eager")

    class Uses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return inner(x) + 1

    model = Uses()
    model(X)
    trace = lv.trace(model, X, "/*")
    assert trace.sites == ("/mul", "/exp", "/add")
    assert torch.equal(model(X), (X * 2).exp() + 1)


def test_a_dropped_trace_of_ops_is_freed_at_once() -> None:
    import gc
    import weakref

    model = Toy()
    gc.collect()
    gc.disable()
    try:
        trace = lv.trace(model, X, ["/*", "/*:input"], lv.scale("/softmax", 2))
        kept = [weakref.ref(t) for t in trace.values()]
        del trace
        assert not any(ref() is not None for ref in kept)
    finally:
        gc.enable()


# --- PyTorch's fused paths ------------------------------------------------------------------------


class Around(nn.Module):
    """A transformer encoder, and ops before, after and inside what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.alone = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.encoder(x.tanh(), src_key_padding_mask=mask)
        return self.alone(x, x, x, need_weights=False)[0].exp()


def test_fused_paths_stay_fused_around_ops() -> None:
    model = Around().eval()
    mask = torch.zeros(3, 4, dtype=torch.bool)
    mask[0, 2:] = True
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        expected = model(x, mask)
    for sites in ["/*", "**/*", "**/linear", "encoder.layers.*.linear1/*"]:
        trace = lv.trace(model, (x, mask), [sites, ":output"])
        assert torch.equal(trace[":output"], expected), sites
    trace = lv.trace(model, (x, mask), "**/*")
    assert trace.sites[0] == "/tanh" and trace.sites[-1] == "/exp"
    assert {"/tanh", "/exp", "encoder.layers.0.linear1/linear"} <= set(trace.sites)
    assert "fused path" in trace.missed["encoder.layers.0.self_attn/*"]
    with pytest.raises(lv.SiteError, match="set_fastpath_enabled"):
        lv.trace(model, (x, mask), "encoder.layers.0.self_attn/softmax")
    with pytest.raises(lv.SiteError, match="set_fastpath_enabled"):
        lv.source(model, "alone", (x, mask))


def test_ops_of_attention_with_its_fused_path_off() -> None:
    model = Around().eval()
    mask = torch.zeros(3, 4, dtype=torch.bool)
    x = torch.randn(3, 4, 8)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            expected = model(x, mask)
        trace = lv.trace(model, (x, mask), ["**/*", ":output"])
        assert torch.equal(trace[":output"], expected)
        assert "alone/multi_head_attention_forward" in trace
        assert lv.source(model, "alone", (x, mask)).sites
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_tokens_are_not_guessed_where_heads_are_as_many() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    model, ids = LlamaForCausalLM(config).eval(), torch.tensor([[1, 2, 3, 4]])
    model.set_attn_implementation("eager")
    at = "model.layers.0.self_attn"
    trace = lv.trace(model, ids, [f"{at}/softmax", "model.layers.0.mlp/mul"])
    assert trace[f"{at}/softmax"].shape == (1, 4, 4, 4)
    assert not trace.aligned(f"{at}/softmax") and trace.aligned("model.layers.0.mlp/mul")
    with pytest.raises(lv.InterventionError, match="either may be the tokens"):
        lv.trace(model, ids, (), lv.zero(f"{at}/softmax", lv.at(token=-1)))
    edited = lv.trace(model, ids, "**/mul", lv.zero("model.layers.0.mlp/mul", lv.at(token=-1)))
    assert not edited["model.layers.0.mlp/mul"][0, -1].any()
