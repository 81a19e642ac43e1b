"""What each message does, against a real session."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

import lensview as lv
from lensview.explorer import Explorer
from lensview.explorer.cells import cells
from lensview.explorer.protocol import Hello, State, TileReply

from .conftest import Page, row, tile_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT = "the capital of france is"
MLP = "model.layers.1.mlp"


def cells_of(page: Page, name: str, reply: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(page.cells(name), "<f4").reshape(reply["rows"], reply["columns"])


def test_hello_and_the_tree_before_any_run(page: Page, tiny_llama: LlamaForCausalLM) -> None:
    hello = page.ask("hello")
    assert set(hello) == set(Hello.__dataclass_fields__)
    assert set(hello["state"]) == set(State.__dataclass_fields__)
    assert hello["title"] == "LlamaForCausalLM" and hello["takes_text"]
    assert hello["modules"] == len(list(tiny_llama.modules()))
    typed = "zero scale add put clamp patch noise project_out mean"
    assert hello["operations"] == typed.split()
    tree = page.ask("tree", offset=0, limit=1000)
    paths: list[str] = []
    for name, depth, *_ in tree["rows"]:
        paths[depth:] = [name]
        path = ".".join(paths[1:])
        assert type(tiny_llama.get_submodule(path)).__name__ in tree["classes"]
    assert tree["total"] == len(tree["rows"]) == hello["modules"]
    root = tree["rows"][0]
    assert root[:2] == ["", 0] and root[3] == sum(p.numel() for p in tiny_llama.parameters())
    embedding = next(r for r in tree["rows"] if r[0] == "embed_tokens")
    assert embedding[4] == "101 x 16"
    shapes = page.ask("outputs", offset=0, limit=1000)
    assert shapes["run"] == 0 and set(shapes["rows"]) == {-1}


def test_a_run_and_what_can_be_seen_of_it(page: Page, explorer: Explorer) -> None:
    state = page.ask("run", prompt=PROMPT)
    assert (state["run"], state["prompt"], state["busy"]) == (1, PROMPT, "")
    assert state["tokens"] == PROMPT.split()
    assert len(state["baseline"]) == 10 and state["edited"] == []
    assert explorer.trace is explorer.baseline and explorer.prompt == PROMPT
    assert page.events()[-1]["run"] == 1
    assert "running" in [e["busy"] for e in page.events()]

    rows = page.ask("tree", offset=0, limit=1000)["rows"]
    outputs = page.ask("outputs", offset=0, limit=1000)
    shape_of = {
        r[0]: outputs["shapes"][i] for r, i in zip(rows, outputs["rows"], strict=True) if i >= 0
    }
    assert shape_of["embed_tokens"] == "1 x 5 x 16" and shape_of["lm_head"] == "1 x 5 x 101"
    assert "layers" not in shape_of

    assert page.ask("select", site=f"{MLP}:output") == {"site": MLP}
    assert explorer.selected == MLP
    name = page.send("tile", **tile_of(MLP))
    reply = page.answer(name)["result"]
    assert set(reply) == set(TileReply.__dataclass_fields__)
    expected = explorer.trace[MLP][0].numpy()
    np.testing.assert_array_equal(cells_of(page, name, reply), expected)
    assert reply["row_labels"] == PROMPT.split() and reply["plane"] == [5, 16]
    assert reply["shape"] == [1, 5, 16] and reply["dtype"] == "float32"
    assert (reply["low"], reply["high"]) == (expected.min(), expected.max())
    assert "mean" in reply["stats"] and reply["run"] == 1
    value = page.ask("value", site=MLP, which="latest", index=[0, 2, 3])["text"]
    assert struct.pack("<f", float(value)) == struct.pack("<f", float(expected[2, 3]))


def test_interventions_give_baseline_edited_and_difference(page: Page, explorer: Explorer) -> None:
    plain = page.ask("run", prompt=PROMPT)
    state = page.ask("interventions", rows=[row(MLP)])
    assert state["run"] == 2 and state["baseline"] == plain["baseline"]
    assert state["edited"] != plain["baseline"] and len(state["edited"]) == 10
    assert [(r["changed"], r["error"]) for r in state["interventions"]] == [(5 * 16, "")]
    assert explorer.trace is not explorer.baseline
    assert not explorer.trace[MLP].any() and explorer.baseline[MLP].any()
    (edit,) = explorer.interventions
    assert (edit.op, edit.site, dict(edit.args)) == ("scale", MLP, {"by": 0})

    for which, wanted in (
        ("baseline", explorer.baseline["model.norm"]),
        ("latest", explorer.trace["model.norm"]),
        ("difference", explorer.trace["model.norm"] - explorer.baseline["model.norm"]),
    ):
        name = page.send("tile", **tile_of("model.norm", which=which))
        reply = page.answer(name)["result"]
        np.testing.assert_array_equal(cells_of(page, name, reply), wanted[0].numpy())
    index = [0, 4, 1]
    text = page.ask("value", site="model.norm", which="difference", index=index)["text"]
    gap = (
        explorer.trace["model.norm"][0, 4, 1].item()
        - explorer.baseline["model.norm"][0, 4, 1].item()
    )
    assert float(text.split()[0]) == gap


def test_the_edited_run_equals_a_hook_by_hand(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row(MLP, "add", "0.5", index="0, 1:3")])

    def hook(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[0, 1:3] += 0.5
        return output

    handle = tiny_llama.get_submodule(MLP).register_forward_hook(hook)
    with torch.no_grad():
        wanted = tiny_llama(explorer.trace.tokens.ids).logits[:, -1]
    handle.remove()
    assert torch.equal(explorer.trace.logits, wanted)


def test_the_baseline_is_reused_only_while_it_holds(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    first = explorer.baseline
    page.ask("interventions", rows=[row(MLP)])
    assert explorer.baseline is first
    page.ask("run", prompt=PROMPT)
    second = explorer.baseline
    assert second is not first, "a run that was asked for is a run"
    with torch.no_grad():
        tiny_llama.lm_head.weight.mul_(2)
    page.ask("interventions", rows=[row(MLP, value="0.5")])
    assert explorer.baseline is not second, "the weights have changed"
    third = explorer.baseline
    cells()._started()
    cells()._ended()
    page.ask("interventions", rows=[row(MLP, value="0.25")])
    assert explorer.baseline is not third, "a cell has run: it may have changed anything"
    fourth = explorer.baseline
    tiny_llama.train()
    page.ask("interventions", rows=[row(MLP, value="0.75")])
    assert explorer.baseline is not fourth
    assert any("train mode" in n for n in page.ask("hello")["state"]["notes"])


def test_rows_without_effect_on_the_run_do_not_run(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    state = page.ask("interventions", rows=[row(MLP, enabled=False)])
    assert state["run"] == 1 and state["edited"] == []
    assert len(page.ask("hello")["state"]["interventions"]) == 1
    assert explorer.interventions == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (row("model.layers.1.mpl"), "Did you mean 'model.layers.1.mlp'"),
        (row(MLP, "scale", "much"), "scale takes a number"),
        (row(MLP, "clamp", "3"), "clamp takes 'low, high'"),
        (row(MLP, "clamp", "3, 1"), "low 3 is above high 1"),
        (row(MLP, "add", "1", index="0, 1, 2, 3"), "4 dims"),
        (row(MLP, "add", "1", index="0, 77"), "index 77 is out of range for dim 1 of size 5"),
        (row(MLP, "add", "1", index="x"), "is not an index"),
        (row(MLP, "call", ""), "not an operation that can be typed"),
        (row(MLP, "patch", ""), "patch takes an earlier run"),
        (row(MLP, "patch", "run 7"), "There is no run 7"),
        (row(MLP, "project_out", "nowhere"), "no variable 'nowhere'"),
        (row("", "zero", ""), "Name a site"),
        (row("a b:c", "zero", ""), "':c'"),
    ],
)
def test_a_wrong_row_says_so_and_the_others_run(
    page: Page, explorer: Explorer, wrong: dict[str, Any], said: str
) -> None:
    page.ask("run", prompt=PROMPT)
    good = row("model.layers.0.mlp", "zero", "")
    state = page.ask("interventions", rows=[wrong, good])
    first, second = state["interventions"]
    assert said in first["error"] and first["changed"] is None
    assert second["error"] == "" and second["changed"] == 5 * 16
    assert explorer.trace is not None
    assert [r.intervention.site for r in explorer.trace.reports] == ["model.layers.0.mlp"]
    assert len(explorer.errors) == 1 and said in next(iter(explorer.errors.values()))
    assert any("could not run" in note for note in state["notes"])
    assert not explorer.trace["model.layers.0.mlp"].any()
    assert (first["id"], first["site"], first["value"]) == (
        wrong["id"],
        wrong["site"],
        wrong["value"],
    )


def test_a_row_that_did_not_fit_is_tried_again(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt="the capital")
    state = page.ask("interventions", rows=[row(MLP, "zero", "", index=":, 4")])
    assert "out of range" in state["interventions"][0]["error"] and state["edited"] == []
    state = page.ask("run", prompt=PROMPT)
    assert state["interventions"][0]["error"] == "" and state["interventions"][0]["changed"] == 16


def test_interventions_before_the_first_run_are_only_checked(page: Page) -> None:
    state = page.ask("interventions", rows=[row(MLP), row("nothing")])
    assert state["run"] == 0
    assert [bool(r["error"]) for r in state["interventions"]] == [False, True]
    assert page.ask("run", prompt=PROMPT)["edited"]


def test_a_locked_row_keeps_its_tensor(page: Page, explorer: Explorer) -> None:
    vector = torch.arange(16.0)
    explorer.interventions = (lv.add(MLP, vector),)
    assert explorer.wait(60)
    (shown,) = page.ask("hello")["state"]["interventions"]
    assert shown["locked"] and shown["value"] == "tensor (16,)"
    moved = {**shown, "site": "model.layers.2.mlp", "index": "0, 1", "value": "7", "locked": False}
    page.ask("run", prompt=PROMPT)
    state = page.ask("interventions", rows=[moved])
    assert state["interventions"][0]["changed"] == 15, "one of the vector's elements is 0"
    (edit,) = explorer.interventions
    assert edit.site == "model.layers.2.mlp" and torch.equal(edit.args["vector"], vector)
    forged = row(MLP, "patch", "a recorded run", locked=True, id="new")
    assert page.ask("interventions", rows=[forged])["interventions"][0]["error"]


@pytest.mark.parametrize("site", [f"{MLP}:input", "model.layers.0.self_attn:output[0]"])
def test_a_site_that_was_not_recorded_is_run_for(page: Page, explorer: Explorer, site: str) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("select", site=site)
    name = page.send("tile", **tile_of(explorer.selected))
    reply = page.answer(name)["result"]
    np.testing.assert_array_equal(
        cells_of(page, name, reply), explorer.trace[explorer.selected][0].numpy()
    )
    runs = page.ask("hello")["state"]["run"]
    page.ask("tile", **tile_of(explorer.selected))
    page.ask("run", prompt="a b c")
    assert explorer.selected in explorer.trace
    assert page.ask("hello")["state"]["run"] == runs + 1


def test_a_site_outside_the_sites_of_the_explorer(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    explorer = lv.explore(tiny_llama, tokenizer, sites="**.mlp")
    page = Page(explorer)
    page.ask("run", prompt=PROMPT)
    assert len(explorer.trace.sites) == 3
    assert page.ask("tile", **tile_of("model.norm"))["shape"] == [1, 5, 16]
    assert len(explorer.trace.sites) == 4
    explorer.close()


class Idle(nn.Module):
    """A module that is never called, and one that returns no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.used(x)
        return y


