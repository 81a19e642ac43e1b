"""Field cases O01 to O08: the semantics of module calls."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])


class Reused(nn.Module):
    """``act(b(act(a(x))))``."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.b(self.act(self.a(x))))
        return out


def test_o01_one_module_several_calls() -> None:
    """Each call has a record of its own; an edit can take one; a second run starts at 0 again."""
    torch.manual_seed(1)
    model, x = Reused(), torch.randn(2, 3)
    with torch.no_grad():
        first, last = torch.relu(model.a(x)), model(x)
        zeroed = torch.relu(model.b(torch.zeros_like(first)))
    for _ in range(2):
        trace = lv.trace(model, x, "act")
        assert trace.sites == ("act@0", "act@1")
        assert torch.equal(trace["act@0"], first) and torch.equal(trace["act@1"], last)
    edited = lv.trace(model, x, "act", lv.zero("act@0"))
    assert edited["act@0"].abs().max() == 0 and torch.equal(edited["act@1"], zeroed)
    assert edited.reports[0].calls == 1


class Residual(nn.Module):
    """Adds its second part in place into the output of its first."""

    def __init__(self) -> None:
        super().__init__()
        self.hooked, self.sub = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.hooked(x)
        h += self.sub(h)
        out: Tensor = h
        return out


def test_o02_input_overwritten_in_place() -> None:
    """A record is the value when it passed, whatever is written into its memory later."""
    trace = lv.trace(nn.ReLU(inplace=True), torch.tensor([1.5, -2.5]), [":input", ":output"])
    assert trace[":input"].tolist() == [1.5, -2.5]
    assert trace[":output"].tolist() == [1.5, 0.0]
    model, x = Residual(), torch.randn(1, 2)
    trace = lv.trace(model, x, ["hooked", ":output"])
    with torch.no_grad():
        assert torch.equal(trace["hooked"], model.hooked(x))
        assert torch.equal(trace[":output"], model.hooked(x) + model.sub(model.hooked(x)))


def test_o03_keyword_only_inputs(tiny_llama: nn.Module) -> None:
    """What travels by keyword has a name, can be read and edited."""
    attention = "model.layers.0.self_attn"
    site, query = f"{attention}:input[hidden_states]", f"{attention}.q_proj"
    trace = lv.trace(tiny_llama, IDS, [site, "model.layers.0.input_layernorm", query])
    assert trace[site].shape == (2, 4, 16)
    assert torch.equal(trace[site], trace["model.layers.0.input_layernorm"])
    edited = lv.trace(tiny_llama, IDS, query, lv.scale(site, 2))
    weight = tiny_llama.get_submodule(query).weight
    assert isinstance(weight, Tensor)
    assert torch.equal(edited[query], nn.functional.linear(trace[site] * 2, weight))


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    return nn.TransformerEncoder(layer, 2).eval()


def test_o04_fused_paths_skip_modules() -> None:
    """All 19 sites of an encoder in eval mode have values, those of the unfused path."""
    model, x = encoder(), torch.randn(2, 4, 8)
    with torch.no_grad():
        fused = model(x)
    unfused: dict[str, Tensor] = {}
    handles = [
        m.register_forward_hook(
            lambda _m, _a, out, n=n: (
                unfused.update({n or ":output": out})
                if isinstance(out, Tensor)
                else unfused.update({n: out[0]})
            )
        )
        for n, m in model.named_modules()
    ]
    model(x)
    for handle in handles:
        handle.remove()
    trace = lv.trace(model, x, "**", keep_output=True)
    assert len(trace.sites) == 19 and set(trace.sites) == set(unfused)
    for site, tensor in unfused.items():
        assert torch.allclose(trace[site], tensor, rtol=0, atol=1e-5), site
    assert torch.allclose(trace.output, fused, rtol=0, atol=1e-5)


