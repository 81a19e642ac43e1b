"""Noise, projections, means, functions: each against the same thing written by hand."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.operations import apply, overflowed
from lensview.regions import Frame
from lensview.sites import Site

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
SITE = Site("x", call=0)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def applied(edit: lv.Intervention, tensor: Tensor, frame: Frame | None = None) -> Tensor:
    before = tensor.clone()
    result, changed = apply(edit, tensor, SITE, frame or Frame())
    assert torch.equal(tensor, before), "the value itself was written to"
    assert result.dtype == tensor.dtype and int(changed) == int((result != before).sum())
    return result


def family(kind: str) -> tuple[nn.Module, str]:
    """A tiny model and the path of a module in its middle that returns a tensor."""
    import transformers as tf

    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 32,
    }
    if kind == "llama":
        return tf.LlamaForCausalLM(tf.LlamaConfig(**small)).eval(), "model.layers.0.mlp"
    if kind == "mixtral":
        config = tf.MixtralConfig(**small, num_local_experts=4, num_experts_per_tok=2)
        return tf.MixtralForCausalLM(config).eval(), "model.layers.0.mlp"
    gpt2 = tf.GPT2Config(vocab_size=101, n_embd=16, n_layer=2, n_head=4)
    return tf.GPT2LMHeadModel(gpt2).eval(), "transformer.h.0.mlp"


def by_hand(model: nn.Module, path: str, change: Any) -> Tensor:
    """The logits with a plain hook at `path`."""
    handle = model.get_submodule(path).register_forward_hook(lambda m, a, o: change(o))
    with torch.no_grad():
        logits: Tensor = model(IDS).logits
    handle.remove()
    return logits


# --- noise -------------------------------------------------------------------------------------


def drawn(seed: int, text: str, shape: tuple[int, ...]) -> Tensor:
    """The stream as the documentation describes it."""
    digest = hashlib.blake2b(f"{seed}|{text}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_noise_is_drawn_for_the_whole_value_in_float32_and_then_cut(dtype: torch.dtype) -> None:
    tensor = torch.randn(2, 5, 4).to(dtype)
    full = drawn(3, "x|0|0", (2, 5, 4)) * 0.5
    wide = tensor.to(torch.float64 if dtype is torch.float64 else torch.float32)
    expected = (wide + full).to(dtype)
    assert torch.equal(applied(lv.noise("x", 0.5, 3), tensor), expected)
    part = applied(lv.noise("x", 0.5, 3, (1, slice(2, 4))), tensor)
    assert torch.equal(part[1, 2:4], expected[1, 2:4])
    part[1, 2:4] = tensor[1, 2:4]
    assert torch.equal(part, tensor)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    last = applied(lv.noise("x", 0.5, 3, lv.at(token=-1)), tensor, Frame(mask))
    assert torch.equal(last[0, 2], expected[0, 2]) and torch.equal(last[1, 4], expected[1, 4])
    assert int((last != tensor).any(-1).sum()) == 2


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_in_a_model(kind: str, dtype: torch.dtype) -> None:
    model, path = family(kind)
    model = model.to(dtype)
    noise = drawn(11, f"{path}|0|0", (2, 6, 16)) * 0.1
    expected = by_hand(model, path, lambda o: (o.float() + noise).to(dtype))
    torch.manual_seed(5)
    state = torch.get_rng_state()
    trace = lv.trace(model, IDS, (), lv.noise(path, 0.1, 11), keep_output=True)
    assert torch.equal(torch.get_rng_state(), state), "the global random state was used"
    assert torch.equal(trace.output.logits, expected)


def test_noise_differs_by_seed_site_call_and_step_and_by_nothing_else() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.b = nn.Identity(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.act(x) + self.act(x) + self.b(x)
            return out

    x = torch.zeros(3, 4)
    first = lv.trace(Twice(), x, "*", [lv.noise("act", 1, 0), lv.noise("b", 1, 0)])
    again = lv.trace(Twice(), x, "*", [lv.noise("*", 1, 0)])
    other = lv.trace(Twice(), x, "*", [lv.noise("*", 1, 1)])
    sites = ["act@0", "act@1", "b"]
    assert all(torch.equal(first[s], again[s]) for s in sites)
    values = [t[s] for t in (first, other) for s in sites]
    values.append(applied(lv.noise("x", 1, 0), x, Frame(step=1)))
    values.append(applied(lv.noise("x", 1, 0), x))
    for i, a in enumerate(values):
        assert not any(torch.equal(a, b) for b in values[:i])


# --- project_out -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_project_out_in_a_model(kind: str, dtype: torch.dtype) -> None:
    model, path = family(kind)
    model = model.to(dtype)
    direction = torch.randn(16) * 30
    unit = direction / math.sqrt(sum(v * v for v in direction.tolist()))

    def change(output: Tensor) -> Tensor:
        wide = output.double()
        return (wide - torch.outer(wide.flatten(0, 1) @ unit.double(), unit).view_as(wide)).to(
            dtype
        )

    trace = lv.trace(model, IDS, path, lv.project_out(path, direction))
    plain = lv.extract(model, IDS, path)[path]
    exact = change(plain)
    close = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(trace[path], exact, rtol=close, atol=close)
    left = (trace[path].double() @ unit.double()).abs().max()
    assert left < close * plain.abs().max().double() * 16
    handle = model.get_submodule(path).register_forward_hook(lambda m, a, o: trace[path])
    with torch.no_grad():
        expected = model(IDS).logits[:, -1]
    handle.remove()
    assert torch.equal(trace.logits, expected)  # type: ignore[arg-type]


def test_project_out_of_one_token_leaves_the_others() -> None:
    tensor, direction = torch.randn(2, 3, 4), torch.tensor([0.0, 2.0, 0.0, 0.0])
    result = applied(lv.project_out("x", direction, (slice(None), -1)), tensor)
    assert torch.equal(result[:, :2], tensor[:, :2])
    assert result[:, 2, 1].tolist() == [0, 0]
    assert torch.equal(result[:, 2, [0, 2, 3]], tensor[:, 2, [0, 2, 3]])


def test_project_out_refuses_what_has_no_direction() -> None:
    for bad in (torch.zeros(4), torch.tensor([1.0, float("nan")]), torch.ones(2, 2), 3.0):
        with pytest.raises(lv.InterventionError, match="direction"):
            lv.project_out("x", bad)  # type: ignore[arg-type]
    with pytest.raises(lv.InterventionError, match=r"5 elements.*\(2, 4\)"):
        apply(lv.project_out("x", torch.ones(5)), torch.ones(2, 4), SITE, Frame())
    with pytest.raises(lv.InterventionError, match="cuts the last dim"):
        edit = lv.project_out("x", torch.ones(4), (..., slice(0, 2)))
        apply(edit, torch.ones(2, 4), SITE, Frame())
    with pytest.raises(lv.InterventionError, match="none"):
        apply(lv.project_out("x", torch.ones(5)), torch.tensor(1.0), SITE, Frame())


# --- mean --------------------------------------------------------------------------------------


def padded() -> dict[str, Tensor]:
    mask = torch.tensor([[1, 1, 1, 1, 0, 0, 0, 0], [1] * 8, [1, 1, 0, 0, 0, 0, 0, 0]])
    torch.manual_seed(3)
    return {"input_ids": torch.randint(0, 101, (3, 8)), "attention_mask": mask}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_over_the_real_tokens_of_a_longer_reference(kind: str, dtype: torch.dtype) -> None:
    model, path = family(kind)
    model, inputs = model.to(dtype), padded()
    reference = lv.trace(model, inputs, path)
    real = [
        (r, t) for r, row in enumerate(inputs["attention_mask"].tolist()) for t in range(sum(row))
    ]
    assert len(real) == 14
    vector = torch.stack([reference[path][r, t].double() for r, t in real]).sum(0).div(14).to(dtype)
    trace = lv.trace(model, IDS, path, lv.mean(path, reference))
    close = 1e-6 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(trace[path][0, 0], vector, rtol=close, atol=close)
    assert torch.equal(trace[path], trace[path][0, 0].expand(2, 6, 16))
    replaced = by_hand(model, path, lambda o: trace[path][0, 0].expand_as(o).clone())
    assert torch.equal(trace.logits, replaced[:, -1])  # type: ignore[arg-type]
    one = lv.trace(model, IDS, path, lv.mean(path, reference, lv.at(token=-1)))
    plain = lv.extract(model, IDS, path)[path]
    assert torch.equal(one[path][:, :-1], plain[:, :-1])
    assert torch.equal(one[path][:, -1], trace[path][:, -1])


def test_mean_of_tensors_mappings_and_values_without_tokens() -> None:
    tensor = torch.randn(5, 7, 4)
    x = torch.zeros(2, 3, 4)
    assert torch.allclose(applied(lv.mean("x", tensor), x)[1, 2], tensor.sum((0, 1)) / 35)
    rows = torch.randn(9, 4)
    assert torch.allclose(applied(lv.mean("x", {"x": rows}), x)[0, 0], rows.sum(0) / 9)
    # Without tokens dim 0 alone is averaged, and the other dims must be the value's own.
    per_position = applied(lv.mean("x", {"x": torch.stack([x[0] + 1, x[0] + 3])}), x)
    assert per_position.unique().tolist() == [2]
    with pytest.raises(lv.InterventionError, match=r"\(7, 4\).*\(2, 3, 4\)"):
        apply(lv.mean("x", {"x": tensor}), x, SITE, Frame())


def test_mean_refuses_what_has_none() -> None:
    with pytest.raises(lv.InterventionError, match="2 or more"):
        lv.mean("x", torch.ones(4))
    with pytest.raises(lv.InterventionError, match="no mean"):
        lv.mean("x", torch.ones(4, 2, dtype=torch.int64))
    with pytest.raises(lv.InterventionError, match="no mean"):
        lv.mean("x", torch.ones(0, 2))
    with pytest.raises(lv.NotRecordedError):
        lv.mean("x", {"y": torch.ones(2, 2)})
    model, _ = family("mixtral")
    gate = "model.layers.0.mlp.gate"
    reference = lv.trace(model, padded(), gate)
    assert reference[gate].shape[0] == 24, "the router sees batch and tokens in one dim"
    with pytest.raises(lv.InterventionError, match="padding"):
        lv.mean(gate, reference)
    whole = lv.trace(model, IDS, gate)
    assert torch.allclose(
        lv.mean(gate, whole).args["reference"].records[gate], whole[gate].sum(0) / 12
    )


# --- call --------------------------------------------------------------------------------------


def halved(tensor: Tensor) -> Tensor:
    return tensor.mul_(0.5)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_call_in_a_model(kind: str, dtype: torch.dtype) -> None:
    model, path = family(kind)
    model = model.to(dtype)
    expected = by_hand(model, path, lambda o: torch.tanh(o) * 0.5)
    source = "def f(x):\n    return torch.tanh(x) * 0.5"
    for edit in (
        lv.call(path, lambda x: torch.tanh(x) * 0.5),
        lv.call(path, source=source),
    ):
        assert torch.equal(lv.trace(model, IDS, (), edit, keep_output=True).output.logits, expected)


def test_a_function_gets_a_copy_of_its_region() -> None:
    tensor = torch.randn(2, 5, 4)
    expected = tensor.clone()
    expected[1, 2:4] *= 0.5
    assert torch.equal(applied(lv.call("x", halved, (1, slice(2, 4))), tensor), expected)
    seen: list[Tensor] = []
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()

    def keep(part: Tensor) -> Tensor:
        seen.append(part)
        return part

    applied(lv.call("x", keep, lv.at(token=-1)), tensor, Frame(mask))
    assert [t.shape for t in seen] == [(1, 1, 4), (1, 1, 4)]
    assert torch.equal(seen[0][0, 0], tensor[0, 2]) and torch.equal(seen[1][0, 0], tensor[1, 4])
    small = torch.tensor([1.5, 2.0]).to(torch.float8_e4m3fn)
    result, _ = apply(lv.call("x", lambda t: (t.float() * 2).to(t.dtype)), small, SITE, Frame())
    assert result.float().tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda t: t[:1], r"returned float32 \(1, 3\).*must return float32 \(2, 3\)"),
        (lambda t: t.double(), "returned float64"),
        (lambda t: None, "returned a NoneType"),
        (lambda t: 1 / 0, r"raised ZeroDivisionError on a tensor of shape \(2, 3\)"),
    ],
)
def test_what_a_function_must_return(fn: Any, said: str) -> None:
    edit = lv.call("lin", fn)
    with pytest.raises(lv.InterventionError, match=f"call at lin: .*{said}") as caught:
        lv.trace(One(), torch.ones(2, 3), (), edit)
    assert caught.value.intervention is edit
    if "raised" in said:
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


class One(nn.Module):
    """A model with one part."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lin(x)
        return out


