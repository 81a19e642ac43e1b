"""One run: every record against a hook written by hand, on real architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

from ..by_hand import by_hand

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])


def tiny(kind: str) -> tuple[nn.Module, dict[str, Any]]:
    """A random model of an architecture of transformers, and the keyword arguments of a call."""
    import transformers as tf

    torch.manual_seed(0)
    small: dict[str, Any] = {
        "vocab_size": 101,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    mlp: dict[str, Any] = {"intermediate_size": 32}
    sizes: dict[str, Any] = {}
    text = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    model: nn.Module
    if kind == "llama":
        config = tf.LlamaConfig(**small, **mlp, num_key_value_heads=2)
        model = tf.LlamaForCausalLM(config)
    elif kind == "gpt2":
        model = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=101, n_embd=16, n_layer=2, n_head=4))
    elif kind == "mixtral":
        sizes = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
        model = tf.MixtralForCausalLM(tf.MixtralConfig(**small, **mlp, **sizes))
    elif kind == "bert":
        model = tf.BertForMaskedLM(tf.BertConfig(**small, **mlp))
    elif kind == "t5":
        sizes = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
        model = tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=101, **sizes))
        text["decoder_input_ids"] = IDS[:, :3]
    elif kind == "mamba":
        model = tf.MambaForCausalLM(tf.MambaConfig(**small, state_size=4))
    elif kind == "vit":
        sizes = {"image_size": 8, "patch_size": 4, "num_channels": 3}
        vit = {k: v for k, v in small.items() if k != "vocab_size"}
        model = tf.ViTModel(tf.ViTConfig(**vit, **mlp, **sizes))
        text = {"pixel_values": torch.randn(2, 3, 8, 8)}
    else:
        raise ValueError(kind)
    model.eval()
    return model, text


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "bert", "t5", "mamba", "vit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_site_is_what_a_hook_by_hand_sees(kind: str, dtype: torch.dtype) -> None:
    model, kwargs = tiny(kind)
    model = model.to(dtype)
    kwargs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in kwargs.items()}
    expected = by_hand(model, lambda: model(**kwargs))
    trace = lv.trace(model, kwargs, ["**", "**:input"])
    assert set(trace.sites) == set(expected)
    for site, tensor in expected.items():
        assert trace[site].dtype == tensor.dtype, site
        assert torch.equal(trace[site], tensor), site


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mixtral", "t5", "mamba"])
def test_an_edit_is_what_a_hook_by_hand_does(kind: str) -> None:
    model, kwargs = tiny(kind)
    site = next(
        n for n, m in model.named_modules() if n.endswith(("0.mlp", "mixer", "SelfAttention"))
    )

    def double(_m: nn.Module, _a: Any, output: Any) -> Any:
        return (output[0] * 2, *output[1:]) if isinstance(output, tuple) else output * 2

    handle = model.get_submodule(site).register_forward_hook(double)
    with torch.no_grad():
        expected = model(**kwargs).logits
    handle.remove()
    trace = lv.trace(model, kwargs, site, lv.scale(site, 2), keep_output=True)
    assert torch.equal(trace.output.logits, expected)
    assert trace.reports[0].calls == 1
    assert not torch.equal(
        trace.output.logits, lv.trace(model, kwargs, (), keep_output=True).output.logits
    )


def test_an_input_passed_by_keyword_is_edited_for_the_module(tiny_llama: nn.Module) -> None:
    site = "model.layers.0.self_attn:input"
    trace = lv.trace(
        tiny_llama, IDS, [site, "model.layers.0.self_attn.q_proj:input"], lv.scale(site, 0.5)
    )
    plain = lv.trace(tiny_llama, IDS, [site, "model.layers.0.input_layernorm"])
    assert torch.equal(plain[site], plain["model.layers.0.input_layernorm"])
    assert torch.equal(trace[site], plain[site] * 0.5)
    assert torch.equal(trace["model.layers.0.self_attn.q_proj:input"], plain[site] * 0.5)


def test_leaves_of_inputs_and_outputs(tiny_llama: nn.Module) -> None:
    layer = "model.layers.1.self_attn"
    trace = lv.trace(
        tiny_llama,
        IDS,
        [f"{layer}:output[0]", f"{layer}:input[position_embeddings][1]", ":output[logits]"],
    )
    whole = lv.trace(tiny_llama, IDS, [layer, ":output", "model.rotary_emb:output[1]"])
    assert torch.equal(trace[f"{layer}:output[0]"], whole[layer])
    assert torch.equal(whole[f"{layer}:output[0]"], whole[layer])
    sin = trace[f"{layer}:input[position_embeddings][1]"]
    assert torch.equal(sin, whole["model.rotary_emb:output[1]"])
    assert torch.equal(trace[":output[logits]"], whole[":output"])
    with pytest.raises(lv.SiteError, match="hidden_states"):
        lv.trace(tiny_llama, IDS, f"{layer}:input[hidden_state]")
    trace = lv.trace(tiny_llama, IDS, f"{layer}:output[1]")
    assert trace.missed == {} and trace.value(f"{layer}:output[1]") is None
    with pytest.raises(lv.NotRecordedError, match="NoneType"):
        trace[f"{layer}:output[1]"]


class Shared(nn.Module):
    """``act(b(act(a(x))))`` with one activation for both."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.b(self.act(self.a(x))))
        return out


