"""Explorers over ranks, from a real JupyterLab: they look and answer as in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..bridge.llama import save_llama
from .conftest import RESULTS, Open
from .driver import ExplorerView, Notebook

pytestmark = pytest.mark.ranks

ACT = "model.layers.1.mlp.act_fn"
SCREENSHOTS = RESULTS / "screenshots"

TINY = """
from transformers import AutoModelForCausalLM, AutoTokenizer
path = {path!r}
model = AutoModelForCausalLM.from_pretrained(path).eval()
tok = AutoTokenizer.from_pretrained(path)
"""
DEMO = """
import lensview as lv
model, tok = lv.demo()
path = model.name_or_path
"""
CHECK = """
import json
tensor = ranked.trace["model.layers.1.mlp.act_fn"]
expected = whole.trace["model.layers.1.mlp.act_fn"]
print(json.dumps({
    "zero": not tensor.any().item(), "shape": list(tensor.shape) == list(expected.shape),
    "states": [s.state for s in ranked.session.states()],
    "plain": (ranked.baseline.logits - whole.baseline.logits).abs().max().item(),
    "edited": (ranked.trace.logits - whole.trace.logits).abs().max().item(),
    "size": whole.trace.logits.abs().max().item(),
    "pieces": [list(ranked.session.piece(ranked.trace, "model.layers.1.mlp.act_fn", r).shape)
               for r in range(len(ranked.session.ranks))],
}))
"""


def edit(view: ExplorerView) -> None:
    """Scale what the selected module gives by 0, in the table."""
    view.mark("add-intervention").click()
    expect(view.interventions()).to_have_count(1)
    view.wait_ready(run=2)
    field = view.interventions().first.locator('[data-field="site"]')
    assert field.input_value() == ACT


def opened(
    open_notebook: Open, model: str, prompt: str, tp: int
) -> tuple[Notebook, ExplorerView, ExplorerView]:
    """A notebook with the model over ranks, and the same in the kernel."""
    notebook = open_notebook(
        "%load_ext lensview",
        model,
        f"ranked = %lens --tp {tp} path --prompt '{prompt}'",
        f"whole = %lens model --tokenizer tok --prompt '{prompt}'",
        CHECK,
        "ranked.session.stop()",
    )
    for cell in range(4):
        notebook.run(cell)
    views = notebook.explorer(0), notebook.explorer(1)
    for view in views:
        view.wait_ready(run=1)
    return notebook, *views


def compare(notebook: Notebook, ranked: ExplorerView, whole: ExplorerView, tp: int) -> None:
    """Tree, heatmap, pieces, an edit and next tokens of both."""
    assert whole.mark("ranks").is_hidden()
    strip = ranked.mark("ranks")
    expect(strip).to_be_visible()
    expect(ranked.mark("rank")).to_have_count(tp)
    expect(strip.locator('[data-state="idle"]')).to_have_count(tp)
    same_tokens(ranked, whole)
    for view in (ranked, whole):
        view.root.scroll_into_view_if_needed()
        view.select(ACT)
    assert ranked.labels() == whole.labels()
    facts = [view.mark("facts").inner_text() for view in (ranked, whole)]
    assert facts[0].split("·")[0] == facts[1].split("·")[0]
    expect(ranked.mark("lies")).to_contain_text(f"over {tp} ranks")

    ranked.root.scroll_into_view_if_needed()
    before = ranked.painted()
    ranked.mark("piece").locator('[data-value="1"]').click()
    ranked.repainted(before)
    expect(ranked.mark("facts")).to_contain_text("rank 1's piece alone")
    before = ranked.painted()
    ranked.mark("piece").locator('[data-value="whole"]').click()
    ranked.repainted(before)

    plain = whole.next_tokens()
    for view in (whole, ranked):
        view.root.scroll_into_view_if_needed()
        edit(view)
    same_tokens(ranked, whole)
    assert whole.next_tokens() != plain
    told = json.loads(notebook.text(4))
    assert told["zero"] and told["shape"] and told["states"] == ["idle"] * tp
    assert max(told["plain"], told["edited"]) <= 1e-4 * told["size"]
    assert len({tuple(p[:-1]) for p in told["pieces"]}) == 1 and len(told["pieces"]) == tp


def same_tokens(ranked: ExplorerView, whole: ExplorerView) -> None:
    """The next-token tables have the same rows and shares."""
    got, want = ranked.next_tokens(), whole.next_tokens()
    assert got and [t for t, _, _ in got] == [t for t, _, _ in want]
    for (_, *ours), (_, *theirs) in zip(got, want, strict=True):
        assert [None if s is None else round(s, 4) for s in ours] == pytest.approx(
            [None if s is None else round(s, 4) for s in theirs], abs=2e-4
        )


@pytest.mark.timeout(600)
def test_a_tiny_llama_over_two_ranks(open_notebook: Open, tmp_path: Path) -> None:
    model = TINY.format(path=str(save_llama(tmp_path / "llama")))
    notebook, ranked, whole = opened(open_notebook, model, "the big cat sat", 2)
    try:
        compare(notebook, ranked, whole, 2)
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        ranked.root.screenshot(path=SCREENSHOTS / "ranks.png")
    finally:
        notebook.run(5)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_demo_model_over_three_ranks(open_notebook: Open) -> None:
    """Nine heads and three key-value heads, three of each rank and one."""
    notebook, ranked, whole = opened(open_notebook, DEMO, "The capital of France is", 3)
    try:
        assert ranked.next_tokens()[0][0] == "·Paris"
        compare(notebook, ranked, whole, 3)
    finally:
        notebook.run(5)
