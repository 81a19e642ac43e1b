"""The tree of a large model in a real JupyterLab: folds, search, bars, badges, keys, width."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .conftest import Open
from .driver import ExplorerView
from .server import Server

SETUP = """%load_ext lensview
import lensview as lv, torch
from tiny import Words, Tiny
from big import Big"""
SHOW = "words, big = Words(), Big()\n%lens big --tokenizer words --prompt 'a b c'"


@pytest.fixture(autouse=True)
def big(lab: Server) -> None:
    """The module of large models beside the notebooks."""
    shutil.copy(Path(__file__).with_name("big.py"), lab.root)


def rows(view: ExplorerView) -> Locator:
    """The rows in the document that show something."""
    return view.tree.locator(".lv-tree-body .lv-tree-row:not([hidden])")


def names(view: ExplorerView) -> list[str]:
    """What the rows are called, from the top."""
    found = rows(view).evaluate_all(
        "all => all.map(e => [Number(e.getAttribute('aria-rowindex')),"
        " e.querySelector('.lv-name').textContent]).sort((a, b) => a[0] - b[0])"
    )
    return [name for _, name in found]


def active(view: ExplorerView) -> Locator:
    """The row that the keys are at."""
    return view.root.locator(f"#{view.tree.get_attribute('aria-activedescendant')}")


@pytest.mark.timeout(300)
def test_ten_thousand_modules(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, SHOW, "print(sum(1 for _ in big.modules()), _lens.selected)")
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    expect(view.tree).to_have_attribute("aria-rowcount", "9")
    assert names(view)[:5] == ["(root)", "embed", "layers", "0 … 199", "200"]
    assert rows(view).count() < 60

    # A fold opens by key, and scrolling keeps about forty rows.
    view.tree.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown"):
        view.tree.press(key)
    expect(active(view)).to_contain_text("200 identical layers")
    view.tree.press("ArrowRight")
    expect(active(view)).to_have_attribute("aria-expanded", "true")
    view.tree.press("ArrowRight")
    expect(active(view)).to_have_attribute("data-site", "layers.0")
    view.tree.press("ArrowLeft")
    view.tree.press("ArrowLeft")
    expect(view.tree).to_have_attribute("aria-rowcount", "9")
    view.root.get_by_title("Expand all").click()
    expect(view.tree).to_have_attribute("aria-rowcount", "10404")
    frames = view.tree.evaluate(
        """async (grid) => {
          const took = [];
          for (let i = 1; i <= 60; i += 1) {
            const before = performance.now();
            grid.scrollTop = i * 3500;
            grid.dispatchEvent(new Event('scroll'));
            await new Promise((done) => requestAnimationFrame(done));
            took.push(performance.now() - before);
          }
          return took.sort((a, b) => a - b)[30];
        }"""
    )
    assert rows(view).count() < 60
    print(f"a scrolled frame takes {frames:.1f} ms (median of 60)")
    view.tree.press("End")
    expect(active(view)).to_have_attribute("data-site", "head")

    # Search while typing says how many of how many; a match deep in a fold is shown and clicked.
    search = view.mark("search")
    search.press_sequentially("layers.*.mlp")
    expect(view.mark("match-count")).to_have_text("400 of 10,000")
    search.fill("layers.333.m")
    expect(view.mark("match-count")).to_have_text("1 of 10,000")
    search.press("Enter")
    view.tree.press("Enter")
    expect(view.root).to_have_attribute("data-selected", "layers.333.mlp")
    search.fill("")
    expect(view.tree.locator('[data-site="layers.333.mlp"]')).to_be_visible()
    search.fill("no such thing")
    expect(view.mark("match-count")).to_have_text("0 of 10,000")
    view.wait_ready()
    assert notebook.text(2).split() == ["10000", "layers.333.mlp"]


def test_badges_and_bars(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "words, big = Words(), Big()\nex = lv.explore(big, words, 'a b c')\nex",
        "ex.interventions = (lv.scale('layers.150.mlp', 5),); ex.wait()",
        "import json; t, b = ex.trace, ex.baseline\n"
        "gap = (t['layers.150.mlp'] - b['layers.150.mlp']).double().pow(2).mean().sqrt()\n"
        "print(json.dumps([float(gap), float(t['embed'].double().pow(2).mean().sqrt())]))",
        "ex.overlay('<i>mine</i>', {'layers.150.mlp': -2.0, 'embed': 1.0})",
        "ex.overlay('<i>mine</i>', None)",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    embed = view.tree.locator('[data-site="embed"]')
    expect(embed.locator(".lv-size-fill")).to_be_visible()
    notebook.run(2)
    view.wait_ready(run=2)
    # The edited layer was in a closed fold, which has opened.
    expect(view.tree).to_have_attribute("aria-rowcount", "209")
    view.mark("search").fill("layers.150.")
    edited = view.tree.locator('[data-site="layers.150.mlp"]')
    expect(edited.locator(".lv-badge-edit")).to_have_text("edited")
    expect(view.tree.locator('[data-site="layers.150.spare.3"] .lv-badge')).to_have_text(
        "never called"
    )
    gap, size = json.loads(notebook.text(3))
    title = edited.locator(".lv-cell-bar")
    expect(title).to_have_attribute("title", re.compile("rms of the change"))
    said = title.get_attribute("title") or ""
    assert float(said.split("rms of the change ")[1]) == pytest.approx(gap, rel=1e-3)
    view.mark("search").fill("embed")
    said = embed.locator(".lv-cell-bar").get_attribute("title") or ""
    assert float(said.split("rms ")[1].split(" ")[0]) == pytest.approx(size, rel=1e-3)
    head = view.tree.locator(".lv-tree-head .lv-cell-bar")
    expect(head).to_have_text("Δ rms")
    assert "Log scale" in (head.get_attribute("title") or "")

    notebook.run(4)
    expect(head).to_have_text("<i>mine</i>")
    expect(embed.locator(".lv-cell-bar")).to_have_attribute("title", f"<i>mine</i> 1 · {said}")
    notebook.run(5)
    expect(head).to_have_text("Δ rms")


def test_columns_leave_in_their_order(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, "words = Words()\n%lens Big() --tokenizer words --prompt 'a b'")
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    panel = view.root.locator(".lv-tree-panel")
    names = ["weights", "place", "class", "number", "bar", "shape", "name"]
    seen = []
    for width in (700, 600, 460, 400, 300, 250):
        panel.evaluate("(e, w) => { e.style.width = `${w}px`; }", width)
        shown = [n for n in names if view.tree.locator(f".lv-tree-head .lv-cell-{n}").is_visible()]
        seen.append(shown)
        name = view.tree.locator('[data-site="embed"] .lv-name')
        assert name.is_visible() and name.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
    assert seen == [names[i:] for i in range(6)]
    assert "weights 50 x 8" in (
        view.tree.locator('[data-site="embed"] .lv-cell-name').get_attribute("title") or ""
    )
