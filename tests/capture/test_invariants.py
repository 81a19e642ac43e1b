"""The invariants of capture: model, numbers and memory are as a plain call leaves them."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
ALL = ["**", "**:input"]


def hooks(model: nn.Module) -> list[tuple[Any, ...]]:
    """Every hook table and instance forward of every module, as they stand."""
    return [
        (
            list(m._forward_hooks.items()),
            list(m._forward_pre_hooks.items()),
            dict(m._forward_hooks_with_kwargs),
            dict(m._forward_pre_hooks_with_kwargs),
            dict(m._forward_hooks_always_called),
            m.__dict__.get("forward"),
            m.training,
        )
        for m in model.modules()
    ]


class Dropped(nn.Module):
    """Draws random numbers, writes in place, and mixes train and eval parts."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.act, self.b = nn.ReLU(inplace=True), nn.Linear(4, 4)
        self.b.eval()

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        kept = self.act(h)
        kept += torch.randn_like(kept)
        out: Tensor = self.b(self.drop(kept))
        return out


def test_output_and_random_state_are_a_plain_calls(tiny_llama: nn.Module) -> None:
    model = Dropped()
    x = torch.randn(3, 4)
    torch.manual_seed(7)
    with torch.no_grad():
        expected = model(x)
    state = torch.get_rng_state()
    torch.manual_seed(7)
    before = hooks(model)
    trace = lv.trace(model, x, ALL, keep_output=True)
    assert torch.equal(trace.output, expected)
    assert torch.equal(torch.get_rng_state(), state)
    assert hooks(model) == before
    with torch.no_grad():
        plain = tiny_llama(IDS)
    traced = lv.trace(tiny_llama, IDS, ALL, keep_output=True).output
    assert torch.equal(traced.logits, plain.logits)


@pytest.mark.parametrize(
    "outside", [nullcontext, torch.enable_grad, torch.no_grad, torch.inference_mode]
)
def test_records_are_normal_tensors_in_every_mode(tiny_llama: nn.Module, outside: Any) -> None:
    expected = lv.trace(tiny_llama, IDS, ALL)
    with outside():
        grad = torch.is_grad_enabled()
        trace = lv.trace(tiny_llama, IDS, ALL)
        assert torch.is_grad_enabled() is grad
    for site, tensor in trace.items():
        assert not tensor.is_inference() and not tensor.requires_grad and tensor.grad_fn is None
        assert torch.equal(tensor, expected[site])
        tensor.add_(0)


def test_records_are_what_passed_whatever_is_written_later() -> None:
    """O02: an in-place activation, a residual added in place, a write to the caller's own input."""
    relu = nn.ReLU(inplace=True)
    x = torch.tensor([1.5, -2.5])
    trace = lv.trace(relu, x, [":input", ":output"])
    assert trace[":input"].tolist() == [1.5, -2.5]
    assert trace[":output"].tolist() == [1.5, 0]
    x.fill_(9)
    assert trace[":output"].tolist() == [1.5, 0]

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

        def forward(self, h: Tensor) -> Tensor:
            h = self.first(h * 1)
            h += self.second(h)
            return h

    trace = lv.trace(Residual(), torch.tensor([1.0]), ALL)
    values = {site: t.item() for site, t in trace.items()}
    assert values["first"] == 1 and values["second"] == 1 and values[":output"] == 2


def test_one_value_at_many_sites_is_copied_once_and_never_confused_with_a_later_one() -> None:
    class Reuse(nn.Module):
        """Frees a value and makes another, which the allocator likes to put in the same place."""

        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleList(nn.Identity() for _ in range(20))

        def forward(self, x: Tensor) -> Tensor:
            for i, module in enumerate(self.a):
                h = module(torch.full((64, 64), float(i)))
                del h
            return x

    trace = lv.trace(Reuse(), torch.zeros(1), ALL)
    for i in range(20):
        assert trace[f"a.{i}"].unique().tolist() == [i]
        assert trace[f"a.{i}"].data_ptr() == trace[f"a.{i}:input"].data_ptr()
    assert len({trace[f"a.{i}"].data_ptr() for i in range(20)}) == 20