def test_a_site_without_a_value_says_why() -> None:
    explorer = Explorer(lv.LocalSession(Idle()))
    page = Page(explorer)
    explorer.run(torch.ones(2, 3))
    runs = page.ask("hello")["state"]["run"]
    error = page.refused("tile", **tile_of("unused"))
    assert "never called" in error["message"] and error["type"] == "NotRecordedError"
    assert page.ask("hello")["state"]["run"] == runs, "running again would not help"
    explorer.close()


def test_inputs_from_code_without_a_tokenizer() -> None:
    explorer = Explorer(lv.LocalSession(Idle()))
    page = Page(explorer)
    assert not page.ask("hello")["takes_text"]
    assert "no tokenizer" in page.refused("run", prompt="hello")["message"]
    assert "no tokenizer" in page.refused("run", prompt="")["message"]
    explorer.run(torch.ones(2, 3))
    state = page.ask("run", prompt="")
    assert state["run"] == 2 and state["tokens"] == [] and state["baseline"] == []
    assert any("given in code" in n for n in state["notes"])
    explorer.close()


def test_nan_and_infinity_arrive(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row("lm_head", "put", "nan", index="0, 4, 3")])
    state = page.ask("hello")["state"]
    assert state["edited"][0]["probability"] == "nan"
    page.ask("interventions", rows=[row(MLP, "put", "inf", index="0, 0, 0")])
    name = page.send("tile", **tile_of(MLP))
    reply = page.answer(name)["result"]
    assert reply["inf"] == 1 and np.isinf(cells_of(page, name, reply)[0, 0])
    assert reply["high"] is not None and np.isfinite(reply["high"])


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("explode", {}),
        ("run", {}),
        ("run", {"prompt": 3}),
        ("run", {"prompt": "x" * 600_000}),
        ("tree", {"offset": -1, "limit": 5}),
        ("tree", {"offset": 0, "limit": True}),
        ("tree", {"offset": 0.5, "limit": 5}),
        ("select", {"site": None}),
        ("select", {"site": "x" * 5000}),
        ("tile", {"site": MLP}),
        ("tile", tile_of(MLP, which="best")),
        ("tile", tile_of(MLP, max_rows=0)),
        ("tile", tile_of(MLP, max_rows=10**9)),
        ("tile", tile_of(MLP, index="0")),
        ("tile", tile_of(MLP, index=[0] * 100)),
        ("tile", tile_of(MLP, window=[0, 1, "a", 2])),
        ("tile", tile_of(MLP, window=[0, 1])),
        ("tile", tile_of(MLP, window=[0, 99, 0, 2])),
        ("tile", tile_of(MLP, index=[7])),
        ("tile", tile_of("nothing.here")),
        ("value", {"site": MLP, "which": "latest", "index": [0, 99, 0]}),
        ("interventions", {}),
        ("interventions", {"rows": [1]}),
        ("interventions", {"rows": [{}]}),
        ("interventions", {"rows": [row("x" * 5000)]}),
        ("interventions", {"rows": [row(MLP), row(MLP)]}),
        ("interventions", {"rows": [row(MLP, id=str(i)) for i in range(1000)]}),
        ("cancel", {}),
    ],
)
def test_what_a_page_must_not_send_is_refused(
    page: Page, explorer: Explorer, method: str, params: dict[str, Any]
) -> None:
    explorer.run(PROMPT)
    error = page.refused(method, **params)
    assert error["message"] and error["type"]
    assert page.ask("run", prompt="a b")["tokens"] == ["a", "b"]