class Around(nn.Module):
    """Calls the forward of its part, not the part."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.sub.forward(x)


def test_o05_sites_that_can_never_fire(tiny_llama: nn.Module) -> None:
    """The run ends, the likely cause is named, an edit there is never success, typos are errors."""
    x = torch.randn(1, 3, 8)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    for model, inputs, site, cause in (
        (attention, (x, x, x), "out_proj", "uses its weights directly"),
        (Around(), torch.ones(1, 2), "sub", r"\.forward directly"),
    ):
        trace = lv.trace(model, inputs, site)
        assert trace.sites == ()
        with pytest.raises(lv.NotRecordedError, match=cause):
            trace[site]
        said = f"did nothing.*\n.*zero {site}"
        with pytest.raises(lv.IdleInterventionError, match=said) as caught:
            lv.trace(model, inputs, (), lv.zero(site))
        assert isinstance(caught.value.trace, lv.Trace)
        (report,) = caught.value.trace.reports
        assert (report.calls, report.changed) == (0, 0)
    ran: list[int] = []
    handle = tiny_llama.register_forward_pre_hook(lambda *_: ran.append(1))
    with pytest.raises(lv.SiteError, match=r"model\.layers\.0\.mlp"):
        lv.trace(tiny_llama, IDS, "model.layers.0.mpl")
    handle.remove()
    assert not ran


IMPLEMENTATIONS = ["grouped_mm", "batched_mm", "eager"]
EXPERTS = "model.layers.0.mlp.experts"


def mixtral(implementation: str, experts: int = 4) -> Any:
    """Each token goes to 2 of the experts; 16 hidden, 32 inside an expert."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    make: Any = MixtralConfig
    config = make(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=experts,
        num_experts_per_tok=2,
        experts_implementation=implementation,
    )
    model = MixtralForCausalLM(config)
    model.eval()
    return model


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("batch", [1, 2])
def test_o06_experts_without_modules(implementation: str, batch: int) -> None:
    """Experts see flattened rows: whole, in however many calls, and never taken for tokens."""
    model, ids = mixtral(implementation), IDS[:batch, :3]
    act, gate, block = f"{EXPERTS}.act_fn", "model.layers.0.mlp.gate", "model.layers.0.mlp"
    trace = lv.trace(model, ids, [f"{EXPERTS}:input", EXPERTS, act, gate, block])
    tokens = batch * 3
    assert trace[EXPERTS].shape == (tokens, 16) and trace.rows(EXPERTS) == "flattened tokens"
    assert torch.equal(trace[EXPERTS].view(batch, 3, 16), trace[block]), "in token order"
    assert trace.rows(f"{EXPERTS}:input") == trace.rows(gate) == "flattened tokens"
    assert trace.rows(block) == "tokens" and trace.aligned(block)
    acts = trace.select(act)
    assert sum(len(t) for t in acts.values()) == 2 * tokens
    assert {t.shape[1] for t in acts.values()} == {32}
    assert (len(acts) == 1) == (implementation != "eager")
    assert {trace.rows(site) for site in acts} == {"no token order"}
    assert not any(trace.aligned(site) for site in (*acts, EXPERTS, gate))
    refused = {act: "sorted by expert", EXPERTS: r"row b \* 3 \+ t", gate: r"row b \* 3 \+ t"}
    for site, text in refused.items():
        with pytest.raises(lv.InterventionError, match=text):
            lv.trace(model, ids, (), lv.zero(site, lv.at(token=2)))
        with pytest.raises(lv.InterventionError, match=text):
            lv.trace(model, ids, site, keep=lv.at(token=2))
    edited = lv.trace(model, ids, block, lv.zero(EXPERTS, 2))
    zeros = edited[block].abs().sum(-1) == 0
    assert zeros.nonzero().tolist() == [[0, 2]], "row 2 of all is token 2 of the first prompt"


def test_o06_rows_of_an_expert_that_look_like_a_batch_of_tokens() -> None:
    """As many rows as prompts, as wide as prompts are long: the shape of tokens, and none are."""
    model, ids = mixtral("eager", experts=64), torch.arange(64).view(2, 32)
    trace = lv.trace(model, ids, f"{EXPERTS}.act_fn")
    found = [s for s in trace if trace[s].shape == ids.shape]
    assert found, "some of 64 experts get 2 of the 128 rows"
    assert trace.rows(found[0]) == "no token order" and not trace.aligned(found[0])
    with pytest.raises(lv.InterventionError, match="sorted by expert"):
        lv.trace(model, ids, (), lv.zero(found[0], lv.at(token=2)))


