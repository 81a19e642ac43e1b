"""The views of a site by tabs, on the real model: each driven as a person would."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Locator, expect

from .conftest import RESULTS, Open
from .driver import PATIENCE, ExplorerView, Notebook

SITE = "model.layers.10.mlp"
ATTENTION = "model.layers.10.self_attn"
PROMPT = "The capital of France is"
SCREENSHOTS = RESULTS / "screenshots"

# What a person would write to check us, with no lensview in it.
BY_HAND = f"""
import json, torch
model, tokenizer = _lens.session.root, _lens.session.tokenizer
ids = tokenizer({PROMPT!r}, return_tensors="pt")
kept = {{}}
def keep(name):
    def hook(module, given, out):
        kept[name] = (out[0] if isinstance(out, tuple) else out).detach()
    return hook
names = [{SITE!r}, "model.layers.10"]
handles = [model.get_submodule(n).register_forward_hook(keep(n)) for n in names]
was = model.config._attn_implementation
model.set_attn_implementation("eager")
with torch.no_grad():
    weights = model(**ids, output_attentions=True).attentions[10][0]
model.set_attn_implementation(was)
with torch.no_grad():
    model(**ids)
    chances = model.lm_head(model.model.norm(kept["model.layers.10"]))[0].float().softmax(-1)
for handle in handles:
    handle.remove()
best = chances.max(-1)
print(json.dumps({{
    "norms": kept[{SITE!r}][0].double().norm(dim=-1).tolist(),
    "low": kept[{SITE!r}].min().item(), "count": kept[{SITE!r}].numel(),
    "weight": weights[3, 4, 1].item(), "heads": len(weights),
    "lens": [tokenizer.decode(i) for i in best.indices.tolist()], "chances": best.values.tolist(),
}}))
"""
TOLD = """
import json
print(json.dumps({"selected": _lens.selected, "sites": list(_lens.trace.sites)}))
"""


def tab(view: ExplorerView, name: str, mark: str | None = None) -> Locator:
    """Choose a tab; its view, once it shows something."""
    view.mark(f"tab-{name}").click()
    shown = view.mark(mark or name)
    expect(shown).to_be_visible(timeout=PATIENCE)
    if mark is None:
        expect(shown).to_have_attribute("data-state", "shown", timeout=PATIENCE)
    return shown


def shoot(notebook: Notebook, view: ExplorerView, name: str) -> None:
    """The explorer in light and dark, to be looked at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme, shade in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        notebook.theme(theme)
        expect(view.root).to_have_attribute("data-theme", shade)
        notebook.page.wait_for_timeout(400)  # the host's own colours fade
        view.root.screenshot(path=SCREENSHOTS / f"view-{name}-{shade}.png")


