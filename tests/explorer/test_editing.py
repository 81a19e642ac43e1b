"""Rows that take their values from elsewhere, undo and redo, and what a row does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import lensview as lv
from lensview.explorer import Explorer
from lensview.explorer.cells import cells

from .conftest import Gate, Page, row

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

PROMPT = "the capital of france is"
OTHER = "a b c d e"
MLP = "model.layers.1.mlp"


@pytest.fixture
def names(explorer: Explorer) -> dict[str, Any]:
    """The variables that rows may name."""
    found: dict[str, Any] = {}
    explorer._open().origins._names = lambda: found
    return found


def by_hand(model: LlamaForCausalLM, ids: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The last logits with the mlp's output changed by a plain hook."""
    handle = model.get_submodule(MLP).register_forward_hook(lambda m, a, out: change(out))
    with torch.no_grad():
        logits: Tensor = model(ids).logits[:, -1]
    handle.remove()
    return logits


def test_a_patch_takes_its_value_from_another_run(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=OTHER)
    source = explorer.trace[MLP].clone()
    page.ask("run", prompt=PROMPT)
    state = page.ask("interventions", rows=[row(MLP, "patch", "run 1")])
    assert state["interventions"][0]["error"] == ""
    assert torch.equal(explorer.trace[MLP], source)
    wanted = by_hand(tiny_llama, explorer.trace.tokens.ids, lambda out: source)
    assert torch.equal(explorer.trace.logits, wanted)
    state = page.ask("interventions", rows=[row(MLP, "mean", "run 1")])
    mean = source.double().mean((0, 1)).float()
    assert torch.allclose(explorer.trace[MLP], mean.expand_as(source), atol=1e-6)


def test_the_run_without_its_interventions_can_be_the_source(
    page: Page, explorer: Explorer
) -> None:
    page.ask("run", prompt=OTHER)
    page.ask("interventions", rows=[row(MLP)])
    plain = explorer.baseline[MLP].clone()
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row(MLP, "patch", "run 2 baseline")])
    assert torch.equal(explorer.trace[MLP], plain) and plain.any()
    page.ask("interventions", rows=[row(MLP, "patch", "run 2")])
    assert not explorer.trace[MLP].any()


def test_a_vector_comes_from_the_namespace_at_each_run(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM, names: dict[str, Any]
) -> None:
    page.ask("run", prompt=PROMPT)
    names["steer"] = torch.linspace(-1, 1, 16)
    rows = [row(MLP, "add", "steer")]
    page.ask("interventions", rows=rows)
    ids = explorer.trace.tokens.ids
    first = names["steer"].clone()
    assert torch.equal(explorer.trace.logits, by_hand(tiny_llama, ids, lambda o: o + first))
    (edit,) = explorer.interventions
    run = explorer._open().latest.run
    page.ask("interventions", rows=rows)
    assert explorer._open().latest.run == run and explorer.interventions[0] is edit

    names["steer"].mul_(3)
    assert torch.equal(edit.args["vector"], first), "what has run does not change afterwards"
    page.ask("run", prompt=PROMPT)
    assert torch.equal(explorer.trace.logits, by_hand(tiny_llama, ids, lambda o: o + 3 * first))

    page.ask("interventions", rows=[row(MLP, "project_out", "steer")])
    unit = first / first.norm()
    gone = explorer.trace[MLP] @ unit
    assert gone.abs().max() < 1e-8 and (explorer.baseline[MLP] @ unit).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("operation", "value", "said"),
    [
        ("add", "ster", "Did you mean 'steer'"),
        ("add", "short", "a feature vector here has 16 elements"),
        ("add", "number", "number is a int; it takes a tensor of floats"),
        ("put", "integers", "integers is int64 16"),
        ("project_out", "matrix", "it takes a tensor of 1 dim"),
        ("project_out", "", "the name of a tensor"),
        ("project_out", "nothing", "points nowhere"),
        ("add", "array", "torch.from_numpy(array)"),
        ("patch", "number", "a Trace, a run such as 'run 1'"),
    ],
)
def test_a_value_that_does_not_fit_is_told_at_its_row(
    page: Page, names: dict[str, Any], operation: str, value: str, said: str
) -> None:
    names |= {
        "steer": torch.ones(16),
        "short": torch.ones(3),
        "number": 3,
        "integers": torch.arange(16),
        "matrix": torch.ones(2, 16),
        "nothing": torch.zeros(16),
        "array": torch.ones(16).numpy(),
    }
    page.ask("run", prompt=PROMPT)
    good = row("model.layers.0.mlp", "zero", "")
    state = page.ask("interventions", rows=[row(MLP, operation, value), good])
    wrong, fine = state["interventions"]
    assert said in wrong["error"] and wrong["changed"] is None
    assert fine["error"] == "" and fine["changed"] == 5 * 16


