"""Wrappers that change nothing: a capture through each equals the plain model's, bit for bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3], [8, 8, 1]])
SITES = ["**", "**:input"]


def same(trace: lv.Trace, expected: lv.Trace) -> None:
    assert trace.sites == expected.sites
    assert all(torch.equal(trace[site], expected[site]) for site in expected)
    assert trace.logits is not None and expected.logits is not None
    assert torch.equal(trace.logits, expected.logits)


def forwards(model: nn.Module) -> dict[str, Any]:
    return {name: m.__dict__.get("forward") for name, m in model.named_modules()}


class Around(nn.Module):
    """A plain module with a wrapper inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.first(x))
        return out


@pytest.mark.parametrize("kind", [nn.DataParallel, "compiled"])
def test_wrappers_of_wrappers_and_an_edit_through_them(tiny_llama: nn.Module, kind: Any) -> None:
    edit = lv.scale("module.model.layers.1.mlp", 3.0)
    expected = lv.trace(tiny_llama, IDS, SITES, lv.scale("model.layers.1.mlp", 3.0))
    if kind == "compiled":
        wrapped: Any = nn.DataParallel(torch.compile(tiny_llama, backend="eager"))
    else:
        wrapped = nn.DataParallel(nn.DataParallel(tiny_llama))
    same(lv.trace(wrapped, IDS, SITES, edit), expected)
    assert lv.unwrap(wrapped) is tiny_llama


def test_data_parallel_inside_a_model() -> None:
    """O10: with one device it calls its module; with several it copies it, which is refused."""
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = Around(inner)
    wrapped: Any = Around(nn.DataParallel(inner))
    wrapped.first = plain.first
    x = torch.randn(5, 4)
    expected = lv.trace(plain, x, ["first", "inner.0", "inner.1"])
    trace = lv.trace(wrapped, x, ["first", "inner.module.0", "inner.module.1"])
    assert torch.equal(trace["inner.module.0"], expected["inner.0"])
    assert torch.equal(trace["inner.module.1"], expected["inner.1"])
    assert [f.kind for f in lv.findings(wrapped.eval())] == ["DataParallel inside"]
    wrapped.inner.device_ids = [0, 1]  # as on a machine with two GPUs
    with pytest.raises(lv.CaptureUnsupportedError, match="DataParallel inside at inner"):
        lv.trace(wrapped, x)
    assert len(lv.trace(wrapped.inner, x)) == 3, "as the outermost wrapper it is looked through"


@pytest.mark.parametrize("how", ["cpu", "disk", "map"])
def test_offloaded_models_keep_accelerates_forward(
    tiny_llama: nn.Module, tmp_path: Path, how: str
) -> None:
    """O12: weights are on meta outside their module's own call; inputs do not go there."""
    import accelerate

    edit = lv.add("model.layers.1", torch.linspace(-1, 1, 16))
    expected = lv.trace(tiny_llama, IDS, SITES), lv.trace(tiny_llama, IDS, SITES, edit)
    cpu = torch.device("cpu")
    if how == "cpu":
        model = accelerate.cpu_offload(tiny_llama, execution_device=cpu)
    elif how == "disk":
        model = accelerate.disk_offload(tiny_llama, str(tmp_path), execution_device=cpu)
    else:
        places = dict.fromkeys(["model.embed_tokens", "model.layers.0", "model.norm"], "cpu")
        places |= {"model.layers.1": "disk", "model.layers.2": "cpu", "model.rotary_emb": "cpu"}
        model = accelerate.dispatch_model(
            tiny_llama,
            {**places, "lm_head": "disk"},
            main_device="cpu",
            offload_dir=str(tmp_path),
            force_hooks=True,
        )
    before = forwards(model)
    same(lv.trace(model, IDS, SITES), expected[0])
    same(lv.trace(model, IDS, SITES, edit), expected[1])
    assert forwards(model) == before
    head = model.get_submodule("lm_head")
    assert head.weight.device.type == "meta"
    found = lv.findings(model, IDS)
    assert not found.refused and "offload" in {f.kind for f in found.fine}
    assert ("device map" in {f.kind for f in found.fine}) is (how == "map")
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, expected[0]["lm_head"])


def test_a_part_that_lost_its_offloading_hook_is_refused(tiny_llama: nn.Module) -> None:
    import accelerate
    from accelerate.hooks import remove_hook_from_module

    model = accelerate.cpu_offload(tiny_llama, execution_device=torch.device("cpu"))
    norm = model.get_submodule("model.norm")
    remove_hook_from_module(norm)
    norm.to_empty(device="meta")
    with pytest.raises(
        lv.CaptureUnsupportedError, match=r"meta parameters at model\.norm\.weight:"
    ):
        lv.trace(model, IDS)


def test_peft_adapters_are_part_of_the_values(tiny_llama: nn.Module) -> None:
    peft = pytest.importorskip("peft")
    plain = copy.deepcopy(tiny_llama)
    config = peft.LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False)
    model = peft.get_peft_model(tiny_llama, config).eval()
    root = "base_model.model."
    site = f"{root}model.layers.1.self_attn.q_proj"
    trace = lv.trace(model, IDS, ["**", f"{site}:input"])
    projection = model.get_submodule(site)
    x, a, b = (
        trace[f"{site}:input"],
        projection.lora_A["default"].weight,
        projection.lora_B["default"].weight,
    )
    by_hand = x @ projection.base_layer.weight.T + (x @ a.T @ b.T) * projection.scaling["default"]
    torch.testing.assert_close(trace[site], by_hand, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, trace[f"{root}lm_head"])
    said = [f.what for f in lv.findings(model) if f.kind == "PEFT adapter"]
    assert len(said) == 3 and "adapter default, added" in said[0]
    with model.disable_adapter():
        off = lv.trace(model, IDS, "**.layers.*")
        assert any("switched off" in f.what for f in lv.findings(model))
    expected = lv.trace(plain, IDS, "model.layers.*")
    for layer in expected:
        assert torch.equal(off[root + layer], expected[layer])


def test_gradient_checkpointing_changes_no_record(tiny_llama: Any) -> None:
    """It is on in train mode alone; layers run again in a backward after the capture."""
    tiny_llama.train()
    expected = lv.trace(tiny_llama, IDS, SITES)
    tiny_llama.gradient_checkpointing_enable()
    trace = lv.trace(tiny_llama, IDS, SITES)
    same(trace, expected)
    assert not any("@" in site for site in trace)
    hooks = {n: len(m._forward_hooks) for n, m in tiny_llama.named_modules()}
    tiny_llama(input_ids=IDS, labels=IDS).loss.backward()
    assert hooks == {n: len(m._forward_hooks) for n, m in tiny_llama.named_modules()}


def test_a_compiled_part_inside_keeps_its_path_and_its_edit() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = Around(inner)
    x = torch.randn(3, 4)
    edit = lv.put("inner.0", 2.0)
    expected = lv.trace(plain, x, ["inner.0", "inner.1", "inner"], edit)
    plain.inner = torch.compile(inner, backend="eager")  # type: ignore[assignment]
    plain(x)
    trace = lv.trace(plain, x, ["inner.0", "inner.1", "inner"], edit)
    assert all(torch.equal(trace[site], expected[site]) for site in expected)
    assert [f.where for f in lv.findings(plain.eval()) if f.kind == "compiled"] == ["inner"]
    assert torch.equal(plain(x), inner(plain.first(x)))