def test_several_calls_of_one_module() -> None:
    torch.manual_seed(1)
    model, x = Shared(), torch.randn(2, 3)
    with torch.no_grad():
        first = torch.relu(model.a(x))
        last = torch.relu(model.b(first))
    trace = lv.trace(model, x, ["act", "act:input", "a@0"])
    assert trace.sites == ("a", "act:input@0", "act@0", "act:input@1", "act@1")
    assert torch.equal(trace["act@0"], first) and torch.equal(trace["act@1"], last)
    assert torch.equal(trace["act:input@1"], model.b(first))
    assert torch.equal(trace["a@0"], trace["a"])
    with pytest.raises(lv.SiteError, match="2 times"):
        trace["act"]
    with pytest.raises(lv.SiteError, match="2 times"):
        lv.extract(model, x, ["act"])
    with pytest.raises(lv.NotRecordedError, match="2 times"):
        trace["act@2"]
    only = lv.trace(model, x, ["act@1", "act@7"])
    assert only.sites == ("act@1",)
    assert "2 time(s)" in only.missed["act@7"]
    edited = lv.trace(model, x, ":output", lv.zero("act@0"))
    assert edited.reports[0].calls == 1
    assert torch.equal(edited[":output"], torch.relu(model.b(torch.zeros_like(first))))
    both = lv.trace(model, x, ":output", lv.zero("act"))
    assert both.reports[0].calls == 2 and both[":output"].abs().max() == 0


class Containers(nn.Module):
    """Layers that return ``h``, ``(h,)`` and ``(h, None, {'a': w})``."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.kind = kind

    def forward(self, h: Tensor) -> Any:
        h = self.layer(h)
        return (h, (h,), (h, None, {"a": h + 1}), [h], {"x": 3, "h": h})[self.kind]


@pytest.mark.parametrize("kind", range(5))
def test_one_edit_for_every_container(kind: int) -> None:
    """O07: the container comes back as it was, and both samples change."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"in": Containers(kind)})["in"]
    x = torch.randn(2, 3)
    plain = lv.trace(model, x, ":output", keep_output=True)
    edited = lv.trace(model, x, ":output", lv.add(":output", torch.ones(3)), keep_output=True)
    assert torch.equal(edited[":output"], plain[":output"] + 1)
    assert type(edited.output) is type(plain.output)
    if kind == 2:
        assert edited.output[1] is None
        assert torch.equal(edited.output[2]["a"], plain.output[2]["a"])
    if kind == 4:
        assert list(edited.output) == ["x", "h"] and edited.output["x"] == 3


