"""Less of everything: early stops, parts of values, smaller dtypes, limits and estimates."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.plan import Plan

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])
LAYER = "model.layers.1"
MASKED = {
    "input_ids": IDS,
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
}


def ran(model: nn.Module) -> list[str]:
    """A list that the names of modules go to as they finish."""
    names: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, n=name: names.append(n))
    return names


# --- stop -----------------------------------------------------------------------------------------


def test_stop_ends_after_the_last_asked_site(tiny_llama: Any) -> None:
    expected = lv.trace(tiny_llama, IDS, ["model.layers.0.mlp", "model.layers.1:input"])
    names = ran(tiny_llama)
    trace = lv.trace(
        tiny_llama, IDS, ["model.layers.1:input", "model.layers.0.mlp"], stop=True, grad=True
    )
    assert "model.layers.0" in names and "model.layers.1.input_layernorm" not in names
    assert all(torch.equal(trace[s], expected[s]) for s in expected)
    assert trace.meta["stopped"] is True and trace.logits is None and trace.output is None
    names.clear()
    trace = lv.trace(tiny_llama, IDS, "model.layers.*.mlp", stop=True)
    assert len(trace) == 3 and "model.layers.2.mlp" in names and "model.norm" not in names


def test_what_is_never_called_does_not_stop(tiny_llama: Any) -> None:
    trace = lv.trace(tiny_llama, IDS, ["model.layers.0", "model.layers.0@4"], stop=True)
    assert trace.logits is not None and "stopped" not in trace.meta


def test_stop_waits_for_the_call_that_was_asked_for() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act, self.end = nn.Tanh(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.end(self.act(self.act(x)))
            except Exception:
                return x

    names = ran(model := Twice())
    trace = lv.trace(model, torch.ones(2), "act@1", stop=True)
    assert trace.sites == ("act@1",) and names == ["act", "act"]
    assert torch.equal(trace["act@1"], torch.ones(2).tanh().tanh())
    plain = lv.trace(model, torch.ones(2), ":output")
    assert torch.equal(plain[":output"], trace["act@1"])


# --- keep -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (lv.at(token=-1), lambda t: torch.stack([t[0, 5:6], t[1, 3:4]])),
        (lv.at(token=[0, 2], feature=slice(0, 4)), lambda t: t[:, 0:3:2, :4]),
        ((0, slice(1, 3)), lambda t: t[0:1, 1:3]),
        (torch.bfloat16, lambda t: t.bfloat16()),
        ({"**.mlp": lv.at(token=0), "model.layers.1": torch.float16}, lambda t: t.half()),
        ({LAYER: lv.at(feature=3), "**": torch.float64}, lambda t: t[..., 3:4].double()),
    ],
    ids=str,
)
def test_keep_holds_the_part_that_was_asked_for(tiny_llama: Any, keep: Any, expected: Any) -> None:
    whole = lv.trace(tiny_llama, MASKED, [LAYER, f"{LAYER}.mlp"])
    trace = lv.trace(tiny_llama, MASKED, [LAYER, f"{LAYER}.mlp"], keep=keep)
    want = expected(whole[LAYER])
    assert trace[LAYER].dtype == want.dtype and torch.equal(trace[LAYER], want)
    assert trace[LAYER].untyped_storage().nbytes() == want.nbytes, "more is held than was asked"
    assert trace.aligned(LAYER) is (want.shape[:2] == IDS.shape)
    assert torch.equal(trace.logits, whole.logits)  # type: ignore[arg-type]


def test_keep_of_one_column_is_never_taken_for_a_token() -> None:
    """One token in all: the cut record has the shape of an aligned one, and is none."""
    embedding = nn.Embedding(10, 4)
    model = nn.Sequential(embedding)
    model.get_input_embeddings = lambda: embedding  # type: ignore[assignment]
    ids = torch.tensor([[3]])
    assert lv.trace(model, ids, "0").aligned("0")
    trace = lv.trace(model, ids, "0", keep=lv.at(token=-1))
    assert trace.record("0").part == "at(token=-1)" and not trace.aligned("0")


def test_keep_that_does_not_fit(tiny_llama: Any) -> None:
    with pytest.raises(lv.InterventionError, match=r"keep= at model\.layers\.1.*token=9|9.*range"):
        lv.trace(tiny_llama, IDS, LAYER, keep=lv.at(token=9))
    trace = lv.trace(tiny_llama, IDS, "**", keep=lv.at(token=5))
    assert "keep= does not fit" in trace.missed["model.rotary_emb"]
    assert trace["model.norm"].shape == (2, 1, 16)
    with pytest.raises(lv.InterventionError, match="different lengths"):
        lv.trace(tiny_llama, MASKED, LAYER, keep=lv.at(token=slice(1, None)))
    for wrong in ("bfloat16", torch.int8, {3: torch.bfloat16}):
        with pytest.raises(lv.InputError, match="keep="):
            lv.trace(tiny_llama, IDS, LAYER, keep=wrong)


def test_a_cut_record_is_no_source_of_a_patch_and_survives_its_file(
    tiny_llama: Any, tmp_path: Any
) -> None:
    trace = lv.trace(tiny_llama, IDS, LAYER, keep=lv.at(token=[0, 1, 2, 3, 4, 5]))
    trace.save(tmp_path / "t.safetensors")
    again = lv.load(tmp_path / "t.safetensors")
    for one in (trace, again):
        assert one.record(LAYER).part and not one.aligned(LAYER)
        with pytest.raises(lv.InterventionError, match="kept only"):
            lv.patch(LAYER, one)
    assert again.plan.keep == trace.plan.keep


def test_keep_cuts_gradients_alike(tiny_llama: Any) -> None:
    whole = lv.trace(tiny_llama, IDS, LAYER, grad=True)
    trace = lv.trace(tiny_llama, IDS, LAYER, grad=True, keep=lv.at(token=[1, 2]))
    for one in (whole, trace):
        one.output.logits[:, -1].square().sum().backward()
    assert torch.equal(trace.grad(LAYER), whole.grad(LAYER)[:, 1:3])


def test_a_plan_carries_it_all_through_json() -> None:
    keep = {"**.mlp": lv.at(token=-1, feature=slice(0, 3)), "a:input[1]": torch.bfloat16}
    plan = Plan.make("a", keep=keep, grad=True, stop=True, max_bytes=7)
    body, tensors = plan.to_json()
    again = Plan.from_json(json.loads(json.dumps(body)), tensors)
    assert again == plan
    for new in ("keep", "grad", "stop"):
        del body[new]
    assert Plan.from_json(body, tensors) == Plan.make("a", max_bytes=7)


# --- estimates and limits -------------------------------------------------------------------------


def t5() -> tuple[Any, dict[str, Any]]:
    import transformers as tf

    config = tf.T5Config(vocab_size=101, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    model = tf.T5ForConditionalGeneration(config)
    model.eval()
    return model, {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}


@pytest.mark.parametrize("kind", ["llama", "masked", "gpt2", "t5"])
@pytest.mark.parametrize("keep", [None, torch.bfloat16, {"**": (0,)}], ids=str)
def test_an_estimate_is_what_the_run_then_holds(
    tiny_llama: Any, tiny_gpt2: Any, kind: str, keep: Any
) -> None:
    model, inputs = t5() if kind == "t5" else (tiny_gpt2 if kind == "gpt2" else tiny_llama, IDS)
    inputs = MASKED if kind == "masked" else inputs
    asked = ["**", "**:input"]
    names = ran(model)
    found = lv.estimate(model, inputs, asked, keep=keep)
    assert found.unknown == "" and names == []
    trace = lv.trace(model, inputs, asked, keep=keep)
    assert {s: t.nbytes for s, t in trace.items()} == found.sites
    distinct = {t.data_ptr(): t.nbytes for t in trace.values() if t.nbytes}
    assert sum(distinct.values()) <= found.total <= sum(found.sites.values())
    largest, size = found.largest(1)[0]
    assert size == max(t.nbytes for t in trace.values()) and largest in str(found)
    assert not any(p.is_meta for p in model.parameters())


def test_named_sites_beyond_the_limit_are_refused_before_the_run(tiny_llama: Any) -> None:
    layer = 2 * 6 * 16 * 4
    asked = [f"model.layers.{i}" for i in range(3)]
    names = ran(tiny_llama)
    with pytest.raises(lv.LimitError, match=r"need 2\.2 KiB.*(?s:.*)lm_head|model\.layers") as told:
        lv.trace(tiny_llama, IDS, asked, max_bytes=3 * layer - 1)
    assert "keep=torch.bfloat16" in str(told.value) and isinstance(told.value, MemoryError)
    assert names == []
    assert len(lv.trace(tiny_llama, IDS, asked, max_bytes=3 * layer)) == 3
    half = lv.trace(tiny_llama, IDS, asked, max_bytes=3 * layer - 1, keep=torch.bfloat16)
    assert len(half) == 3
    with pytest.raises(lv.SiteError, match="no module"):
        lv.trace(tiny_llama, IDS, "model.layers.9", max_bytes=1)


def test_what_cannot_be_estimated_says_why_and_runs(tiny_llama: Any) -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x) if float(x.sum()) > 0 else x

    found = lv.estimate(Looks(), torch.ones(1, 2), "**")
    assert "needs values" in found.unknown and str(found).startswith("unknown")
    assert found.sites == {} and found.total == 0
    assert len(lv.trace(Looks(), torch.ones(1, 2), "inner", max_bytes=1)) == 1
    with torch.no_grad():
        past = tiny_llama(IDS, use_cache=True).past_key_values
    given = {"input_ids": IDS[:, :1], "past_key_values": past}
    assert "Cache" in lv.estimate(tiny_llama, given, LAYER).unknown
    assert past.get_seq_length() == 6
