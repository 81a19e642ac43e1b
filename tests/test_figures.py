"""Figures: what they hold, and what a browser makes of them."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import lensview as lv
from lensview import figures
from lensview.tensors.tiles import tile
from lensview.traces.trace import Trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

    Demo = tuple[PreTrainedModel, PreTrainedTokenizerBase]

SITE = "model.layers.1.mlp"
PROMPT = "The capital of France is"
HOSTILE = [
    "<b>x</b>",
    '<a href="javascript:document.title=1">q</a>',
    "$x$",
    "&amp;",
    "%{y}",
    "<br>",
    "same",
    "same",
]


def strict(figure: Any) -> dict[str, Any]:
    """The figure's JSON, read by a parser that refuses what JSON has not."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read: dict[str, Any] = json.loads(figure.to_json(), parse_constant=refuse)
    return read


def matrix(z: Any) -> Any:
    """The cells of a trace in a figure's JSON."""
    flat = np.frombuffer(base64.b64decode(z["bdata"]), {"f4": "<f4"}[z["dtype"]])
    return flat.reshape([int(n) for n in z["shape"].split(",")])


def with_record(trace: Trace, change: Callable[[torch.Tensor], torch.Tensor]) -> Trace:
    """A trace that holds something else at `SITE`."""
    parts = trace._parts
    record = replace(parts.records[SITE], tensor=change(parts.records[SITE].tensor.clone()))
    return Trace(replace(parts, records={SITE: record}))