def test_functions_by_path_and_source() -> None:
    edit = lv.call("x", "torch:tanh")
    assert edit.portable and str(edit) == "call x torch:tanh"
    assert torch.equal(applied(edit, torch.ones(2)), torch.ones(2).tanh())
    assert (
        lv.call("x", torch.nn.functional.relu).portable and not lv.call("x", lambda t: t).portable
    )
    two = "def a(x):\n    return b(x) + 1\ndef b(x):\n    return x * 2\n"
    assert applied(lv.call("x", source=two, name="a"), torch.ones(2)).tolist() == [3, 3]
    for make, said in (
        (lambda: lv.call("x"), "give a function"),
        (lambda: lv.call("x", halved, source=two), "give a function"),
        (lambda: lv.call("x", 3), "cannot be called"),  # type: ignore[arg-type]
        (lambda: lv.call("x", "tanh"), "import path"),
        (lambda: lv.call("x", "torch:no_such"), "no_such"),
        (lambda: lv.call("x", "torch:float32"), "not a function"),
        (lambda: lv.call("x", source=two), "defines 2 functions"),
        (lambda: lv.call("x", source="def f(:"), "cannot be read"),
        (lambda: lv.call("x", source="1 / 0", name="f"), "ZeroDivisionError"),
        (lambda: lv.call("x", source="g = 1", name="g"), "no function 'g'"),
    ):
        with pytest.raises(lv.InterventionError, match=said):
            make()


