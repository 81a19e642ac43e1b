"""What keeps every message below its size."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import nn

import lensview as lv
from lensview.explorer import Explorer
from lensview.explorer.protocol import MAX_MESSAGE_BYTES, State
from lensview.explorer.replies import fit_labels

from .conftest import Page, row, tile_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT = "the capital of france is"
MLP = "model.layers.1.mlp"


class Wide(nn.Module):
    """Thousands of modules with long names."""

    def __init__(self, count: int, name: str) -> None:
        super().__init__()
        for i in range(count):
            self.add_module(f"{name}{i}", nn.Identity())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_a_large_tree_comes_in_pages() -> None:
    explorer = Explorer(lv.LocalSession(Wide(6000, "<b>" + "é" * 150)), ("",), None)
    page = Page(explorer)
    names: list[str] = []
    pages = 0
    while True:
        answer = page.ask("tree", offset=len(names), limit=20_000)
        if not answer["rows"]:
            break
        pages += 1
        assert len(json.dumps(answer, ensure_ascii=False).encode()) < MAX_MESSAGE_BYTES
        names += [r[0] for r in answer["rows"]]
    assert len(names) == 6001 == answer["total"] and pages > 1
    assert names[6000] == "<b>" + "é" * 150 + "5999"
    explorer.close()


class Repeat(nn.Module):
    """(B, T) in, (B, 700 * T) out: something large to show."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, 700)


def test_the_largest_tile_fits_a_message() -> None:
    explorer = Explorer(lv.LocalSession(Repeat()))
    page = Page(explorer)
    explorer.run(torch.randn(2048, 3))
    reply = page.ask("tile", **tile_of(":output", max_rows=4096, max_columns=4096))
    assert reply["rows"] * reply["columns"] * 4 <= MAX_MESSAGE_BYTES
    assert reply["plane"] == [2048, 2100] and "largest of" in reply["note"]
    explorer.close()


def test_long_labels_are_cut_until_they_fit() -> None:
    labels = ["x" * 64] * 5000
    cut = fit_labels(labels, 100_000)
    assert len(cut) == 5000 and len(json.dumps(cut, ensure_ascii=False).encode()) <= 100_000
    assert all(c.endswith("…") for c in cut)
    assert fit_labels(labels, 1000) == []
    assert fit_labels(["a", "b"], 1000) == ["a", "b"]


def test_state_is_small_and_strict(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt="a " * 60)
    rows = [row("x" * 390, id=str(i), value="y" * 390, index="z" * 390) for i in range(100)]
    state = page.ask("interventions", rows=rows)
    size = len(json.dumps(state, allow_nan=False).encode())
    assert size < MAX_MESSAGE_BYTES // 2
    assert all(r["error"] for r in state["interventions"])
    assert asdict(State(**state)).keys() == state.keys()


def test_what_the_limit_left_out_is_recorded_when_it_is_looked_at(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    explorer = lv.explore(tiny_llama, tokenizer, max_bytes=2000)
    page = Page(explorer)
    state = page.ask("run", prompt=PROMPT)
    assert any("left out of the trace" in n for n in state["notes"])
    last = "model.layers.2.mlp"
    assert "left out" in explorer.trace.missed[last]
    for _ in range(2):
        assert page.ask("tile", **tile_of(last))["plane"] == [5, 16]
        assert page.ask("hello")["state"]["run"] == 2
    assert torch.equal(
        explorer.trace[last], lv.extract(tiny_llama, PROMPT, last, tokenizer=tokenizer)[last]
    )
    explorer.close()


def test_nested_values_are_shown_part_by_part() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    explorer = Explorer(lv.LocalSession(nn.TransformerEncoder(layer, 2).eval()))
    page = Page(explorer)
    mask = torch.tensor([[False] * 4, [False, False, True, True]])
    trace = explorer.run({"src": torch.randn(2, 4, 8), "src_key_padding_mask": mask})
    assert trace is not None and trace["layers.0"].is_nested
    assert "2 x 4 x 8" in page.ask("outputs", offset=0, limit=100)["shapes"]
    reply = page.ask("tile", **tile_of("layers.0", index=[1]))
    assert reply["plane"] == [2, 8] and "nested" in reply["note"]
    explorer.close()
