"""Values between ops in every step of a generation, against what plain Python puts in their way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2]])
ATTENTION, MLP = "model.layers.1.self_attn", "model.layers.1.mlp"
NEW, LAYERS = 4, 3
FREE: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}


@contextmanager
def softmaxes(monkeypatch: Any) -> Iterator[list[Tensor]]:
    """What every softmax of the attentions gives, in order."""
    kept: list[Tensor] = []
    softmax = nn.functional.softmax

    def keep(*args: Any, **kwargs: Any) -> Tensor:
        kept.append(softmax(*args, **kwargs))
        return kept[-1]

    with monkeypatch.context() as patched:
        patched.setattr(nn.functional, "softmax", keep)
        yield kept


@contextmanager
def into(module: nn.Module, edit: Any = None) -> Iterator[list[Tensor]]:
    """The inputs of a module in all forwards, changed by `edit`."""
    kept: list[Tensor] = []

    def hook(_m: nn.Module, args: Any) -> Any:
        value = args[0] if edit is None else edit(args[0].clone())
        kept.append(value.clone())
        return (value,)

    handle = module.register_forward_pre_hook(hook)
    yield kept
    handle.remove()


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("cached", [True, False])
def test_records_are_each_steps_own(tiny_llama: Any, monkeypatch: Any, cached: bool) -> None:
    """Named, by glob and on the input side, in every step; ids, hooks and calls as without."""
    tiny_llama.set_attn_implementation("eager")
    options = {**FREE, "use_cache": cached}
    with softmaxes(monkeypatch) as kept, into(tiny_llama.get_submodule(f"{MLP}.down_proj")) as mul:
        ids = tiny_llama.generate(IDS, do_sample=False, **options)
    sites = [f"{ATTENTION}/softmax", f"{MLP}/*", f"{ATTENTION}/dropout:input", ATTENTION]
    gen = lv.generate(tiny_llama, IDS, sites, **options)
    assert torch.equal(gen.ids, ids) and len(gen) == NEW and len(kept) == NEW * LAYERS
    for i, trace in enumerate(gen):
        assert torch.equal(trace[f"{ATTENTION}/softmax"], kept[i * LAYERS + 1])
        assert torch.equal(trace[f"{ATTENTION}/dropout:input"], kept[i * LAYERS + 1])
        assert torch.equal(trace[f"{MLP}/mul"], mul[i])
        assert not trace.missed and set(trace.sites) == set(gen.step(0).sites)
        assert trace.aligned(f"{MLP}/mul") and not trace.aligned(f"{ATTENTION}/softmax")
    if cached:
        whole = lv.trace(tiny_llama, gen.ids[:, :-1], f"{MLP}/mul")[f"{MLP}/mul"]
        assert (gen.stack(f"{MLP}/mul") - whole).abs().max() <= 1e-5
    assert hooks(tiny_llama) == 0 and torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("token", [2, 7])
def test_an_edit_at_a_position_is_what_a_hook_by_hand_does(tiny_llama: Any, token: int) -> None:
    """The product in an MLP is its down projection's input; token 7 is the one column of step 2."""
    first = [0]

    def edit(value: Tensor) -> Tensor:
        start, first[0] = first[0], first[0] + value.shape[1]
        if start <= token < first[0]:
            value[:, token - start] += 3
        return value

    with into(tiny_llama.get_submodule(f"{MLP}.down_proj"), edit) as expected:
        ids = tiny_llama.generate(IDS, do_sample=False, **FREE)
    add = lv.add(f"{MLP}/mul", 3.0, lv.at(token=token))
    gen = lv.generate(tiny_llama, IDS, f"{MLP}/mul", add, **FREE)
    assert torch.equal(gen.ids, ids) and gen.reports[0].calls == 1
    assert all(torch.equal(t[f"{MLP}/mul"], e) for t, e in zip(gen, expected, strict=True))
    uncached = lv.generate(tiny_llama, IDS, (), add, use_cache=False, **FREE)
    for one, other in zip(gen, uncached, strict=True):
        assert one.logits is not None and other.logits is not None
        assert (one.logits - other.logits).abs().max() <= 1e-5


def test_an_op_that_no_step_ran_is_told(tiny_llama: Any) -> None:
    site = f"{MLP}/softmax"
    gen = lv.generate(tiny_llama, IDS, site, **FREE)
    for trace in gen:
        with pytest.raises(lv.NotRecordedError, match=r"ran mul"):
            trace[site]
    with pytest.warns(lv.LensWarning, match="did nothing"):
        lv.generate(tiny_llama, IDS, (), lv.zero(site), **FREE)


def test_ops_of_an_encoder_belong_to_step_0() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    make: Any = T5Config
    model: Any = T5ForConditionalGeneration(make(vocab_size=101, decoder_start_token_id=0, **sizes))
    model.eval()
    norm = "block.0.layer.0.layer_norm"
    alone = lv.trace(model.encoder, IDS, f"{norm}/*")
    gen = lv.generate(model, IDS, [f"encoder.{norm}/*", f"decoder.{norm}/*"], **FREE)
    assert len(alone) > 1, "a norm is several ops"
    assert all(torch.equal(gen.step(0)[f"encoder.{site}"], t) for site, t in alone.items())
    assert {s.split(".")[0] for t in gen.steps[1:] for s in t.sites} == {"decoder"}
    assert all(trace.missed for trace in gen.steps[1:])


def test_an_error_in_a_later_step_leaves_nothing_behind(tiny_llama: Any) -> None:
    """An index that fits the prefill alone."""
    with pytest.raises(lv.InterventionError, match="out of range"):
        lv.generate(tiny_llama, IDS, (), lv.zero(f"{MLP}/mul", (slice(None), 2)), **FREE)
    assert hooks(tiny_llama) == 0 and torch._C._len_torch_function_stack() == 0