def test_messages_that_are_no_requests_harm_nothing(page: Page) -> None:
    contents: list[Any] = [None, 3, [], "x", {}, {"kind": "req"}, {"kind": "req", "id": ["a"]}]
    for content in contents:
        page.deliver(content)
    page.deliver({"kind": "req", "id": "big", "method": "hello", "params": {}}, [b"x"])
    assert page.answer("big")["kind"] == "error"
    page.deliver({"kind": "req", "id": "list", "method": "hello", "params": []})
    assert page.answer("list")["kind"] == "error"
    assert page.ask("hello")


@pytest.mark.parametrize("prompt", ["", "   ", "\n"])
def test_an_empty_prompt(page: Page, explorer: Explorer, prompt: str) -> None:
    page.ask("run", prompt=PROMPT)
    error = page.refused("run", prompt=prompt)
    assert "empty" in error["message"] and error["type"] == "InputError"
    state = page.ask("hello")["state"]
    assert (state["run"], state["prompt"]) == (1, PROMPT)
    assert page.ask("run", prompt="a b")["run"] == 2


def test_a_prompt_longer_than_the_context(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    error = page.refused("run", prompt="a " * 65)
    assert "65" in error["message"] and "64" in error["message"]
    state = page.ask("hello")["state"]
    assert state["run"] == 1 and state["prompt"] == "a " * 65
    assert f"“{PROMPT}”" in state["notes"][0], "what is shown belongs to the earlier prompt"
    assert page.ask("run", prompt="a b")["notes"] == []
