"""Ops beside others: modes, threads, nested captures, errors, fused paths."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import lensview as lv

from .toys import Child, Toy, X, modes, toy_by_hand

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