def test_o06_what_is_shown_of_experts() -> None:
    """Pictures say what the rows are, and no token stands beside them."""
    from lensview.explorer.outputs import outputs_page
    from lensview.explorer.protocol import TileParams
    from lensview.explorer.replies import tile_reply
    from lensview.explorer.runs import Latest

    model, ids = mixtral("grouped_mm"), IDS[:, :3]
    session = lv.LocalSession(model)
    trace = session.trace(ids, "**")
    latest = Latest(run=1, inputs=ids, trace=trace, baseline=trace)
    rows = session.tree()
    shapes = outputs_page(rows, latest, 0, len(rows))
    told = {r.path: shapes.shapes[i] for r, i in zip(rows, shapes.rows, strict=True) if i >= 0}
    said = {
        EXPERTS: ("6 x 16", "flattened tokens"),
        "model.layers.0.mlp.gate": ("6 x 4", "flattened tokens"),
        f"{EXPERTS}.act_fn": ("12 x 32", "no token order"),
    }
    for site, (shape, kind) in said.items():
        assert told[site] == f"{shape}, {kind}"
        reply, _ = tile_reply(session, latest, TileParams(site, "latest", None, 64, 64, []))
        assert reply.row_labels == [] and f"rows: {kind}" in reply.note
        assert f"rows: {kind}" in lv.figures.heatmap(trace, site).layout.title.subtitle.text
    assert told["model.layers.0.mlp"] == "2 x 3 x 16"


class Returns(nn.Module):
    """A layer whose output is put into a container by `wrap`."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(3, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


@pytest.mark.parametrize(
    "wrap",
    [lambda h: h, lambda h: (h,), lambda h: (h, None, {"a": h + 1})],
    ids=["tensor", "1-tuple", "3-tuple"],
)
def test_o07_layer_output_tuple_one_release_tensor_the_next(wrap: Any) -> None:
    """One edit for all; containers come back unchanged; both samples of a batch change."""
    torch.manual_seed(0)
    layer, x, v = Returns(wrap), torch.randn(2, 3), 2.0
    model = nn.Sequential(layer)
    plain = lv.trace(model, x, "0", keep_output=True)
    edited = lv.trace(model, x, "0", lv.add("0", v), keep_output=True)
    with torch.no_grad():
        hidden = layer.linear(x)
    assert torch.equal(plain["0"], hidden) and torch.equal(edited["0"], hidden + v)
    assert type(edited.output) is type(plain.output)
    if isinstance(plain.output, tuple):
        assert len(edited.output) == len(plain.output)
        assert torch.equal(edited.output[0], hidden + v)
    if isinstance(plain.output, tuple) and len(plain.output) == 3:
        assert edited.output[1] is None and torch.equal(edited.output[2]["a"], hidden + 1)


class Pair(NamedTuple):
    name: str
    h: Tensor


@dataclass
class Held:
    count: int
    h: Tensor


def test_o08_nested_and_odd_containers() -> None:
    """Paths into nests; the types of containers survive an edit; non-tensors are kept beside."""
    lstm, x = nn.LSTM(4, 5, 2, batch_first=True), torch.randn(3, 6, 4)
    with torch.no_grad():
        out, (h, c) = lstm(x)
    trace = lv.trace(lstm, x, [":output[0]", ":output[1][0]", ":output[1][1]"])
    assert torch.equal(trace[":output[0]"], out) and trace[":output[1][0]"].shape == (2, 3, 5)
    assert torch.equal(trace[":output[1][0]"], h) and torch.equal(trace[":output[1][1]"], c)

    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 2]), batch_first=True)
    held = lv.trace(lstm, (packed,), [":input", ":input[input][batch_sizes]"])
    assert torch.equal(held[":input"], packed.data)
    assert torch.equal(held[":input[input][batch_sizes]"], packed.batch_sizes)

    for wrap in (
        lambda h: {"n": 3, "s": "x", "none": None, "h": h},
        lambda h: Pair("p", h),
        lambda h: Held(2, h),
    ):
        model = Returns(wrap)
        plain = lv.trace(model, torch.ones(1, 3), ":output", keep_output=True)
        edited = lv.trace(
            model, torch.ones(1, 3), ":output", lv.add(":output", 1.0), keep_output=True
        )
        assert torch.equal(edited[":output"], plain[":output"] + 1)
        assert type(edited.output) is type(plain.output)
        rest = copy.copy(edited.output)
        members = rest if isinstance(rest, dict) else getattr(rest, "__dict__", None)
        if members is not None:
            assert [v for v in members.values() if not isinstance(v, Tensor)] in (
                [3, "x", None],
                [2],
            )
    trace = lv.trace(model, torch.ones(1, 3), ":output[count]")
    assert trace.value(":output[count]") == 2

    class Many(nn.Module):
        def forward(self, xs: list[Tensor]) -> Tensor:
            return torch.stack(xs).sum(0)

    xs = [torch.ones(2), torch.full((2,), 3.0)]
    trace = lv.trace(Many(), (xs,), [":input[xs][1]", ":output"])
    assert torch.equal(trace[":input[xs][1]"], xs[1]) and trace[":output"].tolist() == [4, 4]
