"""Which request is answered when, and how: superseded, cancelled, held back, repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lensview.explorer import Explorer
from lensview.explorer.cells import cells

from .conftest import ANSWERS, Gate, Page, hooks, row, tile_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

PROMPT = "the capital of france is"
MLP = "model.layers.1.mlp"


def test_a_later_run_takes_the_place_of_an_earlier_one(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    before = hooks(tiny_llama)
    other = page.second(explorer)
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        first = page.send("run", prompt="a a a")
        assert gate.reached.wait(60)
        second = page.send("run", prompt="b b b")
        third = other.send("run", prompt=PROMPT)
        gate.opened.set()
        assert page.answer(first)["kind"] == "cancelled"
        assert page.answer(second)["kind"] == "cancelled"
        answer = other.answer(third)
    assert answer["kind"] == "ok" and answer["result"]["run"] == 1
    assert explorer.prompt == PROMPT
    assert gate.passes == 2
    assert hooks(tiny_llama) == before


def test_cancel_during_a_run(page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM) -> None:
    page.ask("run", prompt=PROMPT)
    trace, before = explorer.trace, hooks(tiny_llama)
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        run = page.send("run", prompt="a b c")
        assert gate.reached.wait(60)
        assert hooks(tiny_llama) != before
        assert page.ask("cancel", id=run) == {}
        gate.opened.set()
        assert page.answer(run)["kind"] == "cancelled"
    assert hooks(tiny_llama) == before
    assert explorer.trace is trace
    assert page.ask("hello")["state"]["busy"] == ""
    assert page.ask("run", prompt="a b c")["run"] == 2


def test_cancel_between_baseline_and_edited(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("interventions", rows=[row(MLP)])
    with Gate().on(tiny_llama.lm_head) as gate:
        run = page.send("run", prompt=PROMPT)
        assert gate.reached.wait(60)
        page.send("cancel", id=run)
        gate.opened.set()
        assert page.answer(run)["kind"] == "cancelled"
    assert gate.passes == 1, "the second half did not run"
    assert explorer.trace is None and explorer.baseline is None


def test_an_edit_during_a_run_keeps_the_new_prompt(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt="a b c")
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        run = page.send("run", prompt=PROMPT)
        assert gate.reached.wait(60)
        edit = page.send("interventions", rows=[row(MLP)])
        gate.opened.set()
        assert page.answer(run)["kind"] == "cancelled"
        state = page.answer(edit)["result"]
    assert state["prompt"] == PROMPT and state["tokens"] == PROMPT.split() and state["edited"]


def test_looking_goes_on_during_a_run(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        run = page.send("run", prompt="a b c")
        assert gate.reached.wait(60)
        assert page.ask("tile", **tile_of(MLP))["row_labels"] == PROMPT.split()
        assert page.ask("tree", offset=0, limit=3)["total"]
        assert page.events()[-1]["busy"] == "running"
        gate.opened.set()
        assert page.answer(run)["kind"] == "ok"


def test_a_run_of_the_page_waits_for_the_users_cell(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt="a b")
    cells()._started()
    try:
        runs = [page.send("run", prompt=f"a {w}") for w in "abcde"]
        page.until(lambda: bool(page.of(runs[-1], "progress")))
        assert "cell" in page.of(runs[-1], "progress")[0]["text"]
        for run in runs[:-1]:
            assert page.answer(run)["kind"] == "cancelled"
        assert page.ask("tile", **tile_of(MLP))["shape"] == [1, 2, 16]
        edits = page.send("interventions", rows=[row(MLP, enabled=False)])
        assert page.answer(runs[-1])["kind"] == "cancelled"
        page.ask("cancel", id=edits)
        assert page.answer(edits)["kind"] == "cancelled"
        last = page.send("run", prompt=PROMPT)
    finally:
        cells()._ended()
    assert page.answer(last)["result"]["run"] == 2, "no backlog"


def test_two_views_do_not_starve_each_other(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    other = page.second(explorer)
    mine = [page.send("tile", key="tile", **tile_of(MLP, max_rows=i + 1)) for i in range(8)]
    theirs = [other.send("tile", key="tile", **tile_of(MLP, max_rows=i + 1)) for i in range(8)]
    assert page.answer(mine[-1])["kind"] == "ok"
    assert other.answer(theirs[-1])["kind"] == "ok"
    for name in (*mine, *theirs):
        page.answer(name)
    assert all(len(page.of(n, *ANSWERS)) == 1 for n in (*mine, *theirs))


def test_a_repeated_tile_request_does_not_start_over(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt=PROMPT)
    wanted = tile_of(f"{MLP}:input")
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        first = page.send("tile", key="tile", **wanted)
        assert gate.reached.wait(60)
        again = page.send("tile", key="tile", **wanted)
        gate.opened.set()
        assert page.answer(again)["kind"] == "ok"
    assert page.answer(first)["kind"] == "cancelled"
    assert gate.passes == 1


def test_close_during_a_run_answers_everything(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    before = hooks(tiny_llama)
    with Gate().on(tiny_llama.model.layers[1]) as gate:
        names = [page.send("run", prompt=PROMPT)]
        assert gate.reached.wait(60)
        names += [page.send("interventions", rows=[row(MLP)])]
        gate.opened.set()
        explorer.close()
    assert all(page.answer(n)["kind"] == "cancelled" for n in names)
    assert hooks(tiny_llama) == before
    page.deliver({"kind": "req", "id": "late", "method": "hello", "params": {}})