@pytest.mark.timeout(600)
def test_each_view_of_a_site(open_notebook: Open) -> None:
    notebook = open_notebook("%load_ext lensview", "%lens demo", BY_HAND, TOLD)
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.select(SITE)
    by_hand = json.loads(notebook.text(2))

    spread = tab(view, "distribution")
    expect(spread.locator("[data-bin]")).to_have_count(96)
    expect(view.mark("distribution-facts")).to_contain_text("1x5x576 float32")
    low = view.mark("quantiles").locator("tbody tr").first.locator("td").first
    assert float(low.get_attribute("title") or "") == pytest.approx(by_hand["low"], rel=1e-6)
    tallest = spread.locator("[data-bin]").nth(48)
    tallest.hover()
    expect(view.mark("distribution-readout")).to_contain_text(" to ")
    shoot(notebook, view, "distribution")

    tab(view, "norms")
    rows = view.mark("norm-rows").locator("[data-row]")
    expect(rows).to_have_count(5)
    shown = [float(row.get_attribute("data-value") or "") for row in rows.all()]
    assert shown == pytest.approx(by_hand["norms"], rel=1e-5)
    assert rows.nth(3).locator("bdi").inner_text() == "·France"
    shoot(notebook, view, "norms")

    attention = view.mark("tab-attention")
    expect(attention).to_have_attribute("aria-disabled", "true")
    assert "no attention module" in (attention.get_attribute("title") or "")

    tab(view, "lens")
    cells = view.mark("lens-table").locator('tr[data-site="model.layers.10"] td')
    expect(cells).to_have_count(5)
    values = [float(c.get_attribute("data-value") or "") for c in cells.all()]
    assert values == pytest.approx(by_hand["chances"], rel=1e-3)
    expect(view.mark("lens-facts")).to_contain_text("through model.norm → lm_head")
    expect(view.mark("lens-facts")).to_contain_text("bit for bit")
    cells.nth(4).hover()
    expect(view.mark("lens-readout")).to_contain_text("model.layers.10 at ·is")
    shoot(notebook, view, "lens")
    cells.nth(2).click()
    expect(view.root).to_have_attribute("data-selected", "model.layers.10", timeout=PATIENCE)
    cells.nth(2).press("ArrowUp")
    notebook.page.locator(":focus").press("Enter")
    expect(view.root).to_have_attribute("data-selected", "model.layers.11", timeout=PATIENCE)

    # By keys alone: arrows move along the tabs, Enter chooses.
    view.mark("tab-lens").press("ArrowLeft")
    expect(view.mark("tab-attention")).to_be_focused()
    view.mark("search").fill("layers.10.self_attn")
    view.tree.locator(f'[data-site="{ATTENTION}"]').click()
    expect(view.mark("tab-attention")).not_to_have_attribute("aria-disabled", "true")
    view.mark("tab-lens").press("ArrowLeft")
    view.mark("tab-attention").press("Enter")
    # It was not recorded: the model ran again for it, with the kernel that it has.
    expect(view.mark("attention")).to_have_attribute("data-state", "shown", timeout=PATIENCE)
    heads = view.mark("head")
    expect(heads).to_have_count(by_hand["heads"])
    heads.nth(3).click()
    surface = view.mark("attention-surface")
    view.wait_ready()
    for _ in range(5):
        surface.press("ArrowDown")
    surface.press("ArrowRight")
    said = view.mark("attention-readout")
    expect(said).to_contain_text("head 3: query 4 ·is → key 1 ·capital")
    shown_weight = view.mark("words").locator('[data-key="1"]').get_attribute("data-value")
    assert float(shown_weight or "") == pytest.approx(by_hand["weight"], abs=1e-5)
    expect(view.mark("attention-facts")).to_contain_text("scaled_dot_product_attention")
    shoot(notebook, view, "attention")

    tab(view, "source")
    op = view.mark("code").locator(f'[data-op="{ATTENTION}/scaled_dot_product_attention"]')
    expect(op).to_contain_text("float32 1 × 9 × 5 × 64")
    unseen = view.mark("code").locator(f'[data-op="{ATTENTION}/transpose"]')
    unseen.click()
    expect(view.root).to_have_attribute("data-selected", f"{ATTENTION}/transpose", timeout=PATIENCE)
    expect(view.mark("op-stats")).to_contain_text("mean", timeout=PATIENCE)
    shoot(notebook, view, "source")
    told = json.loads(notebook.text(3))
    assert told["selected"] == f"{ATTENTION}/transpose" in told["sites"]

    view.mark("tab-heatmap").click()
    view.wait_ready()
    expect(view.mark("heatmap")).to_be_visible()


@pytest.mark.timeout(600)
def test_views_of_an_edited_run(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview",
        "%lens demo",
        f"import lensview as lv\n_lens.interventions = (lv.scale({SITE!r}, 0),)\n_lens.wait()",
        "b = _lens.trace.top(1)[0]\nprint(b.probability, _lens.baseline.probability(b.id))",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.select(SITE)
    tab(view, "lens")
    notebook.run(2)
    view.wait_ready(run=2)
    edited, before = map(float, notebook.text(3).split())
    expect(view.mark("tab-lens")).to_have_attribute("aria-selected", "true")
    last = view.mark("lens-table").locator("tbody tr").first.locator("td").last
    expect(view.mark("lens")).to_have_attribute("data-state", "shown", timeout=PATIENCE)
    view.wait_ready()
    shown = last.get_attribute("data-value") or ""
    assert float(shown) == pytest.approx(edited, rel=1e-3)
    view.mark("view-which").locator("visible=true").get_by_text("difference").click()
    expect(last).not_to_have_attribute("data-value", shown, timeout=PATIENCE)
    view.wait_ready()
    change = float(last.get_attribute("data-value") or "")
    assert change == pytest.approx(edited - before, rel=1e-3)
    shoot(notebook, view, "lens-difference")

    tab(view, "norms")
    bars = view.mark("norm-rows").locator("[data-row]").first.locator(".lv-norm-bar")
    expect(bars).to_have_count(2)
    tab(view, "distribution")
    expect(view.mark("quantiles").locator("thead th")).to_have_count(3)
    shoot(notebook, view, "distribution-edited")

    # In a narrow notebook nothing sticks out at the side.
    notebook.page.set_viewport_size({"width": 760, "height": 1100})
    for name in ("norms", "lens", "distribution"):
        tab(view, name)
        width, inner = view.root.locator(".lv-views").evaluate(
            "(element) => [element.clientWidth, element.scrollWidth]"
        )
        assert inner <= width
    shoot(notebook, view, "distribution-narrow")
