"""The heatmap in a real JupyterLab: dims, ranges, zoom and pan, regions, calls, a large plane."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, WebSocket, expect

from .conftest import Open
from .driver import PATIENCE, ExplorerView, Notebook
from .server import Server

SETUP = """%load_ext lensview
import lensview as lv, torch, json
from torch import nn
from tiny import Words, Tiny
from big import Wide"""
MAX_MESSAGE = (1 << 20) + 8192
"""A message of ours and the header that Jupyter puts before it."""


@pytest.fixture(autouse=True)
def big(lab: Server) -> None:
    """The module of large models beside the notebooks."""
    shutil.copy(Path(__file__).with_name("big.py"), lab.root)


class Messages:
    """The largest message that arrived in a page."""

    def __init__(self, page: Page) -> None:
        self.sizes: list[int] = []
        page.on("websocket", self._opened)

    def _opened(self, socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: self.sizes.append(len(frame)))


def box(view: ExplorerView) -> dict[str, float]:
    """Where the picture is in the page."""
    canvas = view.mark("heatmap")
    canvas.scroll_into_view_if_needed()
    found = canvas.bounding_box()
    assert found is not None
    return found  # type: ignore[return-value]


def drag(
    view: ExplorerView, start: tuple[float, float], end: tuple[float, float], key: str = ""
) -> None:
    """Drag from one point of the picture to another, in shares of its size."""
    where = box(view)
    mouse, page = view.page.mouse, view.page
    points = [
        (where["x"] + x * where["width"], where["y"] + y * where["height"]) for x, y in (start, end)
    ]
    if key:
        page.keyboard.down(key)
    mouse.move(*points[0])
    mouse.down()
    mouse.move(*points[1], steps=4)
    mouse.up()
    if key:
        page.keyboard.up(key)


def pixel(view: ExplorerView, x: float, y: float) -> list[int]:
    """The colour at a point of the canvas, in shares of its size."""
    found: list[int] = view.mark("heatmap").evaluate(
        """(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(
          Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data]""",
        [x, y],
    )
    return found


def choose(view: ExplorerView, name: str, value: str) -> None:
    """Pick an option of a select, and wait for what it does to the picture."""
    before = view.painted()
    view.mark(name).select_option(value)
    view.repainted(before)
    view.wait_ready()


def warmest(view: ExplorerView, x: float, y: float) -> int:
    """The most that red exceeds blue within three pixels of a point of the picture."""
    found: int = view.mark("heatmap").evaluate(
        """(canvas, [x, y]) => {
          const near = canvas.getContext('2d').getImageData(
            Math.floor(x * canvas.width) - 3, Math.floor(y * canvas.height) - 3, 7, 7).data;
          let most = 0;
          for (let i = 0; i < near.length; i += 4) most = Math.max(most, near[i] - near[i + 2]);
          return most;
        }""",
        [x, y],
    )
    return found


def open_tiny(open_notebook: Open, *more: str) -> tuple[Notebook, ExplorerView]:
    notebook = open_notebook(SETUP, "ex = lv.explore(Tiny(), Words(), 'a b c d')\nex", *more)
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    return notebook, view


def test_dims_ranges_and_regions(open_notebook: Open) -> None:
    notebook, view = open_tiny(
        open_notebook,
        "x = ex.trace['layers.1.mlp']; import numpy as np\n"
        "print(json.dumps([list(x.shape), x[0].tolist()]))",
        "ex.overlay('mine', torch.arange(4.))",
    )
    view.select("layers.1.mlp")
    view.wait_ready()
    shape, plane = json.loads(notebook.text(2))
    assert shape == [1, 4, 24]

    labels = view.labels()
    assert [label[0] for label in labels] == ["a", "b", "c", "d"]

    # Other dims: the tokens go where their dim is shown.
    choose(view, "columns-dim", "1")
    assert view.mark("axis-label").all_inner_texts() == labels
    assert view.mark("rows-dim").input_value() == "2"
    where = box(view)
    view.page.mouse.move(where["x"] + where["width"] * 0.9, where["y"] + where["height"] * 0.99)
    expect(view.mark("readout")).to_contain_text("feature 23 · token 3 d")
    shown = view.mark("readout-value").inner_text().replace("−", "-")
    assert np.float32(shown) == np.float32(plane[3][23])
    choose(view, "rows-dim", "1")
    assert view.labels() == labels

    # Ranges and curves change the colours; their meaning is stated.
    choose(view, "range", "95")
    expect(view.mark("legend-range")).to_have_text("95 % of magnitudes, exact")
    wanted = np.percentile(np.abs(np.float32(plane)), 95, method="inverted_cdf")
    said = view.mark("legend").locator(".lv-number").last.inner_text()
    assert said == f"≥ +{float(f'{wanted:.3g}')}"
    choose(view, "curve", "arcsinh")
    view.mark("range").select_option("fixed")
    low, high = view.mark("range-low"), view.mark("range-high")
    before = view.painted()
    low.fill("0")
    low.press("Enter")
    high.fill("1e-9")
    high.press("Enter")
    view.repainted(before)
    row, column = np.unravel_index(np.argmax(plane), (4, 24))
    red, _, blue, _ = pixel(view, (column + 0.5) / 24, (row + 0.5) / 4)
    assert red > blue, "beyond the fixed end, at full strength"
    choose(view, "range", "max")

    # Regions: by drag, by label, by key; "Edit this" hands one on.
    drag(view, (0.3, 0.4), (0.48, 0.6), "Shift")
    expect(view.mark("selection")).to_have_text("[0, 1:3, 7:12] · 10 elements")
    expect(view.mark("selection-box")).to_be_visible()
    view.mark("gutter-label").nth(2).click()
    expect(view.mark("selection")).to_have_text("[0, 2] · 24 elements")
    view.mark("edit-selection").click()
    view.mark("drag-mode").locator('[data-value="select"]').click()
    drag(view, (0.01, 0.1), (0.0101, 0.1))
    expect(view.mark("selection")).to_have_text("[0, 0, 0] · 1 element")
    surface = view.mark("heatmap-surface")
    surface.press("ArrowRight")
    surface.press("c")
    expect(view.mark("selection")).to_have_text("[0, :, 1] · 4 elements")
    surface.press("Escape")
    expect(view.mark("selection-box")).to_be_hidden()

    # Numbers of the user's stand beside the tokens.
    notebook.run(3)
    strip = view.mark("strip")
    expect(strip).to_have_count(1)
    top = strip.evaluate("c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data]")
    end = strip.evaluate("c => [...c.getContext('2d').getImageData(0, c.height - 1, 1, 1).data]")
    assert top != end and end[0] > end[2], "0 is neutral, the largest is warm"


def test_calls_are_stepped_through(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "class Twice(nn.Module):\n"
        "    def __init__(self):\n        super().__init__(); self.act = nn.Tanh()\n"
        "    def forward(self, x):\n        return self.act(self.act(x) * 3)\n"
        "ex = lv.explore(Twice(), inputs=torch.randn(3, 5))\nex",
        "print(json.dumps([ex.selected, ex.trace[ex.selected][0, 0].item()]))",
    )
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    row = view.tree.locator('[data-site="act"]')
    expect(row.locator(".lv-badge-fact")).to_have_text("called 2 times")
    row.click()
    expect(view.root).to_have_attribute("data-selected", "act@0")
    expect(view.root).not_to_have_attribute("data-hash", "", timeout=PATIENCE)
    before = view.painted()
    call = view.mark("call")
    call.fill("1")
    call.press("Enter")
    view.repainted(before)
    view.wait_ready()
    selected, value = json.loads(notebook.text(2))
    assert selected == "act@1"
    where = box(view)
    view.page.mouse.move(where["x"] + 2, where["y"] + 2)
    shown = view.mark("readout-value").inner_text().replace("−", "-")
    assert np.float32(shown) == np.float32(value)


@pytest.mark.timeout(300)
def test_a_large_plane(open_notebook: Open) -> None:
    notebook = open_notebook(
        SETUP,
        "ex = lv.explore(Wide(), inputs=torch.zeros(1))\nex",
        "plane = ex.trace['inner']\n"
        "def at(r, c): return plane[r, c].item()\n"
        "print(json.dumps([list(plane.shape), at(1365, 2048), at(1366, 2050)]))",
    )
    messages = Messages(notebook.page)
    notebook.page.reload()
    notebook.wait_until_ready()
    notebook.run(0)
    notebook.run(1)
    view = notebook.explorer()
    view.wait_ready(run=1)
    messages.sizes.clear()
    view.tree.locator('[data-site="inner"]').click()
    expect(view.root).not_to_have_attribute("data-hash", "", timeout=PATIENCE)
    view.wait_ready()
    expect(view.mark("facts")).to_contain_text("4096 × 4096")
    expect(view.mark("facts")).to_contain_text("each cell is the largest of")
    expect(view.mark("legend-nan")).to_have_text("NaN × 1")
    expect(view.mark("legend-inf")).to_have_text("∞ × 1")
    # One outlier among 16.8 million is in the picture, at full strength; the rest is pale.
    assert warmest(view, 2048.5 / 4096, 1365.5 / 4096) > 90 > warmest(view, 0.25, 0.75)
    choose(view, "range", "99")
    expect(view.mark("legend-range")).to_have_text("99 % of magnitudes, of a sample")

    # Zoom by the wheel to full detail, around the outlier.
    where = box(view)
    centre = (
        where["x"] + 2048.5 / 4096 * where["width"],
        where["y"] + 1365.5 / 4096 * where["height"],
    )
    notebook.page.mouse.move(*centre)
    notebook.page.keyboard.down("Control")
    for _ in range(28):
        notebook.page.mouse.wheel(0, -100)
        notebook.page.wait_for_timeout(20)
    notebook.page.keyboard.up("Control")
    expect(view.mark("facts")).not_to_contain_text("largest of")
    view.wait_ready()
    expect(view.mark("reset-zoom")).to_be_visible()
    expect(view.mark("readout")).not_to_contain_text("largest of")
    text = view.mark("readout").inner_text()
    shape, outlier, _ = json.loads(notebook.text(2))
    assert shape == [4096, 4096]
    assert "row 1365 · column 2048" in " ".join(text.split()) and outlier == 80.0
    assert view.mark("readout-value").inner_text() == "80"

    # Every value under the pointer is torch's own.
    seen = pointed(view, 12)
    exact = values_of(notebook, [cell for cell, _ in seen])
    assert [np.float32(v) for _, v in seen] == [np.float32(v) for v in exact]

    # Moving keeps the size of the view and shows other cells.
    before = view.painted()
    first = [cell for cell, _ in seen]
    drag(view, (0.8, 0.8), (0.3, 0.3), "Alt")
    view.repainted(before)
    view.wait_ready()
    moved = pointed(view, 12)
    assert [cell for cell, _ in moved] != first
    assert all(r >= first[0][0] for (r, _), _ in moved)
    exact = values_of(notebook, [cell for cell, _ in moved])
    assert [np.float32(v) for _, v in moved] == [np.float32(v) for v in exact]
    assert max(messages.sizes) < MAX_MESSAGE
    print(f"largest of {len(messages.sizes)} messages: {max(messages.sizes):,} bytes")


def pointed(view: ExplorerView, count: int) -> list[tuple[tuple[int, int], str]]:
    """What the read-out says along a diagonal: cell and value."""
    where = box(view)
    found = []
    for i in range(count):
        share = (i + 0.5) / count
        view.page.mouse.move(
            where["x"] + share * where["width"], where["y"] + share * where["height"]
        )
        said = view.mark("readout").locator(".lv-readout-place").inner_text()
        row, column = (int(part.split()[1]) for part in said.split(" · "))
        value = view.mark("readout-value").inner_text().replace("−", "-").replace("∞", "inf")
        found.append(((row, column), value))
    return found


def values_of(notebook: Notebook, cells: list[tuple[int, int]]) -> list[Any]:
    """The same elements as torch has them, from the kernel by a cell of its own."""
    notebook.page.evaluate(
        """(source) => {
          const content = window.jupyterapp.shell.currentWidget.content;
          content.widgets[2].model.sharedModel.setSource(source);
        }""",
        f"print(json.dumps([ex.trace['inner'][r, c].item() for r, c in {cells}]))",
    )
    values: list[Any] = json.loads(notebook.text(2))
    return values
