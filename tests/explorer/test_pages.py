"""The one HTML file, in a real Chromium, from disk: values, names as text, no network."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import lensview as lv
from lensview.explorer import pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
EVIL = "</script><script>hit=1</script><img src=x onerror=hit=1>"
MLP = "model.layers.1.mlp"
IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    opened = browser.new_page(viewport={"width": 1100, "height": 900}, color_scheme="light")
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    opened.on("request", lambda r: wrong.append(r.url) if not r.url.startswith("file:") else None)
    yield opened
    opened.close()
    assert wrong == []


def data_in(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)
    assert found
    body: dict[str, Any] = json.loads(found[1])
    return body


def visit(page: Page, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("#list li")


def hover(page: Page, row: int, column: int, shape: tuple[int, int]) -> str:
    """What is said of a cell under the pointer."""
    box = page.locator("#cells").bounding_box()
    assert box
    page.mouse.move(
        box["x"] + box["width"] * (column + 0.5) / shape[1],
        box["y"] + box["height"] * (row + 0.5) / shape[0],
    )
    return page.inner_text("#readout")


def test_values_tokens_and_tables(tiny_llama: nn.Module, tmp_path: Path, page: Page) -> None:
    trace = lv.trace(tiny_llama, IDS, "**", lv.scale(MLP, 2, (0, slice(1, 3))))
    lv.to_html(trace, tmp_path / "run.html")
    visit(page, tmp_path / "run.html")
    assert page.locator("#list li").count() == len(trace)
    page.fill("#search", "layers.1 mlp")
    names = page.locator("#list li .name").all_inner_texts()
    assert names == [s for s in trace.sites if "layers.1" in s and "mlp" in s]
    page.locator(
        "#list li", has_text=re.compile(rf"^{re.escape(MLP)}1 x|^{re.escape(MLP)}2 x")
    ).click()
    assert page.inner_text("#site") == MLP
    for row, column in ((0, 0), (2, 15), (3, 7)):
        said = hover(page, row, column, (4, 16))
        assert said.startswith(f"row {row} #{IDS[0, row]}, column {column}: ")
        assert float(said.split(": ")[1]) == pytest.approx(
            float(trace[MLP][0, row, column]), rel=1e-6
        )
    top = page.locator("#next tr").all_inner_texts()[1:]
    assert [line.split()[0] for line in top] == [f"#{t.id}" for t in trace.top(10)]
    assert "32 elements" in page.inner_text("#interventions")
    assert "batch row 0" in page.inner_text("#about")


def pixel(page: Page, row: int, column: int, shape: tuple[int, int]) -> list[int]:
    found: list[int] = page.evaluate(
        """([row, column, rows, columns]) => {
            const c = document.getElementById("cells");
            const x = Math.floor(c.width * (column + 0.5) / columns);
            const y = Math.floor(c.height * (row + 0.5) / rows);
            return [...c.getContext("2d").getImageData(x, y, 1, 1).data];
        }""",
        [row, column, *shape],
    )
    return found[:3]


def test_colours_and_both_themes(tmp_path: Path, page: Page) -> None:
    class Given(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 1

    nan, inf = float("nan"), float("inf")
    values = torch.tensor([[4.0, -4, 0, nan, inf], [1, 2, 3, -1, -2]])
    lv.to_html(lv.trace(Given(), values, ":output"), tmp_path / "a.html")
    visit(page, tmp_path / "a.html")
    seen = {}
    for theme, back in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 28)")):
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == back
        warm, cold, zero, missing, infinite = (pixel(page, 0, i, (2, 5)) for i in range(5))
        assert warm[0] > warm[2] and cold[2] > cold[0]
        assert (min(zero) > 230) if theme == "light" else (max(zero) < 60)
        assert missing[0] > 150 and missing[1] < 60 and missing[2] > 150
        seen[theme] = infinite
        page.click("#theme")
    assert seen == {"light": [0, 0, 0], "dark": [255, 255, 255]}
    legend = page.inner_text("#legend")
    assert "1 NaN" in legend and "1 infinite" in legend
    page.focus("#cells")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#readout") == "row 0, column 1: -4"


class Evil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL, nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


class EvilTokenizer:
    """Spells every token as markup."""

    def decode(self, ids: Any) -> str:
        return EVIL

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [3, 4], "attention_mask": [1, 1]}


def test_names_and_tokens_are_text(tiny_llama: nn.Module, tmp_path: Path, page: Page) -> None:
    named = lv.trace(Evil(), torch.ones(2, 3), "**")
    spelt = lv.trace(tiny_llama, "x", "**", tokenizer=EvilTokenizer())
    spelt.save(tmp_path / "evil.safetensors")
    loaded = lv.load(tmp_path / "evil.safetensors")
    loaded.meta["model"] = EVIL
    for trace, where in ((named, "#list"), (spelt, "#tokens"), (spelt, "#next"), (loaded, "h1")):
        lv.to_html(trace, tmp_path / "a.html")
        visit(page, tmp_path / "a.html")
        page.locator("#list li").first.click()
        assert "onerror" in page.inner_text(where)
        assert page.locator("img").count() == 0 and page.locator("script").count() == 2
        assert page.evaluate("window.hit") is None
        assert EVIL not in (tmp_path / "a.html").read_text("utf-8")


def test_the_policy_forbids_what_is_not_ours(
    tiny_llama: nn.Module, tmp_path: Path, browser: Browser
) -> None:
    """Were markup to get in all the same, it could neither run nor reach the network."""
    lv.to_html(lv.trace(tiny_llama, IDS, "model.norm"), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    extra = "<script>window.hit=1</script><img src='https://example.invalid/x.png' onerror='hit=1'>"
    (tmp_path / "b.html").write_text(text.replace("<main>", f"{extra}<main>"), "utf-8")
    page = browser.new_page()
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))
    visit(page, tmp_path / "b.html")
    assert page.evaluate("window.hit") is None
    assert [url for url in asked if not url.startswith("file:")] == []
    page.close()


def test_an_explorer_with_its_edits(tiny_llama: nn.Module, tmp_path: Path, page: Page) -> None:
    explorer = lv.explore(tiny_llama)
    with pytest.raises(lv.InputError, match="shows no run"):
        lv.to_html(explorer, tmp_path / "a.html")
    explorer.run(IDS)
    explorer.interventions = (lv.scale(MLP, 3), lv.zero("model.norm", 99))
    assert explorer.wait(60)
    explorer.selected = MLP
    lv.to_html(explorer, tmp_path / "a.html")
    edited, baseline = explorer.trace, explorer.baseline
    explorer.close()
    visit(page, tmp_path / "a.html")
    assert page.inner_text("#site") == MLP
    assert page.locator("#list li").count() == 1 + sum(1 for _ in tiny_llama.modules()) - 1
    assert float(hover(page, 1, 2, (4, 16)).split(": ")[1]) == pytest.approx(
        float(edited[MLP][0, 1, 2]), rel=1e-6
    )
    page.click("text=Difference")
    gap = float(edited[MLP][0, 1, 2] - baseline[MLP][0, 1, 2])
    assert float(hover(page, 1, 2, (4, 16)).split(": ")[1]) == pytest.approx(gap, rel=1e-5)
    table = page.inner_text("#interventions")
    assert "changed 128 elements" in table and "out of range" in table
    page.locator("#search").fill("rotary")
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#site") == "model.rotary_emb"
    assert page.inner_text("#next").count("%") == 20


def test_its_size_is_bounded_and_stated(tmp_path: Path) -> None:
    torch.manual_seed(0)
    wide = torch.randn(300, 2000)
    wide[123, 1234] = 40
    many = nn.Sequential(*(nn.Identity() for _ in range(40)))
    trace = lv.trace(many, wide, "**")
    sizes = []
    for most in (20_000_000, 2_000_000, 200_000):
        lv.to_html(trace, tmp_path / "a.html", max_bytes=most)
        assert (tmp_path / "a.html").stat().st_size <= most
        body = data_in(tmp_path / "a.html")
        (tile,) = body["tiles"][0]
        raw = base64.b64decode(tile["data"])
        assert len(raw) == 4 * tile["rows"] * tile["columns"]
        assert max(struct.unpack(f"<{len(raw) // 4}f", raw)) == 40
        assert f"{tile['row_step']} x {tile['column_step']}" in tile["note"]
        assert "cells each" in body["about"]
        sizes.append(tile["rows"] * tile["columns"])
    assert sizes[0] > sizes[1] > sizes[2]
    before = (tmp_path / "a.html").read_bytes()
    with pytest.raises(lv.LimitError, match="Nothing was written"):
        lv.to_html(trace, tmp_path / "a.html", max_bytes=40_000)
    assert (tmp_path / "a.html").read_bytes() == before
    lv.to_html(trace, tmp_path / "b.html", ["0", "1"], max_bytes=pages.MAX_BYTES)
    assert len(data_in(tmp_path / "b.html")["tiles"]) == 2
    with pytest.raises(lv.NotRecordedError):
        lv.to_html(trace, tmp_path / "c.html", "99")
    with pytest.raises(TypeError, match="a Trace or an Explorer, not a Sequential"):
        lv.to_html(many, tmp_path / "c.html")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_cannot_be_drawn_is_said(tmp_path: Path, page: Page) -> None:
    from tests.traces.test_storage import made_of

    packed = torch.ones(2, 2, dtype=torch.complex64)
    meta = torch.ones(2, 2, device="meta")
    lv.to_html(made_of({"odd": meta, "empty": torch.zeros(0, 3), "c": packed}), tmp_path / "a.html")
    visit(page, tmp_path / "a.html")
    assert "meta device" in page.inner_text("#note")
    page.locator("#list li").nth(1).click()
    assert page.locator("#cells").is_hidden() and "empty" in page.inner_text("#stats")
    page.locator("#list li").nth(2).click()
    assert "magnitudes" in page.inner_text("#note")
