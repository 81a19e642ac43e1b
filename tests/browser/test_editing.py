"""Editing as a person does it: rows by tree, keys and menus, typed values, undo, effects, code."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Locator, expect

from .conftest import RESULTS, Open
from .driver import ExplorerView, Notebook

SITE = "model.layers.10.mlp"
PROMPT = "The capital of France is"

# What a person would write to check a row: hooks by hand, no lensview in it.
CHECK = f"""
import json, torch
explorer = _lens
model, tokenizer = explorer.session.root, explorer.session.tokenizer
def by_hand(change, path={SITE!r}, prompt={PROMPT!r}):
    ids = tokenizer(prompt, return_tensors="pt")
    handle = model.get_submodule(path).register_forward_hook(lambda m, a, out: change(out))
    with torch.no_grad():
        logits = model(**ids).logits[:, -1]
    handle.remove()
    return logits
def same(change):
    return bool(torch.equal(explorer.trace.logits, by_hand(change)))
def told(**more):
    print(json.dumps({{"edits": [str(i) for i in explorer.interventions], **more}}))
"""


def field(view: ExplorerView, name: str, row: int = 0) -> Locator:
    return view.interventions().nth(row).locator(f'[data-field="{name}"]')


def shown(notebook: Notebook, cell: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(notebook.text(cell).splitlines()[-1])
    return found


def menu(view: ExplorerView, opener: Locator, item: str) -> None:
    opener.click()
    view.mark(item).click()


@pytest.mark.timeout(900)
def test_rows_on_the_demo_model(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview\nimport torch\ntorch.manual_seed(3)\n"
        "steer, short = torch.randn(576), torch.ones(5)",
        "%lens demo",
        CHECK,
        "told(same=same(lambda o: o + steer))",
        "told(same=same(lambda o: o.clamp(-0.5, 0.25)))",
        "u = (steer.double() / steer.double().norm()).float()\n"
        "told(left=float((explorer.trace['" + SITE + "'] @ u).abs().max()))",
        "source = explorer.runs[0].trace['" + SITE + "']\ntold(same=same(lambda o: source))",
        "told()",
        "names = dict(model=model, tokenizer=tokenizer, steer=steer)\n"
        "exec(explorer.code(), names)\n"
        "told(same=bool(torch.equal(names['trace'].logits, explorer.trace.logits)))",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    view = notebook.explorer()
    view.wait_ready(run=1)

    # From the tree, by its context menu and by a key.
    view.mark("search").fill(SITE)
    view.tree.locator(f'[data-site="{SITE}"]').click(button="right")
    view.mark("edit-this").click()
    expect(view.interventions()).to_have_count(1)
    view.wait_ready(run=2)
    assert field(view, "site").input_value() == SITE

    # A vector by its name, offered with its shape.
    field(view, "operation").select_option("add")
    view.wait_ready(run=3)
    field(view, "value").focus()
    option = view.interventions().first.locator("datalist option")
    expect(option.first).to_have_attribute("value", "steer", timeout=20_000)
    assert "float32 576" in (option.first.text_content() or "")
    view.set_field(0, "value", "short")
    expect(field(view, "error")).to_contain_text("576 elements")
    view.set_field(0, "value", "steer")
    expect(field(view, "error")).to_be_hidden()
    view.wait_ready()
    assert shown(notebook, 3)["same"] is True

    # A pair of numbers, with defaults when the operation changes.
    field(view, "operation").select_option("clamp")
    expect(field(view, "low")).to_have_value("-1")
    view.set_field(0, "low", "-0.5")
    view.set_field(0, "high", "0.25")
    view.wait_ready()
    assert shown(notebook, 4) == {"edits": [f"clamp {SITE} -0.5, 0.25"], "same": True}

    field(view, "operation").select_option("project_out")
    expect(field(view, "error")).to_contain_text("the name of a tensor")
    view.set_field(0, "value", "steer")
    expect(field(view, "error")).to_be_hidden()
    view.wait_ready()
    left = shown(notebook, 5)["left"]
    assert isinstance(left, float) and left < 1e-4

    # A patch from another run of the timeline.
    field(view, "operation").select_option("patch")
    field(view, "value").select_option("run 1")
    view.wait_ready()
    expect(field(view, "error")).to_be_hidden()
    told = shown(notebook, 6)
    assert told["same"] is True

    # Undo and redo by keys and buttons.
    view.tree.press("Control+z")
    expect(field(view, "operation")).to_have_value("patch")
    view.wait_ready()
    for _ in range(2):
        view.mark("undo").click()
        view.wait_ready()
    expect(field(view, "operation")).to_have_value("project_out")
    view.tree.press("Control+Shift+Z")
    view.wait_ready()
    field(view, "operation").select_option("clamp")
    view.wait_ready()
    assert shown(notebook, 7)["edits"] == [f"clamp {SITE} -1, 1"]

    # Duplicate, move, and the effect of one row alone.
    view.set_field(0, "high", "0.5")
    view.wait_ready()
    field(view, "high").press("Control+d")
    expect(view.interventions()).to_have_count(2)
    view.wait_ready()
    view.set_field(1, "low", "-0.125")
    view.wait_ready()
    field(view, "low", 1).press("Alt+ArrowUp")
    expect(field(view, "low", 0)).to_have_value("-0.125")
    view.wait_ready()
    edits = shown(notebook, 7)["edits"]
    assert edits == [f"clamp {SITE} -0.125, 0.5", f"clamp {SITE} -1, 0.5"]
    menu(view, view.mark("row-menu").first, "row-effect")
    expect(field(view, "effect")).to_contain_text(f"first effect is at {SITE}", timeout=60_000)
    expect(field(view, "effect")).to_contain_text("The logits move")
    view.wait_ready()

    # Out of the page, as code that gives the same logits.
    menu(view, view.mark("main-menu"), "copy-code")
    code = view.mark("code-text").input_value()
    assert f'lv.clamp("{SITE}", -0.125, 0.5)' in code and PROMPT in code
    view.mark("close").click()
    assert shown(notebook, 8)["same"] is True


def test_keys_menus_and_dialogs(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview\nimport lensview as lv\nfrom tiny import Tiny, Words",
        "model, words = Tiny(), Words()\n%lens model --tokenizer words --prompt 'a b c'",
        "print([str(i) for i in _lens.interventions])",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    view.tree.focus()
    view.tree.press("?")
    dialog = view.mark("help-dialog")
    expect(dialog).to_be_visible()
    for _ in range(3):
        dialog.press("Tab")
    assert dialog.evaluate("(d) => d.contains(document.activeElement)"), "the focus stays inside"
    view.mark("close").press("Escape")
    expect(dialog).to_have_count(0)
    expect(view.tree).to_be_focused()

    view.select("layers.1.mlp")
    view.tree.press("Alt+Enter")
    expect(view.interventions()).to_have_count(1)
    view.wait_ready(run=2)
    value = field(view, "value")
    value.focus()
    value.press("ArrowUp")
    value.press("ArrowUp")
    value.press("Enter")
    view.wait_ready(run=3)
    assert notebook.text(2).strip() == "['scale layers.1.mlp 2']"
    value.press("Control+z")
    view.wait_ready(run=4)
    expect(value).to_have_value("0")
    view.mark("main-menu").press("Enter")
    expect(view.mark("copy-code")).to_be_focused()
    view.mark("menu").press("ArrowDown")
    expect(view.mark("save-trace")).to_be_focused()
    view.mark("menu").press("Escape")
    expect(view.mark("main-menu")).to_be_focused()
    assert notebook.cell_count() == 3


def test_a_picked_cell_becomes_a_row(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview\nimport lensview as lv\nfrom tiny import Tiny, Words",
        "model, words = Tiny(), Words()\n%lens model --tokenizer words --prompt 'a b c'",
        "_lens.interventions = (lv.scale('layers.0.mlp', 0, (0, slice(1, 3), 4)),)\n"
        "print(_lens.wait(60), [str(i) for i in _lens.interventions])",
    )
    for index in (0, 1):
        notebook.run(index)
    view = notebook.explorer()
    view.wait_ready(run=1)
    assert "True ['scale layers.0.mlp[0, 1:3, 4] 0']" in notebook.text(2)
    view.wait_ready(run=2)
    expect(field(view, "index")).to_have_value("0, 1:3, 4")
    view.set_field(0, "index", "0, 7")
    expect(field(view, "error")).to_contain_text("out of range")
    expect(view.interventions().first).to_have_attribute("aria-invalid", "true")


# The least contrast of any visible text of the explorer with what is painted behind it.
CONTRAST = """(root) => {
  const parse = (text) => {
    const parts = text.match(/[-\\d.e]+/g).map(Number);
    const scale = text.startsWith('color(') ? 1 : 255;
    return [parts[0] / scale, parts[1] / scale, parts[2] / scale, parts[3] ?? 1];
  };
  const light = ([r, g, b]) => {
    const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map(linear);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (element) => {
    for (let up = element; up; up = up.parentElement) {
      const color = parse(getComputedStyle(up).backgroundColor);
      if (color[3] > 0.99) return color;
    }
    return [1, 1, 1, 1];
  };
  let worst = [99, ''];
  for (const element of root.querySelectorAll('*')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim() !== '');
    const field = ['INPUT', 'SELECT', 'TEXTAREA'].includes(element.tagName);
    if (!(own || field) || element.tagName === 'STYLE' || !element.checkVisibility()) continue;
    const a = light(parse(getComputedStyle(element).color));
    const b = light(behind(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const said = element.textContent.slice(0, 30);
    if (ratio < worst[0]) worst = [ratio, `${element.className} ${said}`];
  }
  return worst;
}"""


def test_it_is_readable_from_narrow_to_wide(open_notebook: Open) -> None:
    notebook = open_notebook(
        "%load_ext lensview\nimport lensview as lv, torch\nfrom tiny import Tiny, Words\n"
        "steer = torch.ones(24)",
        "model, words = Tiny().eval(), Words()\n%lens model --tokenizer words --prompt 'a b c'",
        "_lens.run('b c d')\n"
        "_lens.interventions = (lv.clamp('layers.0.mlp', -1, 1, (0, slice(0, 2))),\n"
        "    lv.noise('layers.1.mlp', 0.1, 7), lv.scale('layers.2.mlp', 0), lv.zero('layers.3'))\n"
        "_lens.wait(60)",
    )
    for index in (0, 1, 2):
        notebook.run(index)
    view = notebook.explorer()
    expect(view.interventions()).to_have_count(4)
    view.wait_ready()
    field(view, "operation", 2).select_option("patch")
    view.wait_ready()
    view.set_field(3, "index", "0, 9")
    expect(field(view, "error", 3)).to_contain_text("out of range")
    menu(view, view.mark("row-menu").first, "row-effect")
    expect(field(view, "effect")).to_contain_text("first effect")
    view.wait_ready()
    view.mark("fold-timeline").click()
    view.mark("fold-trust").click()
    shots = RESULTS / "screenshots"
    shots.mkdir(parents=True, exist_ok=True)
    for width in (700, 1000, 1400, 2100):
        notebook.page.set_viewport_size({"width": width, "height": 1400})
        for theme, name in (("JupyterLab Light", "light"), ("JupyterLab Dark", "dark")):
            notebook.theme(theme)
            expect(view.root).to_have_attribute("data-theme", name)
            notebook.page.wait_for_timeout(500)  # the host's own colours fade
            ratio, where = view.root.evaluate(CONTRAST)
            assert ratio >= 4.5, f"{width} px, {name}: {ratio:.2f} at {where}"
            wide = view.root.evaluate("(root) => root.scrollWidth - root.clientWidth")
            assert wide <= 0, f"{width} px: {wide} px too wide"
            view.root.screenshot(path=shots / f"editing-{width}-{name}.png")
    view.tree.press("?")
    view.root.screenshot(path=shots / "help.png")
    ratio, where = view.root.evaluate(CONTRAST)
    assert ratio >= 4.5, where