# --- all ---------------------------------------------------------------------------------------


def test_whole_numbers_are_refused_by_what_makes_fractions() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    for edit in (
        lv.noise("x", 1, 0),
        lv.project_out("x", torch.ones(2)),
        lv.mean("x", torch.ones(3, 2)),
        lv.scale("x", 2),
    ):
        with pytest.raises(lv.InterventionError, match="round"):
            apply(edit, ids, SITE, Frame())
    with pytest.raises(lv.InterventionError, match="rounds"):
        apply(lv.patch("x", torch.ones(2, 2) / 2), ids, SITE, Frame())
    assert applied(lv.patch("x", ids + 1), ids).tolist() == [[2, 3], [4, 5]]
    assert applied(lv.call("x", lambda t: t + 1), ids).tolist() == [[2, 3], [4, 5]]


def test_what_is_no_noise() -> None:
    for std, seed in ((-1, 0), (float("nan"), 0), ("1", 0), (1, 0.5), (1, None), (1, True)):
        with pytest.raises(lv.InterventionError, match="noise at x"):
            lv.noise("x", std, seed)  # type: ignore[arg-type]
    with pytest.raises(lv.InterventionError, match="real"):
        apply(lv.noise("x", 1, 0), torch.ones(2, dtype=torch.complex64), SITE, Frame())