@pytest.fixture
def hostile(tiny_llama: LlamaForCausalLM) -> Trace:
    """A run over tokens whose texts are markup, twice the same one among them."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys(HOSTILE)
    vocabulary = {w: i for i, w in enumerate([*words, *(f"word{i}" for i in range(94))])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="word0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)
    ids = torch.tensor([[vocabulary[w] for w in HOSTILE]])
    return lv.trace(tiny_llama, ids, ["**"], tokenizer=tokenizer)


@pytest.fixture
def odd(hostile: Trace) -> Trace:
    def spoil(x: torch.Tensor) -> torch.Tensor:
        x[0, 1, 2:5] = math.nan
        x[0, 2, 3] = math.inf
        x[0, 3, :2] = -math.inf
        return x

    return with_record(hostile, spoil)


# --- heatmaps --------------------------------------------------------------------------------


def test_a_heatmap_of_the_demo_model(demo_model: Demo) -> None:
    model, tokenizer = demo_model
    trace = lv.trace(model, PROMPT, "model.layers.10.mlp", tokenizer=tokenizer)
    read = strict(figures.heatmap(trace, "model.layers.10.mlp"))
    (cells,) = read["data"]
    record = trace["model.layers.10.mlp"]
    assert np.array_equal(matrix(cells["z"]), record[0].numpy())
    assert cells["zmin"] == -cells["zmax"] == -record.abs().max().item()
    assert cells["y"] == ["0  The", "1  ·capital", "2  ·of", "3  ·France", "4  ·is"]
    title = read["layout"]["title"]
    assert title["text"] == "model.layers.10.mlp"
    assert title["subtitle"]["text"] == "1x5x576 float32"
    assert read["layout"]["xaxis"]["title"]["text"] == "feature"
    assert len(json.dumps(read)) < 40_000


def test_large_records_are_reduced_and_say_so(hostile: Trace) -> None:
    trace = with_record(hostile, lambda x: torch.randn(1, 3000, 2500))
    read = strict(figures.heatmap(trace, SITE, max_rows=64, max_columns=100))
    (cells,) = read["data"]
    expected = tile(trace[SITE], None, 64, 100)
    assert (expected.row_step, expected.column_step) == (47, 25)
    assert matrix(cells["z"]).tobytes() == expected.data
    assert "each cell is the largest of 47 x 25" in read["layout"]["title"]["subtitle"]["text"]
    assert (cells["y"][0], cells["y"][-1]) == ("0–46", "2961–2999")
    assert cells["x"][1] == "25–49"
    x = read["layout"]["xaxis"]
    assert x["ticktext"] == ["0", "500", "1000", "1500", "2000"]
    assert [cells["x"].index(v) for v in x["tickvals"]] == [0, 20, 40, 60, 80]
    assert len(json.dumps(strict(figures.heatmap(trace, SITE)))) < 2_000_000


def test_labels_of_reduced_rows_name_both_ends(hostile: Trace) -> None:
    (cells,) = strict(figures.heatmap(hostile, SITE, max_rows=3))["data"]
    assert html.unescape(cells["y"][2]) == "6–7  same … same"


def test_windows(hostile: Trace) -> None:
    read = strict(figures.heatmap(hostile, SITE, window=(6, 8, 4, 10)))
    (cells,) = read["data"]
    assert np.array_equal(matrix(cells["z"]), hostile[SITE][0, 6:8, 4:10].numpy())
    assert (cells["x"], cells["y"]) == (list(range(4, 10)), ["6  same", "7  same"])
    assert "rows 6:8, columns 4:10" in read["layout"]["title"]["subtitle"]["text"]


def test_equal_tokens_keep_rows_of_their_own(hostile: Trace) -> None:
    (cells,) = strict(figures.heatmap(hostile, SITE))["data"]
    assert len(set(cells["y"])) == len(cells["y"]) == 8
    assert cells["y"][6:] == ["6  same", "7  same"]


def test_not_finite_cells_have_a_colour_and_a_count(odd: Trace) -> None:
    read = strict(figures.heatmap(odd, SITE))
    cells, *layers = read["data"]
    record = odd[SITE][0].numpy()
    assert np.isnan(matrix(cells["z"])[~np.isfinite(record)]).all()
    finite = record[np.isfinite(record)]
    assert cells["zmax"] == pytest.approx(np.abs(finite).max())
    assert [layer["name"] for layer in layers] == ["NaN × 3", "+inf × 1", "−inf × 2"]
    for layer, where in zip(
        layers, (np.isnan(record), np.isposinf(record), np.isneginf(record)), strict=True
    ):
        assert np.array_equal(matrix(layer["z"]) == 1, where)
        assert layer["showlegend"]
    colours = {layer["colorscale"][0][1] for layer in layers}
    assert len(colours) == 3 and not colours & {c for _, c in cells["colorscale"]}


def test_nothing_finite_nothing_at_all_and_all_equal(hostile: Trace) -> None:
    nothing = strict(figures.heatmap(with_record(hostile, lambda x: x * math.nan), SITE))
    assert "no finite value" in nothing["layout"]["title"]["subtitle"]["text"]
    empty = strict(figures.heatmap(with_record(hostile, lambda x: x[:, :0]), SITE))
    assert empty["layout"]["title"]["subtitle"]["text"].endswith("empty")
    (equal,) = strict(figures.heatmap(with_record(hostile, lambda x: x * 0), SITE))["data"]
    assert (equal["zmin"], equal["zmax"]) == (-1, 1)


def test_values_beyond_float32(hostile: Trace) -> None:
    huge = with_record(hostile, lambda x: torch.full_like(x, 1e300, dtype=torch.float64))
    read = strict(figures.heatmap(huge, SITE))
    assert "beyond float32" in read["layout"]["title"]["subtitle"]["text"]
    assert read["data"][0]["zmax"] < 3.5e38


def test_padding_is_marked(demo_model: Demo) -> None:
    model, tokenizer = demo_model
    trace = lv.trace(model, ["Hi", PROMPT], "model.layers.0.mlp", tokenizer=tokenizer)
    (short,) = strict(figures.heatmap(trace, "model.layers.0.mlp"))["data"]
    assert short["y"][:2] == ["0  Hi", "1  <i>padding</i>"]
    read = strict(figures.heatmap(trace, "model.layers.0.mlp", index=(1,)))
    assert read["data"][0]["y"][4] == "4  ·is"
    assert "at [1]" in read["layout"]["title"]["subtitle"]["text"]
    with pytest.raises(IndexError, match="Index 2 is out of range"):
        figures.heatmap(trace, "model.layers.0.mlp", index=(2,))


def test_rows_that_are_not_tokens_get_no_token_labels(hostile: Trace) -> None:
    flattened = with_record(hostile, lambda x: x[0])  # (tokens, features), as experts have them
    read = strict(figures.heatmap(flattened, SITE))
    assert read["data"][0]["y"] == list(range(8))
    assert read["layout"]["yaxis"]["title"]["text"] == "row"
    heads = with_record(hostile, lambda x: x.reshape(1, 8, 4, 4))
    assert strict(figures.heatmap(heads, SITE))["data"][0]["y"] == list(range(4))


def test_token_ids_are_labelled_across(hostile: Trace) -> None:
    ids = with_record(hostile, lambda x: torch.arange(8)[None])
    (cells,) = strict(figures.heatmap(ids, SITE))["data"]
    assert cells["x"][6:] == ["6  same", "7  same"]


def test_a_difference(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.arange(5)[None]
    before = lv.trace(tiny_llama, ids, SITE)
    after = lv.trace(tiny_llama, ids, SITE, [lv.scale(SITE, 3.0)])
    read = strict(figures.heatmap(after, SITE, baseline=before))
    expected = (after[SITE] - before[SITE])[0]
    assert np.allclose(matrix(read["data"][0]["z"]), expected.numpy(), atol=1e-7)
    assert "1 intervention" in read["layout"]["title"]["subtitle"]["text"]
    shorter = lv.trace(tiny_llama, ids[:, :4], SITE)
    with pytest.raises(ValueError, match=r"\(1, 5, 16\) and \(1, 4, 16\)"):
        figures.heatmap(after, SITE, baseline=shorter)


def test_limits(hostile: Trace) -> None:
    (cells,) = strict(figures.heatmap(hostile, SITE, limit=0.25))["data"]
    assert (cells["zmin"], cells["zmax"]) == (-0.25, 0.25)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="positive number"):
            figures.heatmap(hostile, SITE, limit=bad)
    with pytest.raises(lv.NotRecordedError):
        figures.heatmap(hostile, "model.layers.1.mlpp")


# --- next tokens -----------------------------------------------------------------------------


def test_the_next_tokens_of_the_demo_model(demo_model: Demo) -> None:
    model, tokenizer = demo_model
    trace = lv.trace(model, PROMPT, "model.layers.10.mlp", tokenizer=tokenizer)
    read = strict(figures.top_tokens(trace, k=4))
    (bars,) = read["data"]
    top = trace.top(4)
    assert bars["x"] == pytest.approx([t.probability for t in top])
    assert [c[1] for c in bars["customdata"]] == [t.id for t in top]
    assert read["layout"]["yaxis"]["ticktext"][0] == "·Paris"
    assert bars["text"][0].startswith("77.") and bars["y"] == [0, 1, 2, 3]
    subtitle = read["layout"]["title"]["subtitle"]["text"]
    assert subtitle == "after The ·capital ·of ·France ·is"


def test_two_runs_are_compared_on_the_tokens_of_either(tiny_llama: LlamaForCausalLM) -> None:
    ids = torch.arange(5)[None]
    before = lv.trace(tiny_llama, ids, SITE)
    after = lv.trace(tiny_llama, ids, SITE, [lv.scale(SITE, -40.0)])
    read = strict(figures.top_tokens(after, k=6, baseline=before))
    bars = {b["name"]: b for b in read["data"]}
    chosen = [c[1] for c in bars["baseline"]["customdata"]]
    p, q = (
        torch.softmax(t.logits[0].double(), -1) for t in (after, before) if t.logits is not None
    )
    assert bars["this run"]["x"] == pytest.approx(p[chosen].tolist(), rel=1e-5)
    assert bars["baseline"]["x"] == pytest.approx(q[chosen].tolist(), rel=1e-5)
    either = torch.maximum(p, q)
    assert chosen == either.topk(6).indices.tolist()


def test_names_that_do_not_tell_tokens_apart_get_the_id(hostile: Trace) -> None:
    spellings = {0: " a", 1: " a", 2: "\ufffd", 3: "", 4: "x" * 50, 5: "fine"}
    logits = torch.full((1, 101), -30.0)
    logits[0, :6] = torch.arange(6, 0, -1)
    trace = Trace(replace(hostile._parts, logits=logits, spell=lambda i: spellings.get(i, "?")))
    names = strict(figures.top_tokens(trace, k=6))["layout"]["yaxis"]["ticktext"]
    assert names == ["·a #0", "·a #1", "\\ufffd #2", " #3", "x" * 23 + "… #4", "fine"]


def test_logits_of_nan_are_strict_json_too(hostile: Trace) -> None:
    trace = Trace(replace(hostile._parts, logits=torch.full((1, 101), math.nan)))
    (bars,) = strict(figures.top_tokens(trace, k=2))["data"]
    assert bars["text"] == ["NaN", "NaN"]


def test_a_run_without_logits_says_so(hostile: Trace) -> None:
    with pytest.raises(ValueError, match="no logits"):
        figures.top_tokens(Trace(replace(hostile._parts, logits=None)))


# --- markup ----------------------------------------------------------------------------------


def test_no_token_reaches_plotly_as_markup(hostile: Trace) -> None:
    (cells,) = strict(figures.heatmap(hostile, SITE))["data"]
    for name, token in zip(cells["y"], HOSTILE, strict=True):
        assert not re.search(r"[<>$%]|&(?!#\d+;)", name)
        shown = html.unescape(name).split("  ", 1)[1]
        assert shown == token.replace(" ", "·")[:23] + "…" * (len(token) > 24)


@pytest.mark.browser
def test_a_browser_draws_every_token_as_text(
    hostile: Trace, odd: Trace, tmp_path: Path, browser: Browser
) -> None:
    page_file = tmp_path / "figures.html"
    logits = -torch.arange(101.0)[None]
    trace = Trace(replace(hostile._parts, logits=logits, spell=lambda i: (HOSTILE * 13)[i]))
    pictures = [figures.heatmap(odd, SITE), figures.top_tokens(trace, k=8)]
    page_file.write_text(
        '<meta charset="utf-8">'
        + "".join(
            p.to_html(full_html=False, include_plotlyjs=not n) for n, p in enumerate(pictures)
        ),
        encoding="utf-8",
    )
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_file.as_uri())
    page.wait_for_selector(".ytick >> nth=15", state="attached")
    drawn = page.eval_on_selector_all(".ytick", "e => e.map(x => x.textContent)")
    assert page.locator(".ytick a, .ytick tspan[style*=bold]").count() == 0
    seen = [token.replace(" ", "·") for token in HOSTILE]
    seen = [t if len(t) <= 24 else t[:23] + "…" for t in seen]
    assert sorted(drawn[:8]) == [f"{n}  {t}" for n, t in enumerate(seen)]
    assert {d.split(" #")[0] for d in drawn[8:]} == set(seen)
    assert page.title() != "1"
    legend = page.eval_on_selector_all(".legendtext", "e => e.map(x => x.textContent)")
    assert legend == ["NaN × 3", "+inf × 1", "−inf × 2"]
    box = page.locator(".heatmaplayer").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 16)
    page.wait_for_selector(".hovertext")
    hover = page.locator(".hovertext").text_content()
    assert hover is not None and hover.startswith("token 0  <b>x</b>")
    assert complaints == []
    page.close()


def test_ink_and_paper_are_set_together(hostile: Trace) -> None:
    for figure in (figures.heatmap(hostile, SITE), figures.top_tokens(hostile)):
        layout = strict(figure)["layout"]
        paper, ink = layout["paper_bgcolor"], layout["font"]["color"]
        assert contrast(paper, ink) >= 7
        assert contrast(paper, layout["title"]["subtitle"]["font"]["color"]) >= 4.5
        assert contrast(layout["hoverlabel"]["bgcolor"], ink) >= 7


def contrast(one: str, other: str) -> float:
    """WCAG 2's ratio."""

    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)
