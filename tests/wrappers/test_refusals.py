"""Refusals of this process: before any forward, every kind with its places, and never in vain."""

from __future__ import annotations

import time
from collections import UserDict, deque
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.modules import index
from lensview.wrappers.detect import scan
from lensview.wrappers.hidden import MAX_DEPTH, MAX_MEMBERS

IDS = torch.tensor([[5, 17, 3]])
X = torch.ones(2, 4)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(x))
        return out


@dataclass
class Held:
    inner: Any


class Slotted:
    __slots__ = ("inner",)


@pytest.fixture
def mesh(tmp_path: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


WAYS = {
    "attribute": lambda m: m,
    "list": lambda m: [1, [m]],
    "dict": lambda m: {"a": {2: m}},
    "tuple": lambda m: (None, m),
    "deque": lambda m: deque([m]),
    "userdict": lambda m: UserDict(a=m),
    "dataclass": lambda m: Held(Held(m)),
    "namespace": lambda m: SimpleNamespace(mesh=m),
    "partial": lambda m: partial(print, 1, mesh=m),
    "module in a list": lambda m: [_module_with(m)],
    "set": lambda m: {frozenset([m])},
}


def _module_with(mesh: Any) -> nn.Module:
    module: Any = nn.Sequential(nn.Identity())
    module[0].groups = {"tp": mesh}
    return module


@pytest.mark.parametrize("way", WAYS)
def test_a_mesh_is_found_in_every_container(mesh: Any, way: str) -> None:
    model = Small()
    model.b.helper = WAYS[way](mesh)
    with pytest.raises(lv.DistributedCaptureUnsupportedError, match=r"DeviceMesh at b\.helper"):
        lv.trace(model, X)
    assert len(scan(index(model))) == 1
    assert scan(index(model.a)) == ()


def test_what_two_modules_share_is_told_at_both(mesh: Any) -> None:
    model: Any = Small()
    model.a.shared = model.b.shared = {"tp": [mesh]}
    assert [f.where for f in scan(index(model))] == ["a.shared['tp'][0]", "b.shared['tp'][0]"]
    with pytest.raises(lv.DistributedCaptureUnsupportedError) as caught:
        lv.trace(model, X, ["a", "b"])
    assert "not affected" not in str(caught.value)


def test_a_mesh_in_a_hook_is_found(mesh: Any) -> None:
    model = Small()
    handle = model.a.register_forward_hook(partial(lambda *_, mesh: None, mesh=mesh))
    with pytest.raises(lv.DistributedCaptureUnsupportedError, match="DeviceMesh"):
        lv.trace(model, X)
    handle.remove()
    assert len(lv.trace(model, X))


def test_attributes_set_before_module_init_are_looked_at(mesh: Any) -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            self.first = [mesh]
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            return x

    assert [f.where for f in scan(index(Early()))] == ["first[0]"]


def test_an_unfinished_scan_refuses() -> None:
    """Unknown is not whole; what is deep or large and plain to the end is no reason."""
    deep: Any = object()
    for _ in range(MAX_DEPTH + 3):
        deep = [deep]
    model: Any = Small()
    model.a.deep = deep
    with pytest.raises(lv.DistributedCaptureUnsupportedError, match="unfinished scan at a"):
        lv.trace(model, X)
    model.a.deep = {i: (i, str(i)) for i in range(1000)}
    model.a.large = list(range(2 * MAX_MEMBERS))
    model.a.loop = [model.a.deep]
    model.a.loop.append(model.a.loop)
    assert scan(index(model)) == ()
    model.a.many = [object()] * (MAX_MEMBERS + 1)
    assert [f.kind for f in scan(index(model))] == ["unfinished scan"]


def test_a_class_that_raises_when_looked_at_is_an_unfinished_scan() -> None:
    class Hostile(nn.Parameter):
        @property
        def is_meta(self) -> bool:  # type: ignore[override]
            raise OSError("no")

    model = Small()
    model.a._parameters["weight"] = Hostile(torch.ones(4, 4))
    with pytest.raises(lv.DistributedCaptureUnsupportedError, match="could not be looked at"):
        lv.trace(model, X)
    assert lv.findings(model).refused


def test_an_ordinary_model_is_scanned_in_no_time(tiny_llama: nn.Module) -> None:
    """By CPU time per module, so that a busy machine does not matter; measured 3 µs."""
    tiny_llama(IDS, output_hidden_states=True)
    modules = index(tiny_llama)
    many = {f"{i}.{path}": m for i in range(10) for path, m in modules.items()}
    took = []
    for _ in range(20):
        started = time.thread_time()
        assert scan(many) == ()
        took.append(time.thread_time() - started)
    assert min(took) / len(many) < 20e-6


def test_meta_parameters_are_refused_and_named() -> None:
    with torch.device("meta"):
        model = Small()
    with pytest.raises(lv.CaptureUnsupportedError) as caught:
        lv.trace(model, X, "a")
    assert not isinstance(caught.value, lv.DistributedCaptureUnsupportedError)
    assert {f.where for f in caught.value.findings} == {"a.weight", "a.bias", "b.weight", "b.bias"}
    part = Small()
    part.b.to_empty(device="meta")
    with pytest.raises(lv.CaptureUnsupportedError, match=r"b\.weight, b\.bias.*\n.*'a' can be"):
        lv.trace(part, X, ["a", "b"])
    assert len(lv.trace(part.a, X)) == 1
    session = lv.LocalSession(model)  # its tree can be seen all the same
    assert [row.path for row in session.tree()] == ["", "a", "b"]
    with pytest.raises(lv.CaptureUnsupportedError, match="nothing was run"):
        session.trace(X)


def test_programs_that_call_no_modules_are_refused_by_name() -> None:
    program = torch.export.export(Small(), (X,))
    for model, kind in (
        (program, "exported program"),
        (program.module(), "exported program"),
        (nn.Sequential(program.module()), "exported program at 0"),
        (torch.jit.trace(Small(), X), "ScriptModule"),
        (torch.jit.trace(torch.relu, X), "ScriptModule"),
    ):
        with pytest.raises(lv.CaptureUnsupportedError, match=kind) as caught:
            lv.trace(model, X)  # type: ignore[arg-type]
        assert not isinstance(caught.value, lv.DistributedCaptureUnsupportedError)
        assert [f.kind for f in lv.findings(model).refused] == [caught.value.findings[0].kind]


def test_graphs_that_do_call_their_modules_are_captured() -> None:
    """A symbolic trace, and an exported program that was unflattened."""
    model = Small()
    expected = lv.trace(model, X, ["a", "b"])
    for graph in (
        torch.fx.symbolic_trace(model),
        torch.export.unflatten(torch.export.export(model, (X,))),
    ):
        trace = lv.trace(graph, X, ["a", "b"])
        assert all(torch.equal(trace[site], expected[site]) for site in expected)


@pytest.mark.parametrize(
    ("model", "hint"),
    [
        (lambda x: x, "plain callable"),
        (Small().forward, "This is a method; pass its module, the Small"),
        (Small, "make an instance"),
        ("gpt2", "from_pretrained"),
        (Small().state_dict(), "no forward"),
        (SimpleNamespace(model=Small()), "pass its .model"),
        (torch.compile(lambda x: x, backend="eager"), "plain callable"),
        (None, "Pass the model itself"),
    ],
)
def test_what_is_no_module_is_told_what_to_pass(model: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=r"looks inside an nn\.Module") as caught:
        lv.trace(model, X)
    assert hint in str(caught.value)
    assert [f.kind for f in lv.findings(model).refused] == ["not a module"]


def test_findings_come_before_sites_and_after_arguments() -> None:
    """SEMANTICS: a fault of an earlier kind is never masked by a later one."""
    with torch.device("meta"):
        model = Small()
    with pytest.raises(lv.CaptureUnsupportedError):
        lv.trace(model, X, "no.such.site", lv.zero("nor.this"))
    with pytest.raises(TypeError, match="inputs is a int"):
        lv.trace(model, 3)


def test_many_places_are_counted_not_listed() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(Small() for _ in range(50)))
    with pytest.raises(lv.CaptureUnsupportedError) as caught:
        lv.trace(model, X)
    text = str(caught.value)
    assert "194 more" in text and "All 200 findings" in text
    assert len(text.splitlines()) == 3 and len(text) < 600
    assert len(caught.value.findings) == 200