def test_which_operations_are_local_to_a_shard() -> None:
    vector = torch.ones(4)
    local = [lv.zero("x"), lv.scale("x", 2), lv.add("x", vector), lv.put("x", 1), lv.clamp("x", 0)]
    whole = [lv.noise("x", 1, 0), lv.project_out("x", vector), lv.call("x", halved)]
    whole.append(lv.skip("x", "input"))
    assert all(i.local for i in local) and not any(i.local for i in whole)


def test_half_precision_overflow_is_counted_and_warned_of() -> None:
    """O20: 60000 * 2 is inf in float16."""
    tensor = torch.tensor([60000.0, 1.0, float("inf"), float("nan")]).half()
    after, _ = apply(lv.scale("x", 2), tensor, SITE, Frame())
    assert int(overflowed(tensor, after)) == 1 and after[0].isinf()
    model = nn.Sequential(nn.Identity(), nn.Identity())
    x = torch.tensor([[60000.0, 1.0]]).half()
    with pytest.warns(lv.LensWarning, match="scale 0 2: 1 elements") as caught:
        trace = lv.trace(model, x, "*", [lv.scale("0", 2), lv.scale("0", 0.5)])
    assert caught[0].filename == __file__
    assert [r.overflowed for r in trace.reports] == [1, 0]
    assert trace["1"].tolist() == [[float("inf"), 1.0]]


