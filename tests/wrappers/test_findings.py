"""lv.findings: what is fine, what must be known, what is refused; as data, and never raising."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3]])


def kinds(model: Any, inputs: Any = None) -> dict[str, str]:
    return {f.kind: f.level for f in lv.findings(model, inputs)}


def test_an_ordinary_model_has_nothing_to_say(tiny_llama: nn.Module) -> None:
    found = lv.findings(tiny_llama, IDS)
    assert list(found) == []
    assert "Nothing stands in the way" in repr(found)


def test_what_is_looked_through_is_fine(tiny_llama: nn.Module) -> None:
    compiled = torch.compile(tiny_llama, backend="eager")
    assert kinds(nn.DataParallel(compiled)) == {"DataParallel": "fine", "compiled": "fine"}
    tiny_llama.compile(backend="eager")
    layers: Any = tiny_llama.get_submodule("model.layers")
    layers[0] = torch.compile(layers[0], backend="eager")
    places = [f.where for f in lv.findings(tiny_llama) if f.kind == "compiled"]
    assert places == ["", "model.layers.0"]


def test_modes_and_checkpointing_are_said(tiny_llama: Any) -> None:
    tiny_llama.gradient_checkpointing_enable()
    tiny_llama.train()
    found = kinds(tiny_llama)
    assert (
        found.pop("hook") == "warning"
    )  # by which transformers makes the embeddings differentiable
    assert found == {"train mode": "warning", "gradient checkpointing": "fine"}
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    mixed[1].train()
    assert [(f.where, f.level) for f in lv.findings(mixed)] == [("1", "warning")]


def test_hooks_of_others_are_counted_and_those_of_transformers_told_apart(
    tiny_llama: nn.Module,
) -> None:
    tiny_llama(IDS, output_hidden_states=True)
    handles = [
        tiny_llama.get_submodule("lm_head").register_forward_hook(lambda *_: None),
        tiny_llama.get_submodule("lm_head").register_forward_pre_hook(lambda *_: None),
        tiny_llama.get_submodule("model").register_forward_hook(lambda *_: None),
    ]
    anywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        found = lv.findings(tiny_llama)
    finally:
        for handle in (*handles, anywhere):
            handle.remove()
    assert [f.where for f in found if f.kind == "hook"] == ["model", "lm_head", "lm_head"]
    assert [f.level for f in found if f.kind == "global hook"] == ["warning"]
    assert {f.level for f in found if f.kind == "output recording"} == {"fine"}
    during: list[Any] = []
    watched = tiny_llama.get_submodule("model.norm")
    handle = watched.register_forward_hook(lambda *_: during.append(lv.findings(tiny_llama)))
    lv.trace(tiny_llama, IDS)
    handle.remove()
    assert [f.where for f in during[0] if f.kind == "hook"] == ["model.norm"]


def test_ties_quantization_and_adapters_are_fine() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=2, n_positions=8)
    model = GPT2LMHeadModel(config)
    model.eval()
    tied = [f for f in lv.findings(model) if f.kind == "tied weights"]
    assert [(f.where, f.level) for f in tied] == [("lm_head.weight", "fine")]
    assert "transformer.wte.weight" in tied[0].what
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    quantized = torch.ao.quantization.quantize_dynamic(small, {nn.Linear}, torch.qint8)
    found = lv.findings(quantized)
    assert [(f.kind, f.where, f.level) for f in found] == [("quantized", "0", "fine")]
    trace = lv.trace(quantized, torch.ones(1, 4), "0")
    assert torch.equal(trace["0"], quantized[0](torch.ones(1, 4)))


def test_inputs_are_looked_at_without_being_read(tiny_llama: nn.Module) -> None:
    found = lv.findings(tiny_llama, {"input_ids": IDS.to("meta")})
    assert [(f.kind, f.where) for f in found] == [("input elsewhere", "inputs[input_ids]")]


@pytest.mark.parametrize("model", [None, 3, "gpt2", object(), nn.Module, lambda x: x])
def test_it_never_raises(model: Any) -> None:
    assert [f.kind for f in lv.findings(model, object()).refused] == ["not a module"]


def test_a_module_that_was_never_initialised_is_a_finding() -> None:
    class Forgot(nn.Module):
        def __init__(self) -> None:
            pass

    assert [f.kind for f in lv.findings(Forgot()).refused] == ["unfinished scan"]


def test_it_prints_as_a_table_the_worst_first() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train()
    found = lv.findings(nn.DataParallel(model))
    assert [f.level for f in found] == ["refused", "refused", "warning", "fine"]
    head, *rows = repr(found).splitlines()
    assert head == "A capture is refused."
    assert rows[0].startswith("refused  meta parameters  0.weight, 0.bias  ")
    assert [row.split()[0] for row in rows] == ["refused", "warning", "fine"]
    assert (
        len({row.index(word) for row, word in zip(rows, ("meta", "train", "Data"), strict=True)})
        == 1
    )
    assert isinstance(found[0], lv.Finding) and found[:2] == list(found.refused)