def test_what_was_never_called_is_said_and_an_edit_there_is_never_done() -> None:
    """O05: MultiheadAttention uses ``out_proj``'s weight and never calls it."""
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    trace = lv.trace(model, (x, x, x), ["out_proj", ":output"])
    assert trace.sites == (":output",)
    assert "never called" in trace.missed["out_proj"]
    with pytest.raises(lv.NotRecordedError, match="never called"):
        trace["out_proj"]
    with pytest.raises(lv.IdleInterventionError, match=r"zero out_proj: .*never called") as idle:
        lv.trace(model, (x, x, x), ":output", lv.zero("out_proj"))
    ran = idle.value.trace
    assert isinstance(ran, lv.Trace) and torch.equal(ran[":output"], trace[":output"])
    assert (ran.reports[0].calls, ran.reports[0].changed) == (0, 0)


def test_lists_of_modules_have_no_values(tiny_llama: nn.Module) -> None:
    trace = lv.trace(tiny_llama, IDS, ["model.layers", "**"])
    assert "only holds modules" in trace.missed["model.layers"]
    assert set(trace.missed) == {"model.layers"}


def test_extract_is_keyed_by_what_was_asked(tiny_llama: nn.Module) -> None:
    found = lv.extract(tiny_llama, IDS, ["model.layers.0:output", "**.o_proj"])
    assert list(found) == [
        "model.layers.0:output",
        *(f"model.layers.{i}.self_attn.o_proj" for i in range(3)),
    ]
    assert list(lv.extract(tiny_llama, IDS, "lm_head")) == ["lm_head"]


def test_interventions_apply_in_order_and_records_show_the_result(tiny_llama: nn.Module) -> None:
    site = "model.layers.1.mlp"
    trace = lv.trace(tiny_llama, IDS, site, [lv.put(site, 1.0), lv.scale(site, 3), lv.add(site, 1)])
    assert torch.equal(trace[site], torch.full((2, 6, 16), 4.0))
    assert [r.changed for r in trace.reports] == [192, 192, 192]


def test_patching_all_of_a_layer_carries_its_run_over(tiny_llama: nn.Module) -> None:
    """O20: patching one run's layer into another makes the later layers that run's."""
    source = lv.trace(tiny_llama, IDS, "model.layers.1")
    other = IDS.flip(0, 1)
    patched = lv.trace(tiny_llama, other, "**", lv.patch("model.layers.1", source))
    assert patched.logits is not None and source.logits is not None
    assert torch.equal(patched.logits, source.logits)
    own = lv.trace(tiny_llama, IDS, "**", lv.patch("model.layers.1", source))
    assert own.reports[0].changed == 0
    assert torch.equal(own.logits, source.logits)  # type: ignore[arg-type]


def test_max_bytes_leaves_out_and_says_so(tiny_llama: nn.Module) -> None:
    layer = 2 * 6 * 16 * 4
    trace = lv.trace(tiny_llama, IDS, "model.layers.*", max_bytes=2 * layer)
    assert trace.sites == ("model.layers.0", "model.layers.1")
    assert "left out" in trace.missed["model.layers.2"]
    with pytest.raises(lv.NotRecordedError, match="max_bytes"):
        trace["model.layers.2"]
    named = lv.trace(tiny_llama, IDS, ["model.layers.*", "model.layers.2"], max_bytes=2 * layer)
    assert named.sites == ("model.layers.0", "model.layers.1", "model.layers.2")
    assert named.missed == {}


def test_the_demo_model_says_paris(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    trace = lv.trace(model, "The capital of France is", "**.mlp", tokenizer=tokenizer)
    best = trace.top(1)[0]
    assert best.text == " Paris"
    assert best.probability == pytest.approx(0.77, abs=0.005)
    assert len(trace) == 30 and trace["model.layers.10.mlp"].shape == (1, 5, 576)
    assert trace.aligned("model.layers.10.mlp")
    zeroed = lv.trace(
        model,
        "The capital of France is",
        (),
        lv.zero("model.layers.10.mlp"),
        tokenizer=tokenizer,
    )
    handle = model.model.layers[10].mlp.register_forward_hook(lambda m, a, o: o * 0)
    with torch.no_grad():
        expected = model(**tokenizer("The capital of France is", return_tensors="pt")).logits[0, -1]
    handle.remove()
    assert zeroed.logits is not None and torch.equal(zeroed.logits[0], expected)
