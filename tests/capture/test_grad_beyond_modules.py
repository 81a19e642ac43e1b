"""Gradients together with ops, skips and cut records, against autograd by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"


def loss(output: Any) -> Tensor:
    return output.logits.float().log_softmax(-1)[:, -1, 7].sum()


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The gradients of the parameters, taken off them."""
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor], close: float = 0.0) -> bool:
    return one.keys() == other.keys() and all(
        torch.allclose(one[n], other[n], rtol=0, atol=close) for n in one
    )


class Toy(nn.Module):
    """Ops whose gradients can be had from the parts themselves; the last one writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.matmul(self.linear(x), x.mT)
        weighed = torch.matmul(torch.softmax(scores, -1), x)
        weighed.mul_(3)
        return weighed.tanh()


def test_gradients_at_ops_are_autograds() -> None:
    """Both sides of each op; a value that is written in place afterwards is the one that passed."""
    torch.manual_seed(0)
    model, x = Toy(), torch.randn(2, 5, 4)
    by_hand: dict[str, Tensor] = {"/matmul.0": torch.matmul(model.linear(x), x.mT)}
    by_hand["/softmax"] = torch.softmax(by_hand["/matmul.0"], -1)
    by_hand["/matmul.1"] = torch.matmul(by_hand["/softmax"], x)
    by_hand["/mul_"] = by_hand["/matmul.1"] * 3
    by_hand["/tanh"] = by_hand["/mul_"].tanh()
    wanted = torch.autograd.grad(by_hand["/tanh"].square().sum(), [*by_hand.values()])
    expected = dict(zip(by_hand, wanted, strict=True))
    expected["/softmax:input"] = expected["/matmul.0"]
    expected["/tanh:input"] = expected["/mul_"]
    expected["/mul_:input"] = expected["/matmul.1"]

    trace = lv.trace(model, x, list(expected), grad=True, keep=lv.at(batch=1))
    assert all(not t.requires_grad for t in trace.values())
    trace.output.square().sum().backward()
    for site, want in expected.items():
        assert trace.grad(site).shape == trace[site].shape
        assert torch.equal(trace.grad(site), want[1:2]), site


def test_gradients_of_an_edited_op(tiny_llama: Any, monkeypatch: Any) -> None:
    """Head 1 of the attention weights off: every weight's gradient as with softmax replaced."""
    tiny_llama.set_attn_implementation("eager")
    site, softmax = f"{ATTENTION}/softmax", nn.functional.softmax
    kept: list[Tensor] = []

    def off(scores: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found: Tensor = softmax(scores, *args, **kwargs)
        if len(kept) == 1:
            found = found.clone()
            found[:, 1] = 0
        found.retain_grad()
        kept.append(found)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(nn.functional, "softmax", off)
        loss(tiny_llama(IDS)).backward()
    expected = weights(tiny_llama)
    edit = lv.zero(site, (slice(None), 1))
    trace = lv.trace(tiny_llama, IDS, [site, f"{ATTENTION}/*"], edit, grad=True)
    loss(trace.output).backward()
    given = kept[1].grad
    assert torch.equal(trace[site], kept[1])
    assert given is not None and torch.equal(trace.grad(site), given)
    assert same(weights(tiny_llama), expected)


@pytest.mark.parametrize("value", ["input", "tensor"])
def test_gradients_past_a_skipped_module(tiny_llama: Any, value: str) -> None:
    """As with the module replaced by hand: nothing for its weights, the caller's tensor its own."""
    given = torch.randn(2, 6, 16, requires_grad=True)
    skipped = tiny_llama.get_submodule(MLP)

    def forward(hidden: Tensor) -> Tensor:
        return hidden.clone() if value == "input" else given * 2

    skipped.forward = forward
    loss(tiny_llama(IDS)).backward()
    del skipped.forward
    expected, mine = weights(tiny_llama), given.grad
    given.grad = None
    assert not any(n.startswith(MLP) for n in expected)
    skip = lv.skip(MLP, "input" if value == "input" else given * 2)
    trace = lv.trace(tiny_llama, IDS, [MLP, f"{MLP}:input"], skip, grad=True)
    loss(trace.output).backward()
    assert same(weights(tiny_llama), expected)
    assert trace.grad(MLP).shape == (2, 6, 16) and trace.grad(MLP).any()
    if value == "tensor":
        assert mine is not None and given.grad is not None and torch.equal(given.grad, mine)
        assert torch.equal(given.grad, 2 * trace.grad(MLP))
    else:
        # The input's gradient also has what the module's caller makes of it; here nothing else.
        assert torch.equal(trace.grad(f"{MLP}:input"), trace.grad(MLP))


@pytest.mark.parametrize("reentrant", [False, True])
def test_no_skip_and_no_op_is_edited_where_backward_computes_again(
    tiny_llama: Any, reentrant: bool
) -> None:
    """Backward would run the module after all, and mix two models' gradients."""
    tiny_llama.train()
    tiny_llama.gradient_checkpointing_enable({"use_reentrant": reentrant})
    tiny_llama.enable_input_require_grads()
    for edit in (lv.skip(MLP, "input"), lv.scale(f"{MLP}/mul", 2.0)):
        with pytest.raises(lv.InterventionError, match="gradient_checkpointing_disable"):
            lv.trace(tiny_llama, IDS, (), edit, grad=True)
        assert lv.trace(tiny_llama, IDS, (), edit).reports[0].calls == 1
        assert "forward" not in tiny_llama.get_submodule(MLP).__dict__


@pytest.mark.parametrize(
    ("keep", "cut"),
    [
        (lv.at(token=-1), lambda t: t[:, -1:]),
        ((slice(None), slice(1, 3), slice(0, 8, 2)), lambda t: t[:, 1:3, 0:8:2]),
        (torch.bfloat16, lambda t: t.bfloat16()),
        ({"**.mlp": lv.at(batch=0), "**": torch.float64}, lambda t: t[:1].double()),
    ],
    ids=["token", "index", "dtype", "both"],
)
def test_gradients_of_cut_records_beside_an_edit(tiny_llama: Any, keep: Any, cut: Any) -> None:
    """The cut is of the gradient by hand; what the model computes is not cut."""
    kept: list[Tensor] = []

    def hook(_m: nn.Module, _a: Any, output: Tensor) -> Tensor:
        output = output * 2
        output.retain_grad()
        kept.append(output)
        return output

    handle = tiny_llama.get_submodule(MLP).register_forward_hook(hook)
    loss(tiny_llama(IDS)).backward()
    handle.remove()
    expected = weights(tiny_llama)
    trace = lv.trace(tiny_llama, IDS, MLP, lv.scale(MLP, 2), grad=True, keep=keep)
    loss(trace.output).backward()
    assert torch.equal(trace[MLP], cut(kept[0].detach()))
    assert torch.equal(trace.grad(MLP), cut(kept[0].grad))
    assert trace.grad(MLP).dtype == trace[MLP].dtype
    assert same(weights(tiny_llama), expected)
