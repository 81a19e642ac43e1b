"""Comparing runs, trusting them, pricing them and saving them, as a person does."""

from __future__ import annotations

import math

import pytest
from playwright.sync_api import expect

from .conftest import RESULTS, Open
from .driver import ExplorerView, Notebook
from .test_editing import field, menu, shown

SITE = "model.layers.10.mlp"
PROMPT = "The capital of France is"
OTHER = "The capital of Italy is"
SHOTS = RESULTS / "screenshots"

CHECK = """
import json, torch
import lensview as lv
explorer = _lens
def kl(p, q):
    p, q = (t[0].double().softmax(-1) for t in (p, q))
    return float((p * (p.log() - q.log())).sum())
def told(**more):
    print(json.dumps(more))
"""


def divergence(view: ExplorerView) -> tuple[float, float]:
    line = view.mark("divergence")
    return (
        float(line.get_attribute("data-forward") or "nan"),
        float(line.get_attribute("data-backward") or "nan"),
    )


def kept(view: ExplorerView, number: int, name: str) -> None:
    row = view.root.locator(f'[data-test="kept-run"][data-number="{number}"]')
    row.locator(f'[data-field="{name}"]').click()


def look(notebook: Notebook, view: ExplorerView, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    for width, height in ((1400, 1000), (760, 1250)):
        notebook.page.set_viewport_size({"width": width, "height": height})
        notebook.page.wait_for_timeout(400)
        for theme, short in (("JupyterLab Light", "light"), ("JupyterLab Dark", "dark")):
            notebook.theme(theme)
            expect(view.root).to_have_attribute("data-theme", short)
            notebook.page.wait_for_timeout(400)
            view.root.screenshot(path=SHOTS / f"{name}-{width}-{short}.png")
    notebook.page.set_viewport_size({"width": 1400, "height": 1100})


@pytest.mark.timeout(900)
def test_two_prompts_and_two_runs(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview",
        "%lens demo",
        CHECK,
        "a, b = explorer.baseline.logits, explorer.trace.logits\n"
        "told(there=kl(a, b), back=kl(b, a))",
        "a, b = explorer.runs[0].trace, explorer.runs[2].trace\n"
        "told(there=kl(a.logits, b.logits), back=kl(b.logits, a.logits),\n"
        "     top=[t.text for t in b.top(1)], prompts=[r.inputs for r in explorer.runs])",
        "told(names=[r.name for r in explorer.runs], prompt=explorer.prompt,\n"
        "     edits=[str(i) for i in explorer.interventions])",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.select(SITE)
    view.wait_ready()
    view.mark("add-intervention").click()
    view.wait_ready(run=2)
    told = shown(notebook, 3)
    assert divergence(view) == pytest.approx((told["there"], told["back"]), rel=1e-9)
    assert all(math.isfinite(d) and d > 0 for d in divergence(view))
    expect(view.mark("divergence")).to_contain_text("nats")

    field(view, "enabled").click()
    view.wait_ready(run=3)
    view.mark("fold-timeline").click()
    view.mark("beside").fill(OTHER)
    view.mark("run-beside").click()
    expect(view.mark("end-pair")).to_be_visible(timeout=60_000)
    view.wait_ready()
    expect(view.mark("next-tokens").locator("th").nth(1)).to_contain_text("A: run 3")

    # The same by choosing in the timeline; the picture is of the two as well.
    kept(view, 1, "A")
    view.wait_ready()
    assert "4" in (view.mark("fold-timeline").text_content() or "")
    painted = view.painted()
    view.mark("which").locator('[data-value="difference"]').click()
    view.repainted(painted)
    expect(view.mark("which")).to_contain_text("B − A")
    notebook.run(2)
    look(notebook, view, "compare")
    kept(view, 3, "B")
    view.wait_ready()
    view.mark("end-pair").click()
    expect(view.mark("end-pair")).to_be_hidden()
    view.wait_ready()

    row = view.root.locator('[data-test="kept-run"][data-number="2"]')
    row.locator('[data-field="name"]').fill("no mlp")
    row.locator('[data-field="name"]').press("Enter")
    kept(view, 2, "restore")
    expect(field(view, "enabled")).to_be_checked(timeout=60_000)
    view.wait_ready()
    told = shown(notebook, 5)
    assert told["prompt"] == PROMPT and told["edits"] == [f"scale {SITE} 0"]
    assert told["names"][:2] == ["", "no mlp"]  # type: ignore[index]
    assert view.prompt.input_value() == PROMPT


@pytest.mark.timeout(900)
def test_trust_cost_and_files(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview",
        "%lens demo",
        CHECK,
        "loaded = lv.load('mine.safetensors')\n"
        "told(same=bool(torch.equal(loaded.logits, explorer.trace.logits)))",
        "told(limit=explorer._runs.max_bytes, sites=len(explorer.trace.sites),\n"
        "     shape=list(explorer.trace['model.layers.3'].shape))",
        "_lens_figure",
        "with torch.no_grad():\n    explorer.session.root.lm_head.weight[5] += 1\ntold()",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    view = notebook.explorer()
    view.wait_ready(run=1)
    expect(view.mark("fold-trust")).to_contain_text("!")
    view.mark("fold-trust").click()
    plain = view.mark("checks").locator('[data-check="plain call"]')
    expect(plain).to_have_attribute("data-ok", "false")
    view.mark("verify").click()
    expect(plain).to_have_attribute("data-ok", "true", timeout=60_000)
    expect(plain).to_contain_text("bit for bit")
    view.wait_ready()
    notebook.run(6)
    view.mark("verify").click()
    expect(plain).to_have_attribute("data-ok", "false", timeout=60_000)
    expect(plain).to_contain_text("logits differ")
    view.wait_ready()
    look(notebook, view, "trust")

    # A file, and what is there already is asked about.
    for answer in ("new", "there"):
        menu(view, view.mark("main-menu"), "save-trace")
        view.mark("file-name").fill("mine")
        view.mark("file-name").press("Enter")
        if answer == "there":
            expect(view.mark("save-text")).to_contain_text("already")
            view.mark("overwrite").click()
        expect(view.mark("save-dialog")).to_have_count(0, timeout=60_000)
        expect(view.status).to_contain_text("Saved")
    assert (notebook.path.parent / "mine.safetensors").is_file()
    told = shown(notebook, 3)
    assert told["same"] is True

    view.select("model.layers.3")
    view.wait_ready()
    menu(view, view.mark("main-menu"), "figure")
    expect(view.mark("code-dialog")).to_be_visible(timeout=60_000)
    view.mark("close").click()
    (output,) = notebook.run(5)
    assert "application/vnd.plotly.v1+json" in output["data"]

    # What a run would hold, and less of it.
    view.mark("cost").click()
    expect(view.mark("cost-text")).to_contain_text("A run holds", timeout=120_000)
    choices = view.mark("cost-choices").locator("label")
    assert choices.count() >= 4
    SHOTS.mkdir(parents=True, exist_ok=True)
    view.root.screenshot(path=SHOTS / "cost.png")
    choices.filter(has_text="layers' outputs").locator("input").check()
    view.mark("limit").fill("64")
    view.mark("apply-limits").click()
    view.wait_ready()
    told = shown(notebook, 4)
    assert told == {"limit": 64 << 20, "sites": 30, "shape": [1, 5, 576]}


def test_reload_and_two_views(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview\nimport lensview as lv\nfrom tiny import Tiny, Words",
        "ex = lv.explore(Tiny(), Words(), 'a b c')\nex",
        "ex",
        "print(len(ex.runs))",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    one, two = notebook.explorer(0), notebook.explorer(1)
    one.wait_ready(run=1)
    two.wait_ready(run=1)
    one.run_prompt("b c d")
    for view in (one, two):
        view.wait_ready(run=2)
    one.mark("fold-timeline").click()
    kept(one, 1, "A")
    kept(one, 2, "B")
    expect(two.mark("fold-timeline")).to_contain_text("comparing 1 and 2")
    expect(two.mark("divergence")).to_be_visible()
    assert divergence(one) == divergence(two)
    notebook.command("docmanager:save")
    notebook.page.goto(notebook.page.url.replace("?reset&", "?"))
    notebook.wait_until_ready()
    back = notebook.explorer(0)
    expect(back.mark("fold-timeline")).to_contain_text("comparing 1 and 2")
    expect(back.mark("timeline")).to_have_attribute("data-open", "true")
    back.mark("end-pair").click()
    expect(back.mark("divergence")).to_be_hidden()
    assert notebook.text(3).strip() == "2"