class Breaks(nn.Module):
    """Calls `act` in the middle of a forward; what it does is the test's choice."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.before, self.middle, self.after = nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.before(x))
        self.act()
        out: Tensor = self.after(h)
        return out


def raises(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize("error", [ValueError("model"), KeyboardInterrupt(), SystemExit(3)])
def test_after_an_error_in_the_model_everything_is_as_before(error: BaseException) -> None:
    model = Breaks(raises(error))
    before = hooks(model)
    with pytest.raises(type(error)):
        lv.trace(model, torch.ones(1, 2), ALL, lv.zero("middle"))
    assert hooks(model) == before
    model.act = lambda: None
    assert torch.equal(
        lv.trace(model, torch.ones(1, 2), ":output")[":output"], model(torch.ones(1, 2))
    )


def test_after_a_bad_intervention_the_next_run_works(tiny_llama: nn.Module) -> None:
    """O18: hooks gone, the model pickles, and the message names site, operation and shapes."""
    before = hooks(tiny_llama)
    edits = [lv.zero("model.layers.0"), lv.add("model.layers.0", torch.ones(4))]
    with pytest.raises(lv.InterventionError, match=r"add at model\.layers\.0.*\(4,\)") as caught:
        lv.trace(tiny_llama, IDS, ALL, edits)
    assert caught.value.intervention is edits[1]
    assert hooks(tiny_llama) == before
    pickle.dumps(tiny_llama)
    with torch.no_grad():
        expected = tiny_llama(IDS).logits
    assert torch.equal(lv.trace(tiny_llama, IDS, ":output")[":output"], expected)


def test_an_error_of_ours_is_not_hidden_by_a_model_that_catches() -> None:
    class Catches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return x + self.inner(x)
            except Exception:
                return x

    with pytest.raises(lv.InterventionError):
        lv.trace(Catches(), torch.ones(2), (), lv.add("inner", torch.ones(5)))


def test_interrupts_at_any_moment_leave_no_hook(tiny_llama: nn.Module) -> None:
    """A KeyboardInterrupt raised asynchronously in the main thread, at 40 different times."""
    import _thread

    before = hooks(tiny_llama)
    with torch.no_grad():
        expected = tiny_llama(IDS).logits
    interrupted = 0
    for step in range(40):
        timer = threading.Timer(0.0005 * step, _thread.interrupt_main)
        try:
            timer.start()
            lv.trace(tiny_llama, IDS, ALL)
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert hooks(tiny_llama) == before
    assert interrupted > 0
    assert torch.equal(lv.trace(tiny_llama, IDS, ":output")[":output"], expected)


def test_cancel_stops_at_the_next_layer_and_progress_counts_layers(tiny_llama: nn.Module) -> None:
    before = hooks(tiny_llama)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, text: str) -> None:
        seen.append((done, total))
        if done == 2 and stop:
            watch.cancel()

    stop = False
    watch = lv.Watch(progress)
    lv.trace(tiny_llama, IDS, (), watch=watch)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    seen.clear()
    stop = True
    ran: list[int] = []
    counter = tiny_llama.get_submodule("model.layers.2").register_forward_hook(
        lambda *_: ran.append(1)
    )
    with pytest.raises(lv.RunCancelled):
        lv.trace(tiny_llama, IDS, ALL, watch=watch)
    counter.remove()
    assert not ran, "the layers after the cancel ran"
    assert hooks(tiny_llama) == before


def test_only_what_was_asked_is_kept_and_a_dropped_trace_is_freed(tiny_llama: nn.Module) -> None:
    outputs: list[weakref.ref[Tensor]] = []
    handle = tiny_llama.get_submodule("model.layers.1").register_forward_hook(
        lambda m, a, o: outputs.append(weakref.ref(o))
    )
    attributes = {n: set(m.__dict__) for n, m in tiny_llama.named_modules()}
    gc.collect()
    gc.disable()
    try:
        trace = lv.trace(tiny_llama, IDS, "model.layers.0")
        held = weakref.ref(trace["model.layers.0"])
        assert list(trace) == ["model.layers.0"] and trace.output is None
        assert outputs[0]() is None, "a value that nobody asked for is still alive"
        del trace
        assert held() is None, "a dropped trace waits for the garbage collector"
    finally:
        gc.enable()
        handle.remove()
    assert attributes == {n: set(m.__dict__) for n, m in tiny_llama.named_modules()}


def live_bytes() -> int:
    gc.collect()
    return sum(
        o.nbytes
        for o in gc.get_objects()
        if isinstance(o, Tensor) and not isinstance(o, nn.Parameter) and o.layout is torch.strided
    )


def test_a_loop_of_captures_does_not_grow(tiny_llama: nn.Module) -> None:
    """O21: with only the last trace kept, memory is flat from the second run on."""
    sizes = []
    for _ in range(10):
        trace = lv.trace(tiny_llama, IDS, ALL)
        sizes.append(live_bytes())
    assert len(trace) > 0
    assert len(set(sizes[1:])) == 1, sizes


@pytest.fixture
def hooked(tiny_llama: nn.Module) -> Iterator[tuple[nn.Module, list[str]]]:
    """A model with other people's hooks on one layer, and the order in which they ran."""
    order: list[str] = []
    layer = tiny_llama.get_submodule("model.layers.1.mlp")
    seen: list[Tensor] = []

    def double(_m: nn.Module, _a: Any, output: Tensor) -> Tensor:
        order.append("double")
        return output * 2

    def last(_m: nn.Module, _a: Any, output: Tensor) -> None:
        order.append("last")
        seen.append(output)

    handles = [
        layer.register_forward_pre_hook(lambda *_: order.append("pre")),
        layer.register_forward_hook(lambda *_: order.append("first")),
        layer.register_forward_hook(double),
        layer.register_forward_hook(last),
    ]
    order.append("")
    tiny_llama.seen = seen  # type: ignore[assignment]
    yield tiny_llama, order
    for handle in handles:
        handle.remove()


