"""Skips: against the same module replaced by hand, and what stands in its forward afterwards."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.taps.skips import _Seam

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
LAYER = "model.layers.1"


@contextmanager
def replaced(model: nn.Module, path: str, forward: Callable[..., Any]) -> Iterator[None]:
    """The skip by hand: another module in its place."""

    class Stand(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return forward(*args, **kwargs)

    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    before = owner._modules[name]
    stand = Stand()
    stand.__dict__.update({k: v for k, v in before.__dict__.items() if k == "attention_type"})
    owner._modules[name] = stand
    try:
        yield
    finally:
        owner._modules[name] = before


def forwards(model: nn.Module) -> list[tuple[bool, Any]]:
    """What stands in every module's own `forward`."""
    return [("forward" in m.__dict__, m.__dict__.get("forward")) for m in model.modules()]


def logits(model: nn.Module, inputs: Any = IDS) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(inputs).logits
    return found


def skipped(model: nn.Module, skip: lv.Intervention) -> Tensor:
    before = forwards(model)
    trace = lv.trace(model, IDS, (), skip, keep_output=True)
    assert forwards(model) == before
    found: Tensor = trace.output.logits
    return found


def mixtral() -> nn.Module:
    import transformers as tf

    torch.manual_seed(0)
    config = tf.MixtralConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return tf.MixtralForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mlp_layer_and_attention_are_what_a_replaced_module_gives(
    kind: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    model = (mixtral() if kind == "mixtral" else request.getfixturevalue(f"tiny_{kind}")).to(dtype)
    block = "transformer.h.1" if kind == "gpt2" else LAYER
    attention = f"{block}.{'attn' if kind == 'gpt2' else 'self_attn'}"
    given = torch.randn(2, 6, 16)
    with replaced(model, f"{block}.mlp", lambda x: given.to(dtype)):
        expected = logits(model)
    assert torch.equal(skipped(model, lv.skip(f"{block}.mlp", given)), expected)
    with replaced(model, block, lambda x, *args, **kwargs: x):
        expected = logits(model)
    assert torch.equal(skipped(model, lv.skip(block, "input")), expected)
    with replaced(model, attention, lambda *args, **kwargs: (given.to(dtype), None)):
        expected = logits(model)
    assert torch.equal(skipped(model, lv.skip(attention, (given, None))), expected)
    assert not torch.equal(expected, logits(model))


def test_a_bare_tensor_for_a_tuple_is_refused_before_the_run(tiny_llama: nn.Module) -> None:
    """Its caller would take it apart: here the batch of 2 would pass for output and weights."""
    attention = f"{LAYER}.self_attn"
    source = lv.trace(tiny_llama, IDS, [attention, LAYER])
    passes: list[int] = []
    handle = tiny_llama.register_forward_pre_hook(lambda *_: passes.append(1))
    for value in (torch.zeros(2, 6, 16), "input", {attention: source[attention]}):
        edit = lv.skip("model.layers.*.self_attn", value)
        with pytest.raises(lv.InterventionError, match=r"LlamaAttention returns a tuple.*None\)"):
            lv.trace(tiny_llama, IDS, (), edit)
    with pytest.raises(lv.InterventionError, match=r"stood at \[0\]"):
        lv.skip(attention, source)
    assert not passes
    handle.remove()
    zeros = lv.trace(tiny_llama, IDS, "**", lv.skip(attention, ("input", None)))
    assert torch.equal(zeros[attention], zeros[f"{LAYER}.input_layernorm"])


def test_a_recorded_run_carried_over(tiny_llama: nn.Module) -> None:
    source = lv.trace(tiny_llama, IDS, LAYER)
    other = lv.trace(tiny_llama, IDS.flip(0, 1), "**", lv.skip(LAYER, source))
    assert torch.equal(other[LAYER], source[LAYER])
    assert torch.equal(other.logits, source.logits)  # type: ignore[arg-type]
    assert (other.reports[0].calls, other.reports[0].changed) == (1, 2 * 6 * 16)


def test_hooks_fire_records_show_it_and_the_inside_is_said_to_be_skipped(
    tiny_llama: nn.Module,
) -> None:
    mlp = f"{LAYER}.mlp"
    seen: list[Tensor] = []
    handles = [
        tiny_llama.get_submodule(mlp).register_forward_hook(lambda m, a, o: seen.append(o)),
        tiny_llama.get_submodule(f"{mlp}.up_proj").register_forward_hook(lambda *_: seen.append(0)),  # type: ignore[arg-type]
    ]
    given = torch.randn(2, 6, 16)
    trace = lv.trace(tiny_llama, IDS, [mlp, f"{mlp}:input", f"{mlp}.*"], lv.skip(mlp, given))
    for handle in handles:
        handle.remove()
    assert len(seen) == 1 and torch.equal(seen[0], given)
    assert torch.equal(trace[mlp], given) and trace[f"{mlp}:input"].shape == (2, 6, 16)
    assert set(trace.missed) == {
        f"{mlp}.{n}" for n in ("gate_proj", "up_proj", "down_proj", "act_fn")
    }
    assert all(reason.startswith(f"skipped: {mlp}") for reason in trace.missed.values())
    with pytest.raises(lv.NotRecordedError, match="skipped"):
        trace[f"{mlp}.up_proj"]
    with pytest.raises(lv.IdleInterventionError, match=r"zero .*up_proj: skipped"):
        lv.trace(tiny_llama, IDS, (), [lv.skip(mlp, given), lv.zero(f"{mlp}.up_proj")])


def test_a_skip_comes_first_and_the_last_skip_counts(tiny_llama: nn.Module) -> None:
    mlp = f"{LAYER}.mlp"
    one, two = torch.ones(2, 6, 16), torch.full((2, 6, 16), 2.0)
    edits = [lv.scale(mlp, 3), lv.skip(mlp, one), lv.skip(mlp, two), lv.add(mlp, 1)]
    trace = lv.trace(tiny_llama, IDS, mlp, edits)
    assert trace[mlp].unique().tolist() == [7.0]
    assert [r.calls for r in trace.reports] == [1, 1, 1, 1]
    edits = [lv.add(f"{mlp}:input", 1), lv.skip(mlp, "input")]
    trace = lv.trace(tiny_llama, IDS, [mlp, f"{LAYER}.post_attention_layernorm"], edits)
    assert torch.equal(trace[mlp], trace[f"{LAYER}.post_attention_layernorm"] + 1)


class Twice(nn.Module):
    """One part called twice, whose result is written to in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            h = self.lin(x)
            h += x
            x = h
        return x


def test_one_call_of_several_and_a_given_tensor_that_nobody_writes_to() -> None:
    torch.manual_seed(0)
    model, x, given = Twice(), torch.randn(2, 3), torch.ones(2, 3)
    with torch.no_grad():
        first = model.lin(x) + x
    trace = lv.trace(model, x, [":output", "lin"], lv.skip("lin@1", given))
    assert torch.equal(trace[":output"], first + 1) and trace.reports[0].calls == 1
    assert torch.equal(lv.trace(model, x, ":output", lv.skip("lin", given))[":output"], x + 2)
    assert given.unique().tolist() == [1]
    before = x.clone()
    assert torch.equal(lv.trace(model, x, ":output", lv.skip("lin", "input"))[":output"], x * 4)
    assert torch.equal(x, before)
    with pytest.raises(lv.IdleInterventionError, match="called 2 times, counted from 0"):
        lv.trace(model, x, (), lv.skip("lin@2", given))


def test_the_given_value_follows_the_input(tiny_llama: nn.Module) -> None:
    model = tiny_llama.to(torch.bfloat16)
    trace = lv.trace(model, IDS, LAYER, lv.skip(LAYER, torch.randn(2, 6, 16, dtype=torch.float64)))
    assert trace[LAYER].dtype is torch.bfloat16
    embedded = lv.trace(
        model, IDS, "**", lv.skip("model.embed_tokens", torch.randn(2, 6, 16).bfloat16())
    )
    assert embedded["model.embed_tokens"].dtype is torch.bfloat16


class Fails(nn.Module):
    """Calls `act` after `middle`, which is skipped meanwhile."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.middle, self.act = nn.Linear(2, 2), act

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.middle(x)
        self.act()
        return h


@pytest.mark.parametrize("error", [ValueError("model"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("own", [False, True])
def test_after_an_error_the_forward_is_what_it_was(error: BaseException, own: bool) -> None:
    def act() -> None:
        raise error

    model = Fails(act)
    if own:  # as accelerate and tensor parallelism do
        true = model.middle.forward
        model.middle.forward = lambda x: true(x) + 1  # type: ignore[method-assign,assignment]
    before = forwards(model)
    with pytest.raises(type(error)):
        lv.trace(model, torch.ones(1, 2), (), lv.skip("middle", "input"))
    assert forwards(model) == before
    assert ("forward" in model.middle.__dict__) is own


def test_accelerates_forward_is_kept(tiny_llama: nn.Module) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    mlp = tiny_llama.get_submodule(f"{LAYER}.mlp")
    expected = logits(tiny_llama)
    add_hook_to_module(mlp, ModelHook())
    patched = mlp.__dict__["forward"]
    source = lv.trace(tiny_llama, IDS, f"{LAYER}.mlp")
    assert torch.equal(skipped(tiny_llama, lv.skip(f"{LAYER}.mlp", source)), expected)
    assert mlp.__dict__["forward"] is patched
    remove_hook_from_module(mlp)
    assert torch.equal(logits(tiny_llama), expected)


def test_interrupts_at_any_moment_restore_the_forward(tiny_llama: nn.Module) -> None:
    import _thread

    expected = logits(tiny_llama)
    skip = lv.skip("model.layers.*", "input")
    interrupted = 0
    for step in range(40):
        timer = threading.Timer(0.0003 * step, _thread.interrupt_main)
        try:
            timer.start()
            lv.trace(tiny_llama, IDS, (), skip)
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert not any(there for there, _ in forwards(tiny_llama))
    assert interrupted > 0
    pickle.dumps(tiny_llama)
    assert torch.equal(logits(tiny_llama), expected)


def test_other_threads_nested_runs_and_copies_get_the_true_forward(tiny_llama: nn.Module) -> None:
    mlp = f"{LAYER}.mlp"
    expected, zeros = logits(tiny_llama), torch.zeros(2, 6, 16)
    with replaced(tiny_llama, mlp, lambda x: zeros):
        without = logits(tiny_llama)
    found: dict[str, Any] = {}

    def inside(_m: nn.Module, _a: Any) -> None:
        if found:
            return
        found["running"] = True
        target = tiny_llama.get_submodule(mlp)
        assert isinstance(target.__dict__["forward"], _Seam)
        found["signature"] = inspect.signature(target.forward)
        other = threading.Thread(target=lambda: found.update(thread=logits(tiny_llama)))
        other.start()
        other.join()
        third = threading.Thread(
            target=lambda: found.update(
                skip=lv.trace(tiny_llama, IDS, (), lv.skip(mlp, zeros + 1), keep_output=True)
            )
        )
        third.start()
        third.join()
        found["nested"] = lv.trace(tiny_llama, IDS, (), keep_output=True).output.logits
        found["copy"] = copy.deepcopy(tiny_llama)

    handle = tiny_llama.get_submodule("model.layers.0").register_forward_pre_hook(inside)
    trace = lv.trace(tiny_llama, IDS, (), lv.skip(mlp, zeros), keep_output=True)
    handle.remove()
    assert torch.equal(trace.output.logits, without)
    assert torch.equal(found["thread"], expected) and torch.equal(found["nested"], expected)
    with replaced(tiny_llama, mlp, lambda x: zeros + 1):
        assert torch.equal(found["skip"].output.logits, logits(tiny_llama))
    assert list(found["signature"].parameters) == ["x"]
    twin = found["copy"]
    twin.get_submodule("model.layers.0")._forward_pre_hooks.clear()
    assert torch.equal(logits(twin), expected)
    inner = twin.get_submodule(mlp)
    assert inner.forward.__self__ is inner, "the copy runs its own weights"
    assert not any(there for there, _ in forwards(tiny_llama))


@pytest.mark.parametrize("own", [False, True])
def test_a_pickle_made_meanwhile_holds_the_true_forward(own: bool) -> None:
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    if own:
        model.__dict__["forward"] = torch.tanh
    expected = model(x)
    model.__dict__["forward"] = _Seam(model)
    again = pickle.loads(pickle.dumps(model))
    assert again is not model and not isinstance(again.forward, _Seam)
    assert torch.equal(again(x), expected) and torch.equal(model(x), expected)


def test_two_threads_skip_one_module_at_once(tiny_llama: nn.Module) -> None:
    mlp = f"{LAYER}.mlp"
    values = [torch.full((2, 6, 16), float(i)) for i in range(4)]
    expected = []
    for value in values:
        with replaced(tiny_llama, mlp, lambda x, value=value: value):
            expected.append(logits(tiny_llama))
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(15):
            trace = lv.trace(tiny_llama, IDS, mlp, lv.skip(mlp, values[i]), keep_output=True)
            if not torch.equal(trace.output.logits, expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not any(there for there, _ in forwards(tiny_llama))


def test_a_forward_wrapped_meanwhile_stays_wrapped() -> None:
    calls: list[int] = []

    def act() -> None:
        inner = model.middle.forward

        def wrapped(x: Tensor) -> Tensor:
            calls.append(1)
            return inner(x)

        model.middle.forward = wrapped  # type: ignore[method-assign,assignment]

    model = Fails(act)
    x = torch.ones(1, 2)
    with torch.no_grad():
        expected = model.middle(x)
    lv.trace(model, x, (), lv.skip("middle", "input"))
    with torch.no_grad():
        assert torch.equal(model.middle(x), expected) and calls == [1]


def test_what_cannot_be_skipped(tiny_llama: nn.Module) -> None:
    zeros = torch.zeros(2, 6, 16)
    for site in (f"{LAYER}:input", f"{LAYER}:output[0]"):
        with pytest.raises(lv.InterventionError, match="as a whole"):
            lv.skip(site, zeros)
    for value in (3, None, (None,), "zeros", (zeros, 1), [None, None]):
        with pytest.raises(lv.InterventionError, match="it takes a tensor"):
            lv.skip(LAYER, value)
    with pytest.raises(lv.NotRecordedError):
        lv.skip(LAYER, {"model.layers.0": zeros})
    indexed = lv.Intervention("skip", LAYER, (0,), lv.skip(LAYER, zeros).args)
    with pytest.raises(lv.InterventionError, match="no index"):
        lv.trace(tiny_llama, IDS, (), indexed)
    with pytest.raises(lv.SiteError):
        lv.trace(tiny_llama, IDS, (), lv.skip("model.layers.9", zeros))


def test_a_module_that_a_fused_path_would_bypass_is_skipped() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x, given = torch.randn(2, 4, 8), torch.randn(2, 4, 8)
    trace = lv.trace(model, x, ":output", lv.skip("layers.0.self_attn", (given, None)))
    assert trace.reports[0].calls == 1
    first = model.layers[0]
    with torch.no_grad():
        h = first.norm1(x + given)
        h = first.norm2(h + first.linear2(torch.relu(first.linear1(h))))
        expected = model.layers[1](h)
    assert torch.allclose(trace[":output"], expected, atol=1e-6)


@pytest.mark.parametrize("which", ["model", "part"])
def test_a_compiled_model_or_part_is_skipped_eagerly(tiny_llama: nn.Module, which: str) -> None:
    expected = skipped(tiny_llama, lv.skip(f"{LAYER}.mlp", torch.zeros(2, 6, 16)))
    model: Any = tiny_llama
    if which == "model":
        model = torch.compile(tiny_llama, backend="eager")
    else:
        parts: Any = tiny_llama.get_submodule(LAYER)._modules
        parts["mlp"] = torch.compile(parts["mlp"], backend="eager")
    trace = lv.trace(
        model, IDS, (), lv.skip(f"{LAYER}.mlp", torch.zeros(2, 6, 16)), keep_output=True
    )
    assert torch.equal(trace.output.logits, expected)


def test_an_output_object_can_be_given(tiny_llama: nn.Module) -> None:
    from transformers.modeling_outputs import BaseModelOutputWithPast

    hidden = torch.randn(2, 6, 16)
    edit = lv.skip("model", BaseModelOutputWithPast(last_hidden_state=hidden))
    trace = lv.trace(tiny_llama, IDS, ":output", edit)
    with torch.no_grad():
        expected = tiny_llama.get_submodule("lm_head")(hidden)
    assert torch.equal(trace[":output"], expected)
    assert not edit.portable
