"""Gradients at sites against autograd by hand, and what a run with them leaves behind: nothing."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])


def by_hand(model: nn.Module, loss: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients at every module's first output and first positional input, by ``retain_grad``."""
    kept: dict[str, Tensor] = {}
    handles = []

    def keep(name: str, value: Any) -> None:
        tensor = value[0] if isinstance(value, (tuple, list)) and value else value
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            tensor.retain_grad()
            kept[name] = tensor

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda m, a, o, n=name: keep(n, o)))
        handles.append(module.register_forward_pre_hook(lambda m, a, n=name: keep(f"{n}:input", a)))
    output = model(IDS)
    for handle in handles:
        handle.remove()
    model.zero_grad()
    loss(output).backward()
    weights = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return {n: t.grad for n, t in kept.items() if t.grad is not None}, weights


def loss(output: Any) -> Tensor:
    return output.logits.float().log_softmax(-1)[:, -1, 7].sum()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_autograds_by_hand(
    tiny_llama: Any, tiny_gpt2: Any, kind: str, dtype: torch.dtype
) -> None:
    model = (tiny_llama if kind == "llama" else tiny_gpt2).to(dtype)
    expected, weights = by_hand(model, loss)
    trace = lv.trace(model, IDS, ["**", "**:input"], grad=True)
    assert all(not t.requires_grad and t.grad_fn is None for t in trace.values())
    loss(trace.output).backward()
    compared = 0
    for site, want in expected.items():
        if site in trace:
            assert torch.equal(trace.grad(site), want), site
            assert trace.grad(site).shape == trace[site].shape
            compared += 1
    assert compared > 40
    got = {n: p.grad for n, p in model.named_parameters()}
    assert all(torch.equal(got[n], w) for n, w in weights.items())


def test_without_a_gradient_there_is_a_reason(tiny_llama: Any) -> None:
    site = "model.layers.1"
    with pytest.raises(lv.NotRecordedError, match="without grad=True"):
        lv.trace(tiny_llama, IDS, site).grad(site)
    trace = lv.trace(tiny_llama, IDS, [site, "model.embed_tokens:input", "lm_head"], grad=True)
    with pytest.raises(lv.NotRecordedError, match=r"call backward\(\)"):
        trace.grad(site)
    with pytest.raises(lv.NotRecordedError, match="needed no gradient"):
        trace.grad("model.embed_tokens:input")
    with pytest.raises(lv.NotRecordedError, match="not asked for"):
        trace.grad("model.layers.0")
    trace.output.logits.sum().backward()
    assert trace.grad(site).abs().sum() > 0
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), pytest.raises(lv.InputError, match=mode.__name__):
            lv.trace(tiny_llama, IDS, site, grad=True)


def test_a_saved_trace_has_no_gradients(tiny_llama: Any, tmp_path: Any) -> None:
    trace = lv.trace(tiny_llama, IDS, "lm_head", grad=True)
    trace.output.logits.sum().backward()
    trace.save(tmp_path / "t.safetensors")
    again = lv.load(tmp_path / "t.safetensors")
    assert torch.equal(again["lm_head"], trace["lm_head"]) and again.plan.grad
    with pytest.raises(lv.NotRecordedError, match="read from a file"):
        again.grad("lm_head")


