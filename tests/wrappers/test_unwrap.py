"""Wrappers: looked through where they change nothing, refused before any forward where they do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lensview as lv
from lensview.modules import index
from lensview.wrappers.detect import scan

IDS = torch.tensor([[5, 17, 3]])


def test_data_parallel_is_its_module(tiny_llama: nn.Module) -> None:
    expected = lv.trace(tiny_llama, IDS, "**")
    wrapped = nn.DataParallel(tiny_llama)
    trace = lv.trace(wrapped, IDS, "**")
    assert lv.unwrap(wrapped) is tiny_llama
    assert trace.sites == expected.sites
    assert all(torch.equal(trace[s], expected[s]) for s in expected)
    assert list(lv.extract(wrapped, IDS, ["module.model.layers.0"])) == ["module.model.layers.0"]


@pytest.mark.parametrize("how", ["wrapped", "in place", "submodule"])
def test_compiled_models_are_captured_eagerly_and_keep_working(
    tiny_llama: nn.Module, how: str
) -> None:
    """O09: hooks on a warm compiled model fire by luck; all sites are filled and eager's."""
    expected = lv.trace(tiny_llama, IDS, "**")
    model: Any = tiny_llama
    if how == "wrapped":
        model = torch.compile(tiny_llama, backend="eager")
    elif how == "in place":
        tiny_llama.compile(backend="eager")
    else:
        layers: Any = tiny_llama.get_submodule("model.layers")
        layers[0] = torch.compile(layers[0], backend="eager")
    with torch.no_grad():
        warm = model(IDS).logits
    trace = lv.trace(model, IDS, "model.layers.*.mlp")
    for i in range(3):
        site = f"model.layers.{i}.mlp"
        assert torch.equal(lv.extract(model, IDS, [site])[site], expected[site])
    assert len(trace) == 3
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, warm)


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(TypeError, match="function"):
        lv.trace(lambda x: x, torch.ones(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="str"):
        lv.LocalSession("gpt2")  # type: ignore[arg-type]


def test_a_script_module_is_refused_before_any_forward() -> None:
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(lv.CaptureUnsupportedError, match="ScriptModule"):
        lv.trace(scripted, torch.ones(1, 2))
    with pytest.raises(lv.CaptureUnsupportedError, match=r"ScriptModule at 0"):
        lv.trace(nn.Sequential(scripted), torch.ones(1, 2))


@pytest.fixture
def one_rank(tmp_path: Any) -> Any:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_sharded_parameters_are_refused_with_every_place(
    tiny_llama: nn.Module, one_rank: None
) -> None:
    """O11, and FSDP2 nested in a plain module, which other tools let through."""
    from torch.distributed.fsdp import fully_shard

    assert scan(index(tiny_llama)) == ()
    fully_shard(tiny_llama.get_submodule("model.layers.1"))
    before = [len(m._forward_hooks) for m in tiny_llama.modules()]
    with pytest.raises(lv.DistributedCaptureUnsupportedError) as caught:
        lv.trace(tiny_llama, IDS, "no.such.site")
    kinds = {f.kind for f in caught.value.findings}
    assert {"FSDP2", "DTensor"} <= kinds
    assert "model.layers.1" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)
    assert [len(m._forward_hooks) for m in tiny_llama.modules()] == before
    assert scan(index(tiny_llama.get_submodule("model.layers.0"))) == ()


def test_ddp_inside_a_model_runs_as_it_is_and_is_told(one_rank: None) -> None:
    inner, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    expected = lv.trace(nn.Sequential(inner), x, ["0.0", "0.1"])
    model = nn.Sequential(nn.parallel.DistributedDataParallel(inner)).eval()
    trace = lv.trace(model, x, ["0.module.0", "0.module.1"])
    assert torch.equal(trace["0.module.0"], expected["0.0"])
    assert torch.equal(trace["0.module.1"], expected["0.1"])
    told = [(f.kind, f.where, f.level) for f in lv.findings(model)]
    assert told == [("DistributedDataParallel inside", "0", "warning")]
    outside = lv.findings(nn.parallel.DistributedDataParallel(inner))
    assert [(f.kind, f.level) for f in outside if f.level == "fine"] == [
        ("DistributedDataParallel", "fine")
    ]


def test_ddp_is_its_rank_local_module(tiny_llama: nn.Module, one_rank: None) -> None:
    expected = lv.trace(tiny_llama, IDS, "**")
    wrapped = nn.parallel.DistributedDataParallel(tiny_llama)
    trace = lv.trace(wrapped, IDS, "**")
    assert all(torch.equal(trace[s], expected[s]) for s in expected)
