"""The twin's features against real runs of the whole model, at other sizes than the twin's own."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

from lensview.parallel.twin import Twin, twin_of
from tests.ranks.tp_models import VOCABULARY, Case, make
from tests.ranks.tp_record import Forward, forwards

KINDS = (
    "llama qwen3 gemma2 gpt_oss deepseek_v3 llama4_text mixtral phi3 jamba qwen3_next granite_swa "
    "cohere starcoder2 olmo2 longcat_flash gpt2 bloom mamba"
).split()


def agrees(twin: Twin, real: Forward, cached: bool) -> int:
    """How many leaves of a real forward the twin knows; each must have the twin's features."""
    known = 0
    for (path, side, call, leaf), (tensor, _) in real.seen.items():
        dims = twin.table(False, cached).dims.get((path, side, call), {}).get(leaf)  # type: ignore[arg-type]
        if dims is None:
            continue
        known += 1
        assert len(dims) == tensor.ndim, (path, side, leaf)
        for size, held in zip(dims, tensor.shape, strict=True):
            assert size in (None, 1, held), (path, side, leaf, dims, tensor.shape)
    return known


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_of_a_real_run(kind: str) -> None:
    model = make(Case(kind))
    twin = twin_of(model)
    assert twin.reason == ""
    for step, real in enumerate(forwards(model)):
        known = agrees(twin, real, bool(step))
        assert known >= 0.6 * len(real.seen)  # each expert that loops is a visit more


def test_features_and_tokens_of_known_values() -> None:
    model = make(Case("llama"))
    twin = twin_of(model)
    attention = "model.layers.0.self_attn"
    assert twin.prefill.dims[f"{attention}.k_proj", "output", 0][()] == (None, None, 16)
    assert twin.prefill.dims["lm_head", "output", 0][()] == (None, None, VOCABULARY)
    heads = twin.table(True, False).dims[f"{attention}/transpose.0", "output", 0][()]
    assert heads == (None, 4, None, 8)


def test_a_module_that_runs_twice_has_two_visits() -> None:
    twin = twin_of(make(Case("llama4_text")))
    norm = "model.layers.0.self_attn.qk_norm"
    assert twin.prefill.calls[norm] == 2
    first, second = (twin.prefill.dims[norm, "output", call][()] for call in (0, 1))
    assert (first[2], second[2]) == (4, 2)


def test_heads_times_tokens_are_told_from_tokens() -> None:
    twin = twin_of(make(Case("qwen3_next")))
    visit = ("model.layers.0.linear_attn.norm", "input", 0)
    [mixed] = twin.prefill.mixed[visit, ("hidden_states",)]  # type: ignore[index]
    assert (mixed.dim, mixed.features, mixed.of) == (0, 4, "both")


def test_nothing_of_the_user_is_touched() -> None:
    model = make(Case("mixtral"))
    before = {name: (id(p), p._version) for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    twin = twin_of(model)
    twin.table(True, False)
    assert torch.equal(state, torch.get_rng_state())
    assert before == {name: (id(p), p._version) for name, p in model.named_parameters()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config._experts_implementation != "batched_mm"  # type: ignore[union-attr]
    assert twin_of(model) is twin


def test_a_twin_goes_with_its_model_and_holds_no_weights() -> None:
    model = make(Case("llama"))
    twin = weakref.ref(twin_of(model))
    made = twin()
    assert made is not None and made._model is not None
    assert all(hasattr(p, "fake_mode") for p in made._model.model.parameters())
    del model, made
    gc.collect()
    assert twin() is None


def test_a_model_without_a_configuration_has_no_twin() -> None:
    assert "no configuration" in twin_of(nn.Sequential(nn.Linear(2, 2))).reason


def test_a_kernel_of_attention_has_its_own_table() -> None:
    model = make(Case("llama"))
    weights = ("model.layers.0.self_attn", "output", 0)
    assert (1,) not in twin_of(model).prefill.dims[weights]  # type: ignore[index]
    model.set_attn_implementation("eager")  # type: ignore[operator]
    assert twin_of(model).prefill.dims[weights][1,] == (None, 4, None, None)  # type: ignore[index]


def test_importing_it_loads_no_distributed_tensors() -> None:
    code = (
        "import sys, lensview.parallel.layout, lensview.parallel.twin; "
        "print([m for m in sys.modules if m.startswith('torch.distributed.tensor')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
