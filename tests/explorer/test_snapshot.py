"""The explorer as plain HTML."""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

import lensview as lv
from lensview.explorer import Explorer
from lensview.explorer.picture import css_colour, data_url
from lensview.explorer.snapshot import fallback_html, snapshot_html
from lensview.tensors.tiles import tile

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

EVIL = "<img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Checks that the tags are balanced, and keeps names, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(n, v or "") for n, v in attrs]
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def decoded(url: str) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """The indices and the palette of a PNG in a data URL, its checksums verified."""
    png = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", png[at + 8 + length : at + 12 + length])
        assert zlib.crc32(kind + data) == check
        chunks[kind] = data
        at += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    table = chunks[b"PLTE"]
    palette = [tuple(table[i : i + 3]) for i in range(0, len(table), 3)]
    assert lines.max() < len(palette)
    return lines[:, 1:], palette


def test_the_picture_is_a_png_whose_colours_are_the_values() -> None:
    values = torch.tensor([[-4.0, -1.0, 0.0, 1.0, 4.0, math.nan, math.inf]])
    indices, palette = decoded(data_url(tile(values)))
    colours = [palette[i] for i in indices[0]]
    assert len(set(colours)) == 7
    for cold in colours[:2]:
        assert cold[2] > cold[0]
    for warm in colours[3:5]:
        assert warm[0] > warm[2]
    assert min(colours[2]) > 240
    assert css_colour(1.0) == "#{:02x}{:02x}{:02x}".format(*colours[4])
    assert indices[0][2] - indices[0][1] == indices[0][3] - indices[0][2]


@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf, 1e-30])
def test_pictures_of_planes_without_a_scale(fill: float) -> None:
    indices, _ = decoded(data_url(tile(torch.full((3, 2), fill))))
    assert indices.shape == (3, 2) and len(set(indices.flatten().tolist())) == 1


@pytest.fixture
def ran(explorer: Explorer) -> Explorer:
    explorer.run("the capital of france is")
    explorer.selected = "model.layers.1.mlp"
    explorer.interventions = (lv.scale("model.layers.1.mlp", 0),)
    assert explorer.wait(60)
    return explorer


def test_what_it_says(ran: Explorer) -> None:
    assert ran._runs is not None
    for html, most in (
        (fallback_html(ran._runs, ran.selected), 20_000),
        (snapshot_html(ran._runs, ran.selected), 100_000),
    ):
        assert len(html.encode()) < most
        reader = Reader(html)
        for word in ("LlamaForCausalLM", "capital", "model.layers.1.mlp", "scale", "edited"):
            assert word in reader.text
        assert "script" not in reader.tags and "style" not in reader.tags
        links = [v for n, v in reader.attributes if n in ("src", "href")]
        assert [v[:22] for v in links] == ["data:image/png;base64,"]
        assert not [n for n, _ in reader.attributes if n.startswith("on")]
        image, _ = decoded(links[0])
        assert image.shape == (5, 16)


def test_colours_come_in_pairs(ran: Explorer) -> None:
    assert ran._runs is not None
    first = re.search(r'style="([^"]*)"', snapshot_html(ran._runs, ""))
    assert first and "background:#" in first[1] and ";color:#" in first[1]


def test_before_a_run_and_without_a_value(explorer: Explorer) -> None:
    assert explorer._runs is not None
    assert "Nothing has run" in Reader(fallback_html(explorer._runs, "model.norm")).text
    explorer.run("a b")
    assert "was not asked for" in Reader(snapshot_html(explorer._runs, "model.layers")).text


class Evil(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL, nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_names_are_text() -> None:
    explorer = lv.explore(Evil(), inputs=torch.ones(2, 3))
    assert explorer.wait(60) and explorer._runs is not None
    site = explorer.trace.sites[0]
    explorer.selected = site
    explorer.interventions = (lv.zero(site),)
    assert explorer.wait(60)
    html = snapshot_html(explorer._runs, explorer.selected)
    reader = Reader(html)
    assert reader.tags.count("img") == 1
    assert "onerror" in reader.text and EVIL not in html
    explorer.close()


def test_the_largest_stays_within_its_size(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    explorer = lv.explore(tiny_llama, tokenizer)
    explorer.run("paris " * 63)
    explorer.interventions = tuple(
        lv.scale(f"model.layers.{i % 3}.mlp", 1 + i / 100) for i in range(90)
    )
    explorer.selected = "lm_head"
    assert explorer.wait(120) and explorer._runs is not None
    assert len(fallback_html(explorer._runs, "lm_head").encode()) < 20_000
    assert len(snapshot_html(explorer._runs, "lm_head").encode()) < 100_000
    explorer.close()


def test_snapshot_displays(ran: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    ran.snapshot()
    assert set(shown[0]) == {"text/html", "text/plain"}