def test_a_name_that_is_bound_later_mends_its_row(page: Page, names: dict[str, Any]) -> None:
    page.ask("run", prompt=PROMPT)
    state = page.ask("interventions", rows=[row(MLP, "add", "later")])
    assert state["interventions"][0]["error"]
    names["later"] = torch.ones(16)
    state = page.ask("run", prompt=PROMPT)
    (told,) = state["interventions"]
    assert told["error"] == "" and told["changed"] == 5 * 16


def test_names_that_fit_are_offered_by_name_and_shape(page: Page, names: dict[str, Any]) -> None:
    page.ask("run", prompt=PROMPT)
    names |= {"v": torch.ones(16), "w": torch.ones(3), "m": torch.ones(2, 16), "n": 4, "_": v_()}
    offered = page.ask("names", site=MLP, operation="add")["names"]
    assert offered == [
        {"name": "v", "about": "float32 16"},
        {"name": "m", "about": "float32 2 x 16"},
    ]
    assert [o["name"] for o in page.ask("names", site=MLP, operation="project_out")["names"]] == [
        "v"
    ]


def v_() -> Tensor:
    return torch.ones(16)


def test_undo_and_redo_are_one_history_for_page_and_code(page: Page, explorer: Explorer) -> None:
    assert not explorer.undo() and not explorer.redo()
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row(MLP)])
    scaled = explorer.trace.logits
    explorer.interventions = (*explorer.interventions, lv.add("model.norm", torch.ones(16)))
    assert explorer.wait(60)
    state = page.ask("undo")
    assert [r["operation"] for r in state["interventions"]] == ["scale"]
    assert torch.equal(explorer.trace.logits, scaled) and len(explorer.interventions) == 1
    assert state["can_undo"] and state["can_redo"]
    state = page.second(explorer).ask("undo")
    assert state["interventions"] == [] and not state["can_undo"]
    assert explorer.trace is explorer.baseline
    assert explorer.redo() and explorer.redo() and explorer.wait(60)
    assert [i.op for i in explorer.interventions] == ["scale", "add"]
    added: Any = explorer.interventions[-1]
    assert torch.equal(added.args["vector"], torch.ones(16))
    page.ask("undo")
    page.ask("interventions", rows=[])
    assert not page.ask("hello")["state"]["can_redo"], "a change ends what could be redone"
    page.ask("interventions", rows=[])
    assert [i.op for i in explorer.interventions] == []
    assert page.ask("undo")["interventions"][0]["operation"] == "scale", "no change is no step"


def test_the_effect_of_a_row_alone(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    first = row(MLP)
    last = row("model.layers.2.mlp", "scale", "1")
    page.ask("interventions", rows=[first, last])
    found = page.ask("effect", id=first["id"])
    assert found["first"] == MLP and found["moved"] is True
    (wanted,) = lv.effects(tiny_llama, explorer.trace.tokens.ids, lv.scale(MLP, 0))
    assert wanted.kl is not None and f"{max(wanted.kl):.3g} nats" in found["text"]
    assert page.ask("effect", id=last["id"])["moved"] is False
    assert "cannot run" in page.refused("effect", id="nobody")["message"]


def test_clicks_while_a_cell_runs_are_one_run_of_the_last_state(
    page: Page, explorer: Explorer
) -> None:
    page.ask("run", prompt=PROMPT)
    for value in ("2", "3", "4"):
        page.ask("interventions", rows=[row(MLP, "scale", value)])
    before = explorer._open().latest.run
    cells()._started()
    try:
        asked = [page.send("undo", key="undo") for _ in range(2)]
        asked += [page.send("redo", key="redo"), page.send("undo", key="undo")]
        page.until(lambda: bool(page.of(asked[-1], "progress")), why="it says that it waits")
        assert "cell" in page.of(asked[-1], "progress")[-1]["text"]
        assert explorer._open().latest.run == before
    finally:
        cells()._ended()
    assert page.answer(asked[-1])["kind"] == "ok"
    assert {page.answer(name)["kind"] for name in asked[:-1]} == {"cancelled"}
    assert explorer._open().latest.run == before + 1
    assert [str(i) for i in explorer.interventions] == [f"scale {MLP} 2"]


def test_looking_for_an_effect_shows_progress_and_can_be_cancelled(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    edit = row(MLP)
    page.ask("interventions", rows=[edit])
    gate = Gate()
    with gate.on(tiny_llama.get_submodule("model.layers.0.mlp")):
        name = page.send("effect", id=edit["id"])
        assert gate.reached.wait(60)
        page.send("cancel", id=name)
        gate.opened.set()
        assert page.answer(name)["kind"] == "cancelled"
    assert page.of(name, "progress")
    assert page.ask("effect", id=edit["id"])["moved"] is True
