"""The whole line on the real model: `%lens demo`, look, edit, compare."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from .conftest import RESULTS, Open

SITE = "model.layers.10.mlp"
PROMPT = "The capital of France is"
SCREENSHOTS = RESULTS / "screenshots"

# What a person would write to check us: a hook by hand, no lensview in it.
CHECK = f"""
import json, torch
explorer = _lens
model, tokenizer = explorer.session.root, explorer.session.tokenizer
def by_hand():
    ids = tokenizer({PROMPT!r}, return_tensors="pt")
    with torch.no_grad():
        p = model(**ids).logits[0, -1].float().softmax(-1).topk(5)
    return p.indices.tolist(), p.values.tolist()
plain = by_hand()
handle = model.get_submodule({SITE!r}).register_forward_hook(lambda m, a, out: out * 0)
edited = by_hand()
handle.remove()
top = explorer.trace.top(5)
print(json.dumps({{
    "plain": plain, "edited": edited,
    "trace": [[t.id for t in top], [t.probability for t in top]],
    "baseline": [[t.id for t in explorer.baseline.top(5)],
                 [t.probability for t in explorer.baseline.top(5)]],
    "zero": not explorer.trace[{SITE!r}].any().item(),
    "selected": explorer.selected,
    "interventions": [str(i) for i in explorer.interventions],
    "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
}}))
"""


@pytest.mark.timeout(600)
def test_first_light(open_notebook: Open) -> None:
    notebook = open_notebook("%load_ext lensview", "%lens demo", CHECK, "_lens.snapshot()")
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    assert view.prompt.input_value() == PROMPT
    before = view.next_tokens()
    assert before[0][0] == "·Paris" and abs((before[0][1] or 0) - 0.77) < 0.01

    view.run_prompt(PROMPT)
    view.wait_ready(run=2)
    view.select(SITE)
    assert view.labels() == ["The", "·capital", "·of", "·France", "·is"]
    expect(view.mark("stats")).to_contain_text("float32")
    view.wait_ready()

    painted = view.painted()
    view.mark("add-intervention").click()
    expect(view.interventions()).to_have_count(1)
    view.wait_ready(run=3)
    row = view.interventions().first
    assert row.locator('[data-field="site"]').input_value() == SITE
    row.locator('[data-field="operation"]').select_option("scale")
    view.set_field(0, "value", "0")
    view.wait_ready()
    view.repainted(painted)

    after = view.next_tokens()
    assert after != before and any(edited is not None for _, _, edited in after)
    told = json.loads(notebook.text(2))
    assert told["zero"] and told["selected"] == SITE
    assert told["interventions"] == [f"scale {SITE} 0"] and told["hooks"] == 0
    assert told["trace"][0] == told["edited"][0]
    assert told["trace"][1] == pytest.approx(told["edited"][1], rel=1e-4)
    assert told["baseline"][0] == told["plain"][0]
    assert told["trace"][1] != pytest.approx(told["baseline"][1], rel=1e-4)
    shown = {token: edited for token, _, edited in after if edited is not None}
    assert max(shown.values()) == pytest.approx(told["edited"][1][0], rel=1e-4)

    view.select("model.layers.12.mlp")  # downstream of the edit, and not all zeros
    view.wait_ready()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    hashes = []
    for theme, name in (("JupyterLab Light", "light"), ("JupyterLab Dark", "dark")):
        notebook.theme(theme)
        expect(view.root).to_have_attribute("data-theme", name)
        notebook.page.wait_for_timeout(500)  # the host's own colours fade
        view.root.screenshot(path=SCREENSHOTS / f"explorer-{name}.png")
        hashes.append(view.state("hash"))
    assert hashes[0] != hashes[1], "the picture follows the theme"

    (shot,) = notebook.run(3)
    html = "".join(shot["data"]["text/html"])
    assert SITE in html and "data:image/png;base64," in html and len(html) < 100_000