def test_other_peoples_hooks_keep_their_order_and_see_the_edit(
    hooked: tuple[nn.Module, list[str]],
) -> None:
    model, order = hooked
    before = hooks(model)
    site = "model.layers.1.mlp"
    trace = lv.trace(model, IDS, site, lv.put(site, 1.5))
    assert order == ["", "pre", "first", "double", "last"]
    seen: list[Tensor] = model.seen  # type: ignore[assignment]
    assert seen[-1].unique().tolist() == [3.0]
    # The record is what the model carried on with: after their hooks.
    assert trace[site].unique().tolist() == [3.0]
    assert hooks(model) == before


def test_transformers_own_records_show_the_edit(tiny_llama: nn.Module) -> None:
    kwargs = {"input_ids": IDS, "output_hidden_states": True}
    tiny_llama(**kwargs)
    trace = lv.trace(tiny_llama, kwargs, (), lv.put("model.layers.0", 2.0), keep_output=True)
    assert trace.output.hidden_states[1].unique().tolist() == [2.0]


def test_a_capture_inside_a_capture_does_not_mix(tiny_llama: nn.Module) -> None:
    inner: list[lv.Trace] = []

    def nested(*_: Any) -> None:
        if not inner:
            inner.append(None)  # type: ignore[arg-type]
            inner[0] = lv.trace(
                tiny_llama, IDS.flip(1), "model.layers.2", lv.zero("model.layers.0")
            )

    handle = tiny_llama.get_submodule("lm_head").register_forward_pre_hook(nested)
    outer = lv.trace(tiny_llama, IDS, "model.layers.*")
    handle.remove()
    expected = lv.trace(tiny_llama, IDS, "model.layers.*")
    assert outer.sites == expected.sites
    assert all(torch.equal(outer[site], expected[site]) for site in expected)
    alone = lv.trace(tiny_llama, IDS.flip(1), "model.layers.2", lv.zero("model.layers.0"))
    assert torch.equal(inner[0]["model.layers.2"], alone["model.layers.2"])