def test_a_gradient_is_of_the_value_that_passed_and_adds_up() -> None:
    """The value is written in place afterwards; two backwards add up as in ``.grad``."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            h = self.b(self.a(x))
            h *= 5
            return h

    model, x = Writes(), torch.randn(2, 3)
    trace = lv.trace(model, x, "b", grad=True)
    trace.output.sum().backward(retain_graph=True)
    assert trace.grad("b").unique().tolist() == [5.0]
    (2 * trace.output).sum().backward()
    assert trace.grad("b").unique().tolist() == [15.0]


def test_a_vector_of_the_caller_gets_its_gradient(tiny_llama: Any) -> None:
    site = "model.layers.0"
    vector = torch.randn(16, requires_grad=True)
    edit = lv.add(site, vector * 2, lv.at(token=-1))
    trace = lv.trace(tiny_llama, IDS, site, edit, grad=True)
    loss(trace.output).backward()
    assert vector.grad is not None
    expected = 2 * trace.grad(site)[:, -1].sum(0)
    assert torch.allclose(vector.grad, expected, atol=1e-6)
    mine = torch.zeros(16, requires_grad=True)

    def hook(_m: nn.Module, _a: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, -1] += vector.detach() * 2 + mine
        return output

    handle = tiny_llama.get_submodule(site).register_forward_hook(hook)
    loss(tiny_llama(IDS)).backward()
    handle.remove()
    assert mine.grad is not None and torch.allclose(vector.grad, 2 * mine.grad, atol=1e-6)
    plain = lv.trace(tiny_llama, IDS, site, edit)
    assert not plain[site].requires_grad and torch.equal(plain[site], trace[site])


def test_train_mode_draws_a_plain_calls_numbers(tiny_gpt2: Any) -> None:
    """Dropout at work: the very output, random state and gradients of a plain call."""
    tiny_gpt2.train()
    torch.manual_seed(5)
    plain = tiny_gpt2(IDS)
    state = torch.get_rng_state()
    loss(plain).backward()
    expected = tiny_gpt2.transformer.wte.weight.grad.clone()
    tiny_gpt2.zero_grad()
    torch.manual_seed(5)
    trace = lv.trace(tiny_gpt2, IDS, "**", grad=True)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(trace.output.logits, plain.logits)
    assert all(m.training for m in tiny_gpt2.modules())
    loss(trace.output).backward()
    assert torch.equal(tiny_gpt2.transformer.wte.weight.grad, expected)
    torch.manual_seed(5)
    assert torch.equal(lv.trace(tiny_gpt2, IDS, "**", keep_output=True).output.logits, plain.logits)
    torch.manual_seed(5)
    limited = lv.trace(tiny_gpt2, IDS, ["lm_head"], max_bytes=1 << 20, keep_output=True)
    assert torch.equal(limited.output.logits, plain.logits), "an estimate draws nothing"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_again_and_adds_no_calls(tiny_llama: Any, reentrant: bool) -> None:
    tiny_llama.train()
    expected, _ = by_hand(tiny_llama, loss)
    tiny_llama.gradient_checkpointing_enable({"use_reentrant": reentrant})
    tiny_llama.enable_input_require_grads()
    outer, inner = "model.layers.1", "model.layers.1.mlp"
    trace = lv.trace(tiny_llama, IDS, [outer, inner], grad=True)
    loss(trace.output).backward()
    assert trace.sites == (inner, outer), "one call each"
    assert torch.equal(trace.grad(outer), expected[outer])
    if reentrant:
        with pytest.raises(lv.NotRecordedError, match="checkpointing"):
            trace.grad(inner)
    else:
        assert torch.equal(trace.grad(inner), expected[inner])
    with pytest.raises(lv.InterventionError, match="gradient_checkpointing_disable"):
        lv.trace(tiny_llama, IDS, (), lv.scale(inner, 2.0), grad=True)
    edited = lv.trace(tiny_llama, IDS, (), lv.scale(inner, 2.0))
    assert edited.reports[0].calls == 1, "without gradients nothing is computed again"


def test_nothing_is_left_on_the_model_and_a_dropped_trace_is_freed() -> None:
    class Leaf(nn.Module):
        """Hands a parameter of its own, and the caller's leaf, to a module."""

        def __init__(self) -> None:
            super().__init__()
            self.token, self.inner = nn.Parameter(torch.ones(3)), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.token) * 2 + self.inner(x)

    model, x = Leaf(), torch.ones(3, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        trace = lv.trace(model, x, "inner:input", grad=True)
        trace.output.sum().backward()
        assert trace.grad("inner:input@1").tolist() == [1, 1, 1]
        with pytest.raises(lv.NotRecordedError, match="parameter of the model"):
            trace.grad("inner:input@0")
        assert not model.token._backward_hooks
        copy.deepcopy(model)
        record, output = weakref.ref(trace["inner:input@1"]), weakref.ref(trace.output)
        del trace
        assert record() is None and output() is None
        assert not x._backward_hooks
    finally:
        gc.enable()
