"""The explorer as part of a notebook: keys, reloads, saving, busy kernels, odd names."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
from playwright.sync_api import expect

from .conftest import Open
from .driver import PATIENCE, Notebook
from .server import Server

pytestmark = pytest.mark.timeout(300)

SETUP = "%load_ext lensview\nfrom tiny import Tiny, Words, EVIL\nimport lensview as lv, time"
SHOW = "model, words = Tiny(), Words()\n%lens model --tokenizer words --prompt 'a b c'"


def typed_dd(notebook: Notebook) -> None:
    """Type "d d" in the tree and in the search box; nothing may happen to the notebook."""
    view = notebook.explorer()
    cells = notebook.cell_count()
    view.tree.click(position={"x": 60, "y": 60})
    for target in (view.tree, view.mark("search"), view.prompt, view.mark("run")):
        target.focus()
        for key in ("d", "d", "x", "a", "b"):
            target.press(key)
    assert notebook.cell_count() == cells
    assert view.mark("search").input_value() == "ddxab"
    expect(view.root).to_be_attached()


def test_keys_stay_in_the_widget(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, SHOW, "1 + 1")
    notebook.run(0)
    notebook.run(1)
    typed_dd(notebook)


@pytest.mark.full
def test_keys_stay_in_the_widget_in_notebook_7(open_notebook: Open, notebook7: Server) -> None:
    notebook = open_notebook(SETUP, SHOW, "1 + 1", server=notebook7)
    notebook.run(0)
    notebook.run(1)
    notebook.explorer().wait_ready(run=1)
    typed_dd(notebook)


def test_a_reload_brings_it_back(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, SHOW)
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.select("layers.2.mlp")
    view.wait_ready()
    notebook.command("docmanager:save")
    notebook.page.goto(notebook.page.url.replace("?reset&", "?"))
    notebook.wait_until_ready()
    back = notebook.explorer()
    back.wait_ready(run=1)
    assert back.state("selected") == "layers.2.mlp" and back.state("hash") != ""
    assert back.prompt.input_value() == "a b c"
    back.run_prompt("a b")
    back.wait_ready(run=2)


def test_a_wrong_prompt_is_told_and_the_next_run_works(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, SHOW)
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.run_prompt("")
    expect(view.status).to_contain_text("prompt is empty")
    expect(view.root).to_have_attribute("data-state", "error")
    view.run_prompt("b c d")
    view.wait_ready(run=2)
    expect(view.status).not_to_contain_text("empty")


def test_names_are_text(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "model = Tiny(evil=True)\nex = lv.explore(model, Words(), 'a b')\nex",
        "ex.selected = [s for s in ex.trace.sites if 'onerror' in s][0]\n"
        "ex.interventions = (lv.scale(ex.selected, 0),)\nex.wait()\nex.snapshot()",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    notebook.run(2)
    view.wait_ready(run=2)
    expect(view.root).to_contain_text("onerror")
    assert view.root.locator("img").count() == 0
    assert notebook.page.evaluate("() => window.lensviewWasHere") is None


def test_a_busy_kernel(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        SHOW,
        "_lens.selected = 'layers.1.mlp'  # publishes from a cell: the pin of ipykernel 7.4\n"
        "time.sleep(12)",
        "print(_lens.prompt, len(_lens.trace.tokens.labels[0]), _lens._runs.latest.run)",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    notebook.start(2)
    expect(view.root).to_have_attribute("data-selected", "layers.1.mlp")
    began = time.monotonic()
    for prompt in ("a a", "a b", "b b c"):
        view.run_prompt(prompt)
    expect(view.status).to_contain_text("cell", timeout=5000)
    view.tree.locator('[data-site="layers.3"]').click()
    expect(view.root).to_have_attribute("data-selected", "layers.3", timeout=5000)
    view.mark("cancel").click()
    expect(view.mark("run")).to_be_visible(timeout=5000)
    view.run_prompt("b b c d")
    expect(view.status).to_contain_text("cell", timeout=5000)
    assert time.monotonic() - began < 11, "all of this was while the cell ran"
    assert view.state("run") == "1"
    view.wait_ready(run=2)
    assert notebook.text(3).split("\n")[0] == "b b c d 4 2", "one run, with the last prompt"


def test_cancel_stops_a_run(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "words, slow = Words(), Tiny(layers=40, seconds=0.25)\n%lens slow --tokenizer words",
        "print(sum(len(m._forward_hooks) for m in slow.modules()), _lens.trace)",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready()
    began = time.monotonic()
    view.run_prompt("a b c")
    expect(view.status).to_contain_text("layer", timeout=5000)
    view.mark("cancel").click()
    expect(view.mark("run")).to_be_visible(timeout=5000)
    assert time.monotonic() - began < 9
    expect(view.status).to_contain_text("Cancelled")
    assert notebook.text(2).strip() == "0 None"


def test_two_views_and_a_box(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "import ipywidgets as w\nex = lv.explore(Tiny(), Words(), 'a b')\n"
        "note = w.Text()\nw.link((ex, 'selected'), (note, 'value'))\nw.HBox([ex, note])",
        "ex",
        "ex.interventions = (lv.scale('layers.0.mlp', 2),)\nex.wait()",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    first, second = notebook.explorer(0), notebook.explorer(1)
    second.wait_ready(run=1)
    second.select("layers.0.mlp")
    expect(first.root).to_have_attribute("data-selected", "layers.0.mlp")
    first.wait_ready()
    assert first.state("hash") != ""
    box = first.root.bounding_box()
    assert box is not None and box["width"] >= 320
    expect(notebook.page.locator(".widget-text input").first).to_have_value("layers.0.mlp")
    notebook.run(3)
    for view in (first, second):
        view.wait_ready(run=2)
        expect(view.interventions()).to_have_count(1)


def test_a_cell_run_again_shows_the_new_one(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        SHOW,
        "from ipywidgets.widgets.widget import _instances\nprint(len(_instances))",
    )
    notebook.run(0)
    counts = []
    for _ in range(3):
        notebook.run(1)
        notebook.explorer().wait_ready(run=1)
        counts.append(notebook.text(2).strip())
    assert notebook.page.locator(".lensview").count() == 1
    assert len(set(counts)) == 1, counts


def test_what_a_saved_notebook_holds(open_notebook: Open) -> None:
    notebook = open_notebook(SETUP, SHOW, "_lens.snapshot()")
    notebook.run(0)
    notebook.command("docmanager:save")
    empty = notebook.path.stat().st_size
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.select("layers.1.mlp")
    view.wait_ready()
    notebook.run(2)
    notebook.command("docmanager:save")
    saved = notebook.path.read_text()
    assert len(saved) - empty < 200_000
    content = json.loads(saved)
    states = content["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    (ours,) = [s["state"] for s in states.values() if "selected" in s["state"]]
    assert ours["selected"] == "layers.1.mlp"
    assert not any("buffers" in s for s in states.values())
    assert all(len(str(v)) < 1000 for k, v in ours.items() if k != "_esm")

    # As JupyterLab saves it unless told otherwise; with the state, converters choose the widget.
    del content["metadata"]["widgets"]
    plain = notebook.path.with_name("plain.ipynb")
    plain.write_text(json.dumps(content))
    done = subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--stdout", str(plain)],
        capture_output=True,
        text=True,
        check=True,
    )
    # Without a kernel and without scripts: what nbviewer and a reader of the page see.
    context = notebook.page.context.browser.new_context(java_script_enabled=False)  # type: ignore[union-attr]
    page = context.new_page()
    page.set_content(done.stdout.replace("<script", "<template").replace("</script", "</template"))
    static = page.locator('[data-lensview="static"]')
    expect(static).to_have_count(2, timeout=PATIENCE)
    expect(static.first).to_contain_text("Tiny")
    expect(static.first).to_contain_text("next token")
    expect(static.last).to_contain_text("layers.1.mlp")
    expect(static.last.locator("img")).to_have_count(1)
    context.close()