@pytest.mark.parametrize("order", [1, -1])
def test_two_that_contradict_each_other_apply_in_the_order_given(order: int) -> None:
    edits = [lv.put("lin", 1.0), lv.zero("lin")][::order]
    trace = lv.trace(One(), torch.ones(2, 3), "lin", edits)
    assert trace["lin"].unique().tolist() == [0.0 if order == 1 else 1.0]
    assert [r.changed for r in trace.reports] == [6, 6]
    mixed = lv.trace(
        One(), torch.ones(2, 3), "lin", [lv.put("*", 2.0), lv.scale("lin", 3), lv.clamp("*", 0, 5)]
    )
    assert mixed["lin"].unique().tolist() == [5.0]


def test_heads_of_attention_weights() -> None:
    model, _ = family("llama")
    model.set_attn_implementation("eager")  # type: ignore[operator]
    attention = "model.layers.0.self_attn"
    site = f"{attention}:output[1]"
    plain = lv.trace(model, IDS, site)
    assert plain[site].shape == (2, 4, 6, 6)
    trace = lv.trace(model, IDS, site, lv.zero(site, lv.at(head=2, batch=0)))
    expected = plain[site].clone()
    expected[0, 2] = 0
    assert torch.equal(trace[site], expected)
    other = lv.trace(model, IDS.flip(0, 1), site)
    patched = lv.trace(model, IDS, site, lv.patch(site, other, lv.at(head=[1, 3])))
    assert torch.equal(patched[site][:, [1, 3]], other[site][:, [1, 3]])
    assert torch.equal(patched[site][:, [0, 2]], plain[site][:, [0, 2]])
    for index, said in (
        (lv.at(head=4), "out of range for dim 1 of size 4"),
        (lv.at(head=0, token=1), "query and a key"),
    ):
        with pytest.raises(lv.InterventionError, match=said):
            lv.trace(model, IDS, site, lv.zero(site, index))
    with pytest.raises(lv.InterventionError, match="heads are not known"):
        lv.trace(model, IDS, (), lv.zero(f"{attention}", lv.at(head=0)))
    gpt2, _ = family("gpt2")
    with pytest.raises(lv.InterventionError, match="heads are not known"):
        lv.trace(gpt2, IDS, (), lv.zero("transformer.h.0.attn.c_attn", lv.at(head=0)))
