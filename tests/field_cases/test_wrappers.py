"""Field cases O09 to O12: wrappers and parallelism, as far as one process goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90], [1, 2, 3, 4], [4, 3, 2, 1], [7, 7, 7, 7]])
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def equal(a: lv.Trace, b: lv.Trace) -> bool:
    return a.sites == b.sites and all(torch.equal(a[site], b[site]) for site in b)


@pytest.mark.parametrize("how", ["wrapped", "in place", "one layer"])
def test_o09_compiled_models(tiny_llama: nn.Module, how: str) -> None:
    """After a warm-up of the compiled model, every site is filled, with the eager values."""
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
    assert equal(lv.trace(model, IDS, "**"), expected)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, warm)


@cuda
def test_o09_compiled_models_with_cuda_graphs() -> None:
    """A trace is bit-identical after the next run has reused the graph's buffers."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda().eval()
    model: Any = torch.compile(plain, mode="reduce-overhead")
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            model(x)
    first = lv.trace(model, x, "**")
    kept = {site: tensor.clone() for site, tensor in first.items()}
    lv.trace(model, x * 2, "**")
    with torch.no_grad():
        model(x * 3)
    assert all(torch.equal(first[site], kept[site]) for site in kept)
    assert equal(first, lv.trace(plain, x, "**"))


def test_o10_data_parallel(tiny_llama: nn.Module) -> None:
    """Through DataParallel: one device, one thread, the whole batch, rows in input order."""
    expected = lv.trace(tiny_llama, IDS, ["**", "**:input"])
    assert equal(lv.trace(nn.DataParallel(tiny_llama), IDS, ["**", "**:input"]), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_o10_data_parallel_on_two_gpus(tiny_llama: nn.Module) -> None:
    """An uneven last chunk included: the batch of 5 is not split at all."""
    model = tiny_llama.cuda()
    expected = lv.trace(model, IDS, "**")
    wrapped = nn.DataParallel(model, device_ids=[0, 1])
    with torch.no_grad():
        wrapped(IDS.cuda())
    assert equal(lv.trace(wrapped, IDS, "**"), expected)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_o11_sharded_parameter_wrappers(tiny_llama: nn.Module, one_rank: None) -> None:
    """One error that names FSDP and the first such module, before any forward and any hook."""
    from torch.distributed.fsdp import fully_shard

    for layer in ("model.layers.0", "model.layers.2"):
        fully_shard(tiny_llama.get_submodule(layer))
    hooks = [dict(m._forward_hooks) for m in tiny_llama.modules()]
    ran: list[int] = []
    handle = tiny_llama.get_submodule("model.embed_tokens").register_forward_hook(
        lambda *_: ran.append(1)
    )
    with pytest.raises(RuntimeError, match=r"FSDP.*model\.layers\.0") as caught:
        lv.trace(tiny_llama, IDS, "**")
    handle.remove()
    assert isinstance(caught.value, lv.DistributedCaptureUnsupportedError)
    assert not ran and [dict(m._forward_hooks) for m in tiny_llama.modules()] == hooks


def test_o12_offloaded_weights(tiny_llama: nn.Module) -> None:
    """Logits are a plain model's; a vector goes to the activation's device; forwards stay."""
    from accelerate import cpu_offload

    v = torch.linspace(-1, 1, 16)
    plain = lv.trace(tiny_llama, IDS, "**")
    edited = lv.trace(tiny_llama, IDS, "**", lv.add("model.layers.1", v))
    cpu_offload(tiny_llama, execution_device=torch.device("cpu"))
    assert {p.device.type for p in tiny_llama.parameters()} == {"meta"}
    forwards = [m.__dict__.get("forward") for m in tiny_llama.modules()]
    assert equal(lv.trace(tiny_llama, IDS, "**"), plain)
    again = lv.trace(tiny_llama, IDS, "**", lv.add("model.layers.1", v))
    assert equal(again, edited) and not equal(again, plain)
    assert {t.device.type for t in again.values()} == {"cpu"}
    assert [m.__dict__.get("forward") for m in tiny_llama.modules()] == forwards
    rows = lv.LocalSession(tiny_llama).tree()
    assert {r.device for r in rows if r.weights} == {"meta"}
    assert isinstance(again.logits, Tensor) and again.logits.device.type == "cpu"