def test_two_threads_on_one_model_do_not_mix(tiny_llama: nn.Module) -> None:
    prompts = [torch.randint(0, 101, (1, 5 + i % 3)) for i in range(8)]
    edits = [lv.scale("model.layers.1", float(i)) for i in range(8)]
    expected = [lv.trace(tiny_llama, p, "**", e) for p, e in zip(prompts, edits, strict=True)]
    results: list[list[lv.Trace]] = [[] for _ in prompts]

    def work(i: int) -> None:
        for _ in range(5):
            results[i].append(lv.trace(tiny_llama, prompts[i], "**", edits[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    for want, got in zip(expected, results, strict=True):
        assert len(got) == 5
        for trace in got:
            assert trace.sites == want.sites
            assert all(torch.equal(trace[s], want[s]) for s in want)


def test_a_copy_of_the_model_made_during_a_run_does_not_write_into_it(
    tiny_llama: nn.Module,
) -> None:
    copies: list[nn.Module] = []
    handle = tiny_llama.get_submodule("model.layers.0").register_forward_hook(
        lambda m, a, o: copies.append(copy.deepcopy(tiny_llama)) if not copies else None
    )
    other = IDS.flip(1)
    head, ran = tiny_llama.get_submodule("lm_head"), []

    def run_the_copy(module: nn.Module, _args: Any) -> None:
        if module is head:  # the copy has a copy of this hook
            ran.append(copies[0](other))

    late = head.register_forward_pre_hook(run_the_copy)
    try:
        trace = lv.trace(tiny_llama, IDS, "model.layers.*")
    finally:
        handle.remove()
        late.remove()
    expected = lv.trace(tiny_llama, IDS, "model.layers.*")
    assert ran
    assert trace.sites == expected.sites
    assert all(torch.equal(trace[s], expected[s]) for s in expected)


def test_a_pickle_of_the_model_made_during_a_run_is_the_model(tiny_llama: nn.Module) -> None:
    pickles: list[bytes] = []
    handle = tiny_llama.get_submodule("lm_head").register_forward_pre_hook(_keep_pickle)
    _keep_pickle.into = (tiny_llama, pickles)  # type: ignore[attr-defined]
    try:
        trace = lv.trace(tiny_llama, IDS, ALL, lv.scale("model.layers.0", 2))
    finally:
        handle.remove()
        del _keep_pickle.into  # type: ignore[attr-defined]
    again = pickle.loads(pickles[0])
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, tiny_llama(IDS).logits)
    assert len(trace.reports) == 1


def _keep_pickle(module: nn.Module, _args: Any) -> None:
    kept = getattr(_keep_pickle, "into", None)
    if kept is not None and not kept[1]:
        kept[1].append(pickle.dumps(kept[0]))


def test_an_intervention_takes_the_activations_dtype_and_device() -> None:
    """Invariant 7: parameters in float32, activations in bfloat16."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cast, self.out = nn.Identity(), nn.Identity()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.cast((x * self.weight).bfloat16()))
            return out

    vector = torch.full((4,), 0.1, dtype=torch.float64)
    trace = lv.trace(Mixed(), torch.ones(2, 4), "out", lv.add("cast", vector))
    assert trace["out"].dtype == torch.bfloat16
    assert torch.equal(trace["out"], torch.ones(2, 4).bfloat16() + vector.bfloat16())
