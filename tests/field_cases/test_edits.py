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


@pytest.mark.parametrize("recorded", MODES)
@pytest.mark.parametrize("run", [nullcontext, *MODES])
def test_o19_inference_tensors(tiny_llama: nn.Module, recorded: Any, run: Any) -> None:
    """A trace of any mode patches into any other; nothing of the user's is written to."""
    with recorded():
        source = lv.trace(tiny_llama, IDS, LAYER)
    kept, v = source[LAYER].clone(), torch.ones(16)
    source[LAYER].add_(0)
    with run():
        ids = IDS.clone()
        trace = lv.trace(tiny_llama, ids, LAYER, [lv.patch(LAYER, source), lv.add(LAYER, v)])
    assert torch.equal(trace[LAYER], kept + 1)
    assert torch.equal(source[LAYER], kept) and v.unique().tolist() == [1] and torch.equal(ids, IDS)
    trace[LAYER].add_(1)


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


def tensor_bytes() -> int:
    gc.collect()
    found = (o for o in gc.get_objects() if type(o) is Tensor)
    return sum(o.nbytes for o in found)


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
