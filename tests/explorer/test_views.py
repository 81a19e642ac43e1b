"""The messages of the views, by a page that talks to a real explorer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import lensview as lv
from lensview.explorer import Explorer
from lensview.session import LocalSession

from .conftest import Gate, Page, hooks

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

PROMPT = "the capital of france is"
MLP, ATTENTION = "model.layers.1.mlp", "model.layers.1.self_attn"


def reasons(page: Page, site: str) -> dict[str, str]:
    """Why each view does not apply."""
    return {entry["view"]: entry["reason"] for entry in page.ask("views", site=site)["reasons"]}


def test_which_views_apply(page: Page) -> None:
    page.ask("run", prompt=PROMPT)
    at_mlp = reasons(page, MLP)
    assert {view for view, reason in at_mlp.items() if reason == ""} == {
        "distribution", "norms", "lens", "source",
    }  # fmt: skip
    assert "no attention module" in at_mlp["attention"]
    for site in (ATTENTION, f"{ATTENTION}.q_proj", "model.layers.1", f"{ATTENTION}/matmul"):
        assert reasons(page, site)["attention"] == ""
    assert "3 attention modules" in reasons(page, "model")["attention"]
    assert "only holds" in reasons(page, "model.layers")["source"]


def test_a_model_without_language(tokenizer: Any) -> None:
    explorer = Explorer(LocalSession(nn.Sequential(nn.Linear(4, 4))))
    page = Page(explorer)
    explorer.run(torch.zeros(1, 4))
    assert "no list of layers" in reasons(page, "0")["lens"]
    assert "no list of layers" in page.refused("lens", which="latest", row=0, start=0)["message"]
    explorer.close()


def test_distribution_of_both_runs(page: Page, explorer: Explorer) -> None:
    explorer.run(PROMPT)
    alone = page.ask("distribution", site=MLP, bins=20)
    values = explorer.trace[MLP].numpy()
    assert alone["counts"] == np.histogram(values, bins=20)[0].tolist()
    assert alone["baseline_counts"] == [] and alone["finite"] == values.size
    explorer.interventions = (lv.scale(MLP, 2.0),)
    explorer.wait()
    both = page.ask("distribution", site=MLP, bins=20)
    assert both["low"] == pytest.approx(2 * alone["low"])
    assert sum(both["baseline_counts"]) == sum(both["counts"]) == values.size
    assert both["values"] == pytest.approx([2 * v for v in both["baseline_values"]])


def test_norms_by_token_and_by_row(page: Page, explorer: Explorer) -> None:
    explorer.run(PROMPT)
    reply = page.ask("norms", site=MLP, index=[])
    assert reply["rows_are"] == "tokens" and reply["labels"] == PROMPT.split()
    assert reply["norm"] == pytest.approx(explorer.trace[MLP][0].norm(dim=-1).tolist())
    heads = f"{ATTENTION}/transpose"
    reply = page.ask("norms", site=heads, index=[0, 2])  # recorded by another run
    assert "not tokens" in reply["rows_are"] and reply["labels"] == []
    assert reply["norm"] == pytest.approx(explorer.trace[heads][0, 2].norm(dim=-1).tolist())


def test_attention_is_recorded_when_it_is_looked_at(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    explorer.run(PROMPT)
    kernel = tiny_llama.config._attn_implementation
    name = page.send("attention", site=ATTENTION, which="latest", row=0, head=2)
    reply = page.answer(name)["result"]
    assert page.ask("hello")["state"]["run"] == 2
    (buffers,) = [b for m, b in page.custom() if m.get("id") == name and m["kind"] == "ok"]
    cells = np.frombuffer(buffers[0], "<f4").reshape(reply["rows"], reply["columns"])
    small = np.frombuffer(buffers[1], "<f4").reshape(
        reply["heads"], reply["small_rows"], reply["small_columns"]
    )
    assert tiny_llama.config._attn_implementation == kernel == "sdpa"
    tiny_llama.set_attn_implementation("eager")
    ids = explorer.trace.tokens.ids
    with torch.no_grad():
        own = tiny_llama(ids, output_attentions=True).attentions[1][0].numpy()
    np.testing.assert_allclose(cells, own[2], atol=1e-6)
    np.testing.assert_allclose(small, own, atol=1e-6)
    assert reply["query_labels"] == reply["key_labels"] == PROMPT.split()
    page.ask("attention", site=ATTENTION, which="latest", row=0, head=0)
    assert page.ask("hello")["state"]["run"] == 2, "what was recorded needs no further run"


def test_attention_of_another_kernel_is_refused_and_runs_go_on(page: Page) -> None:
    page.ask("run", prompt=PROMPT)
    refused = page.refused("attention", site=MLP, which="latest", row=0, head=0)
    assert "no attention module" in refused["message"]
    assert page.ask("run", prompt=PROMPT)["run"] == 2


def test_a_fused_attention_stops_no_later_run() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x)[0]

    explorer = Explorer(LocalSession(Net().eval()))
    page = Page(explorer)
    explorer.run(torch.randn(1, 3, 8))
    page.refused("attention", site="attention", which="latest", row=0, head=0)
    explorer.run()
    assert "attention:output[0]" in explorer.trace or "attention" in explorer.trace
    explorer.close()


def test_the_lens_and_what_an_edit_changes(page: Page, explorer: Explorer) -> None:
    explorer.run(PROMPT)
    explorer.interventions = (lv.scale("model.layers.0.mlp", 3.0),)
    explorer.wait()
    reply = page.ask("lens", which="latest", row=0, start=1)
    assert reply["labels"] == PROMPT.split()[1:] and reply["total"] == 5
    assert reply["way"] == "model.norm → lm_head" and reply["difference"] == 0.0
    best = reply["probabilities"][-reply["k"]]
    assert best == pytest.approx(explorer.trace.top(1)[0].probability, rel=1e-4)
    assert reply["ids"][-reply["k"]] == explorer.trace.top(1)[0].id
    before = explorer.baseline.probability(reply["ids"][-reply["k"]])
    assert reply["before"][-reply["k"]] == pytest.approx(before, rel=1e-4)
    plain = page.ask("lens", which="baseline", row=0, start=0)
    assert plain["before"] == [] and plain["probabilities"][-reply["k"]] == pytest.approx(
        explorer.baseline.top(1)[0].probability, rel=1e-4
    )


def test_source_with_its_ops(page: Page) -> None:
    bare = page.ask("source", site=ATTENTION)
    assert bare["calls"] == 0 and not any(line["sites"] for line in bare["lines"])
    page.ask("run", prompt=PROMPT)
    reply = page.ask("source", site=f"{ATTENTION}:input")
    assert reply["path"] == ATTENTION and reply["calls"] == 1
    sites = {
        s: shape
        for line in reply["lines"]
        for s, shape in zip(line["sites"], line["shapes"], strict=True)
    }
    assert sites[f"{ATTENTION}/scaled_dot_product_attention"] == "float32 1 x 4 x 5 x 4"
    assert page.ask("select", site=f"{ATTENTION}/transpose")["site"] in sites


@pytest.mark.parametrize("method", ["distribution", "norms", "attention", "lens"])
def test_before_any_run(page: Page, method: str) -> None:
    asked: dict[str, dict[str, Any]] = {
        "distribution": {"bins": 10},
        "norms": {"index": []},
        "attention": {"which": "latest", "row": 0, "head": 0},
        "lens": {"which": "latest", "row": 0, "start": 0},
    }
    refused = page.refused(method, site=ATTENTION, **asked[method])
    assert "Nothing has run yet" in refused["message"]


def test_recording_what_a_view_needs_can_be_cancelled(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    explorer.run(PROMPT)
    before, gate = hooks(tiny_llama), Gate()
    with gate.on(tiny_llama.model.layers[0].mlp):
        name = page.send("attention", site=ATTENTION, which="latest", row=0, head=0)
        assert gate.reached.wait(60)
        page.ask("cancel", id=name)
        gate.opened.set()
        assert page.answer(name)["kind"] == "cancelled"
    assert hooks(tiny_llama) == before and page.ask("hello")["state"]["run"] == 1
    page.ask("attention", site=ATTENTION, which="latest", row=0, head=0)
