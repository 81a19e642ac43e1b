"""Field cases O18 to O21: interventions that fail or miss, and memory."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44], [8, 8, 1, 90, 12]])
LAYER = "model.layers.1"


def hooks(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(IDS).logits
    return out


def test_o18_a_failing_hook_poisons_the_model(tiny_llama: nn.Module) -> None:
    """After an error or an interrupt: no hook, right logits, a model that pickles and copies."""
    before, counts = logits(tiny_llama), hooks(tiny_llama)
    with pytest.raises(
        lv.InterventionError, match=r"add at model\.layers\.1.*\(3,\).*\(2, 5, 16\)"
    ):
        lv.trace(tiny_llama, IDS, "**", lv.add(LAYER, torch.ones(3)))
    assert hooks(tiny_llama) == counts

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = tiny_llama.get_submodule(f"{LAYER}.mlp").register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lv.trace(tiny_llama, IDS, "**", lv.zero(LAYER))
    handle.remove()
    assert hooks(tiny_llama) == counts
    assert torch.equal(logits(tiny_llama), before)
    pickle.dumps(tiny_llama)
    assert torch.equal(logits(copy.deepcopy(tiny_llama)), before)
    assert lv.trace(tiny_llama, IDS, (), lv.add(LAYER, torch.ones(16))).reports[0].changed == 160


MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]
EDITS = ["patch", "put", "add"]


def edit_of(kind: str, source: lv.Trace, v: Tensor) -> lv.Intervention:
    if kind == "patch":
        return lv.patch(LAYER, source)
    return lv.put(LAYER, v) if kind == "put" else lv.add(LAYER, v)


def by_hand(kind: str, hidden: Tensor, kept: Tensor, v: Tensor) -> Tensor:
    return {"patch": kept, "put": v.expand_as(hidden), "add": hidden + v}[kind]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.parametrize("recorded", MODES)
@pytest.mark.parametrize("run", [nullcontext, *MODES])
def test_o19_inference_tensors(tiny_llama: nn.Module, recorded: Any, run: Any, kind: str) -> None:
    """A trace of any mode patches into any other; nothing of the user's is written to."""
    with recorded():
        source, v = lv.trace(tiny_llama, IDS, LAYER), torch.linspace(-1, 1, 16)
        plain = lv.trace(tiny_llama, IDS.flip(1), LAYER)[LAYER]
    kept, given = source[LAYER].clone(), v.clone()
    source[LAYER].add_(0)
    with run():
        ids = IDS.flip(1)
        trace = lv.trace(tiny_llama, ids, LAYER, edit_of(kind, source, v))
    assert torch.equal(trace[LAYER], by_hand(kind, plain, kept, given))
    assert torch.equal(source[LAYER], kept) and torch.equal(v, given)
    assert torch.equal(ids, IDS.flip(1))
    assert not trace[LAYER].is_inference() and not trace[LAYER].requires_grad
    trace[LAYER].add_(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", EDITS)
@pytest.mark.parametrize("recorded", MODES)
def test_o19_inference_tensors_in_a_run_with_gradients(
    tiny_llama: Any, recorded: Any, kind: str
) -> None:
    """Backward through an edited run: the gradients of a hook by hand, the caller's leaf whole."""
    with recorded():
        source, v = lv.trace(tiny_llama, IDS, LAYER), torch.linspace(-1, 1, 16)
    kept, given = source[LAYER].clone(), v.clone()
    leaf = tiny_llama.get_input_embeddings()(IDS.flip(1)).detach().requires_grad_()
    before = leaf.detach().clone()

    handle = tiny_llama.get_submodule(LAYER).register_forward_hook(
        lambda _m, _a, hidden: by_hand(kind, hidden, kept, given.clone())
    )
    tiny_llama(inputs_embeds=leaf).logits.square().sum().backward()
    handle.remove()
    weights = {n: p.grad for n, p in tiny_llama.named_parameters()}
    wanted, leaf.grad = leaf.grad, None
    tiny_llama.zero_grad()

    inputs = {"inputs_embeds": leaf}
    trace = lv.trace(tiny_llama, inputs, LAYER, edit_of(kind, source, v), grad=True)
    trace.output.logits.square().sum().backward()
    pairs = [(p.grad, weights[n]) for n, p in tiny_llama.named_parameters()]
    for found, want in [(leaf.grad, wanted), *pairs]:
        # What an edit cuts off has no gradient by hand, and zeros here.
        assert torch.equal(found, want) if want is not None else found is None or not found.any()
    assert (wanted is None) == (kind != "add") and weights["model.norm.weight"].any()
    assert torch.equal(leaf.detach(), before) and torch.equal(v, given)
    assert torch.equal(source[LAYER], kept)
    trace[LAYER].add_(1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", ["scale", "clamp", "project_out", "mean", "skip"])
def test_o19_values_of_inference_mode_go_through_a_backward(tiny_llama: Any, make: str) -> None:
    """Operations that multiply by a value of the user's save it for backward."""
    with torch.inference_mode():
        v, source = torch.linspace(-1, 1, 16), lv.trace(tiny_llama, IDS, LAYER)
    edits = {
        "scale": lambda v: lv.scale(LAYER, v),
        "clamp": lambda v: lv.clamp(LAYER, -0.5, 0.5),
        "project_out": lambda v: lv.project_out(LAYER, v),
        "mean": lambda v: lv.mean(LAYER, source),
        "skip": lambda v: lv.skip(f"{LAYER}.mlp", v.expand(2, 5, 16)),
    }
    found = []
    for value in (v, torch.linspace(-1, 1, 16)):
        tiny_llama.zero_grad()
        trace = lv.trace(tiny_llama, IDS, LAYER, edits[make](value), grad=True)
        trace.output.logits.square().sum().backward()
        found.append({n: p.grad for n, p in tiny_llama.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and "model.norm.weight" in found[0]
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


def test_o20_edits_that_hit_the_wrong_place_or_nothing(tiny_llama: nn.Module) -> None:
    """Indices are never clipped, shapes never guessed; a patch carries a run over."""
    model, x = nn.Identity(), torch.randn(2, 5, 4)
    trace = lv.trace(model, x, ":output", lv.add(":output", torch.arange(4.0)))
    assert torch.equal(trace[":output"], x + torch.arange(4.0))
    refused: list[tuple[Any, Any, str]] = [
        (torch.ones(2, 4), (slice(None), slice(1, 3)), "exactly 3 dims"),
        (1.0, (slice(None), slice(3, 99)), "out of range"),
        (1.0, (slice(None), slice(7, 9)), "out of range"),
        (1.0, (slice(None), -6), "out of range"),
    ]
    for value, index, text in refused:
        with pytest.raises(lv.InterventionError, match=text):
            lv.trace(model, x, (), lv.add(":output", value, index))
    with pytest.raises(lv.InterventionError, match="2 heads"):
        lv.trace(tiny_llama, IDS, (), lv.zero("model.layers.0.self_attn.k_proj", lv.at(head=3)))
    with pytest.raises(lv.InterventionError, match="int64"):
        lv.trace(model, torch.arange(4), (), lv.scale(":output", 2))

    source = lv.trace(tiny_llama, IDS, LAYER)
    own = lv.trace(tiny_llama, IDS, (), lv.patch(LAYER, source))
    assert own.reports[0].changed == 0 and source.logits is not None
    assert own.logits is not None and torch.equal(own.logits, source.logits)
    other = lv.trace(tiny_llama, IDS.flip(1), (), lv.patch(LAYER, source))
    assert other.logits is not None and torch.equal(other.logits, source.logits)


@pytest.mark.parametrize("layer", ["model.embed_tokens", "model.layers.0", LAYER, "model.norm"])
def test_o20_a_patch_of_a_whole_layer_carries_the_run_over(
    tiny_llama: nn.Module, layer: str
) -> None:
    """Into itself it changes no bit anywhere; A's layer in B gives A's logits, all positions."""
    a = lv.trace(tiny_llama, IDS, "**", keep_output=True)
    own = lv.trace(tiny_llama, IDS, "**", lv.patch(layer, a), keep_output=True)
    assert own.reports[0].changed == 0 and all(torch.equal(own[s], a[s]) for s in a)
    other = lv.trace(tiny_llama, IDS.flip(1), (), lv.patch(layer, a), keep_output=True)
    assert other.reports[0].changed > 0
    assert torch.equal(other.output.logits, a.output.logits)


def test_o20_an_overflow_of_float16_is_flagged() -> None:
    """60000 * 2 is infinite in float16; what was infinite before is not counted."""
    x = torch.tensor([[60000.0, 1.0, float("inf")]]).half()
    with pytest.warns(lv.LensWarning, match=r"scale.*: 1 elements"):
        trace = lv.trace(nn.Identity(), x, ":output", lv.scale(":output", 2))
    assert trace[":output"].tolist() == [[float("inf"), 2.0, float("inf")]]
    assert trace.reports[0].overflowed == 1
    same = lv.trace(nn.Identity(), x.float(), (), lv.scale(":output", 2))
    assert same.reports[0].overflowed == 0


def test_o20_heads_that_have_a_dim_of_their_own(tiny_llama: Any) -> None:
    """Head 1 of 4 in (B, H, T, T) and (B, T, H, D), against that head's columns before o_proj."""
    tiny_llama.set_attn_implementation("eager")
    attention = "model.layers.0.self_attn"
    weights, values = f"{attention}/softmax", f"{attention}/contiguous"

    def cut(_m: nn.Module, args: Any) -> Any:
        hidden = args[0].clone()
        hidden[..., 4:8] = 0
        return (hidden,)

    handle = tiny_llama.get_submodule(f"{attention}.o_proj").register_forward_pre_hook(cut)
    expected = logits(tiny_llama)
    handle.remove()
    assert not torch.equal(expected, logits(tiny_llama))
    plain = lv.trace(tiny_llama, IDS, [weights, values])
    assert plain[weights].shape == (2, 4, 5, 5) and plain[values].shape[2:] == (4, 4)
    for edit in (
        lv.zero(weights, (slice(None), 1)),
        lv.zero(values, (slice(None), slice(None), 1)),
        lv.zero(f"{attention}.o_proj:input", lv.at(head=1)),
    ):
        run = lv.trace(tiny_llama, IDS, (), edit, keep_output=True)
        assert torch.allclose(run.output.logits, expected, rtol=0, atol=1e-6), edit
    for edit, text in (
        (lv.zero(weights, lv.at(head=1)), "index the dim itself"),
        (lv.zero(weights, (slice(None), 4)), "out of range"),
        (lv.put(values, torch.ones(5, 4, 4), (0,)), "exactly 4 dims"),
        (lv.zero(f"{attention}:output[1]", lv.at(head=4)), "4 heads|size 4"),
        (lv.zero(f"{attention}.v_proj", lv.at(head=2)), "2 heads"),
    ):
        with pytest.raises(lv.InterventionError, match=text):
            lv.trace(tiny_llama, IDS, (), edit)


def tensor_bytes() -> int:
    gc.collect()
    found = (o for o in gc.get_objects() if type(o) is Tensor)
    return sum(o.nbytes for o in found if o.layout is torch.strided)


def test_o21_keeping_everything_on_the_gpu(tiny_llama: nn.Module) -> None:
    """A loop in train mode, without no_grad: flat, no graph, nothing on the modules."""
    tiny_llama.train()
    attributes = [set(m.__dict__) for m in tiny_llama.modules()]
    sizes = []
    for _ in range(50):
        trace = lv.trace(tiny_llama, IDS, LAYER)
        sizes.append(tensor_bytes())
    assert len(set(sizes[1:])) == 1
    assert trace.sites == (LAYER,) and trace.output is None
    assert trace[LAYER].grad_fn is None and not trace[LAYER].requires_grad
    assert [set(m.__dict__) for m in tiny_llama.modules()] == attributes
    limited = lv.trace(tiny_llama, IDS, "**", max_bytes=1 << 12)
    assert sum({t.data_ptr(): t.nbytes for t in limited.values()}.values()) <= 1 << 12
    assert all("max_bytes" in reason for reason in limited.missed.values()) and limited.missed


def test_o21_what_a_trace_holds_is_estimated_and_nothing_else(tiny_llama: nn.Module) -> None:
    """Bytes held are those of the records, within the estimate and a fifth of it."""
    sites = ["model.layers.*", "model.layers.*.mlp:input", "lm_head"]
    lv.trace(tiny_llama, IDS, sites)
    before = tensor_bytes()
    trace = lv.trace(tiny_llama, IDS, sites)
    held, records = tensor_bytes() - before, {t.data_ptr(): t.nbytes for t in trace.values()}
    assert trace.logits is not None and trace.tokens is not None
    beside = [trace.logits, trace.tokens.ids, trace.tokens.mask]
    assert held == sum(records.values()) + sum(t.nbytes for t in beside)
    expected = lv.estimate(tiny_llama, IDS, sites)
    assert expected.sites == {site: tensor.nbytes for site, tensor in trace.items()}
    assert sum(records.values()) <= expected.total <= 1.2 * sum(records.values())
    del trace, beside
    assert tensor_bytes() == before


@pytest.mark.parametrize("keep", ["output", "grad"])
def test_o21_a_graph_is_held_by_those_alone_who_asked(tiny_llama: nn.Module, keep: str) -> None:
    """Captures with their outputs, or with gradients: each is gone with its trace."""
    tiny_llama.train()
    sizes = []
    for _ in range(6):
        asked: dict[str, Any] = {"keep_output": True} if keep == "output" else {"grad": True}
        trace = lv.trace(tiny_llama, IDS, "**", **asked)
        assert trace.output.logits.requires_grad == (keep == "grad")
        assert all(t.grad_fn is None and not t.requires_grad for t in trace.values())
        sizes.append(tensor_bytes())
    assert len(set(sizes[1:])) == 1
    assert not any(m._backward_hooks for m in tiny_llama.modules())
    assert not any(p._backward_hooks for p in tiny_llama.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_o21_on_a_gpu_the_peak_is_a_plain_forwards_and_what_was_asked(
    tiny_llama: nn.Module,
) -> None:
    """Allocated bytes are flat after run 2, and the peak is a plain forward's and the records."""
    model: Any = tiny_llama.cuda()
    ids = IDS.cuda().repeat(64, 10)
    with torch.no_grad():
        model(ids)
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(ids)
    plain = torch.cuda.max_memory_allocated()
    held = []
    for _ in range(50):
        torch.cuda.reset_peak_memory_stats()
        trace = None
        trace = lv.trace(model, ids, LAYER)
        held.append(torch.cuda.memory_allocated())
        assert torch.cuda.max_memory_allocated() <= plain + 2 * trace[LAYER].nbytes + (1 << 20)
    assert len(set(held[1:])) == 1
