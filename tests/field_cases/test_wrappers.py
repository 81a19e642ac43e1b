"""Field cases O09 to O12: wrappers and parallelism, as far as one process goes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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


def test_o10_replicas_share_the_hooks_and_write_nothing(tiny_llama: nn.Module) -> None:
    """DataParallel's replicas hold this very dict of hooks: what they run, in threads and uneven
    chunks, while a capture lasts, is not the capture's."""
    replica: Any = _replicate(tiny_llama)
    assert replica._forward_hooks is tiny_llama._forward_hooks
    expected = lv.trace(tiny_llama, IDS, ["**", "**:input"])
    ran: list[torch.Size] = []

    def chunks(*_: Any) -> None:
        """In the middle of the capture, as another thread's DataParallel would."""

        def forward(ids: Tensor) -> None:
            with torch.no_grad():
                ran.append(_replicate(tiny_llama)(ids).logits.shape)

        threads = [threading.Thread(target=forward, args=(part,)) for part in IDS.split(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with torch.no_grad():
            ran.append(_replicate(tiny_llama)(IDS[:2]).logits.shape)

    handle = tiny_llama.get_submodule("model.norm").register_forward_pre_hook(
        lambda module, _args: chunks() if module is tiny_llama.get_submodule("model.norm") else None
    )
    for model in (tiny_llama, nn.DataParallel(tiny_llama)):
        assert equal(lv.trace(model, IDS, ["**", "**:input"]), expected)
    handle.remove()
    assert sorted(s[0] for s in ran) == [2, 2, 2, 2, 3, 3] and _hooks(tiny_llama) == 0


def _replicate(model: nn.Module) -> Any:
    """What DataParallel runs in place of `model`: a shallow copy all the way down."""
    copies: dict[nn.Module, Any] = {m: m._replicate_for_data_parallel() for m in model.modules()}
    for module, copy in copies.items():
        copy._parameters.update(module._parameters)
        copy._buffers.update(module._buffers)
        for name, child in module.named_children():
            copy._modules[name] = copies[child]
    return copies[model]


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_o10_edits_reach_all_rows_through_data_parallel(tiny_llama: Any, batch: int) -> None:
    """Rows in input order, whatever a split over devices would leave for the last chunk."""
    v = torch.linspace(-1, 1, 16)
    handle = tiny_llama.model.layers[1].register_forward_hook(lambda m, a, out: out + v)
    with torch.no_grad():
        expected = tiny_llama(IDS[:batch]).logits
    handle.remove()
    wrapped, edit = nn.DataParallel(tiny_llama), lv.add("module.model.layers.1", v)
    trace = lv.trace(wrapped, IDS[:batch], (), edit, keep_output=True)
    assert torch.equal(trace.output.logits, expected)


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


ASKS: dict[str, Callable[[nn.Module], Any]] = {
    "trace": lambda m: lv.trace(m, IDS, "**"),
    "edit": lambda m: lv.trace(m, IDS, (), lv.zero("model.layers.1")),
    "ops": lambda m: lv.trace(m, IDS, "model.layers.0.mlp/*"),
    "extract": lambda m: lv.extract(m, IDS, "model.layers.1"),
    "generate": lambda m: lv.generate(m, IDS, (), max_new_tokens=2),
    "effects": lambda m: lv.effects(m, IDS, lv.zero("model.layers.0")),
    "estimate": lambda m: lv.estimate(m, IDS),
    "source": lambda m: lv.source(m, "model.layers.0.mlp", IDS),
    "a session, which shows weights": lambda m: lv.LocalSession(m).tree(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("how", ["FSDP2", "FSDP2 in parts", "FSDP1", "FSDP1 in parts"])
def test_o11_sharded_parameter_wrappers(
    tiny_llama: nn.Module, one_rank: None, how: str, ask: str
) -> None:
    """One error that names FSDP and the first such module, before any forward and any hook."""
    model, first = sharded(tiny_llama, how)
    hooks = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    ran: list[int] = []
    embedding = tiny_llama.get_submodule("model.embed_tokens")
    handle = embedding.register_forward_hook(lambda *_: ran.append(1))
    with pytest.raises(RuntimeError, match=rf"FSDP.*at {first}") as caught:
        ASKS[ask](model)
    handle.remove()
    assert isinstance(caught.value, lv.DistributedCaptureUnsupportedError)
    after = [(dict(m._forward_hooks), dict(m._forward_pre_hooks)) for m in model.modules()]
    assert not ran and after == hooks


def sharded(model: Any, how: str) -> tuple[nn.Module, str]:
    """The model under FSDP, and the name of the first module that is."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    if how == "FSDP2":
        return fully_shard(model), "the root module"
    if how == "FSDP2 in parts":
        for layer in (model.model.layers[0], model.model.layers[2]):
            fully_shard(layer)
        return model, r"model\.layers\.0"
    if how == "FSDP1":
        return FullyShardedDataParallel(model, device_id=torch.device("cpu")), "the root module"
    layers = model.model.layers
    layers[1] = FullyShardedDataParallel(layers[1], device_id=torch.device("cpu"))
    return model, r"model\.layers\.1"


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
