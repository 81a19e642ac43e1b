"""Which dims a tile shows, what they are called, and where the tokens stand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from lensview.explorer import Explorer
from lensview.session import LocalSession

from .conftest import Page, tile_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

SITE = "model.layers.1.mlp"
MAPS = "model.layers.0.self_attn:output[1]"
TEXT = "the capital of france is"
TOKENS = ["the", "capital", "of", "france", "is"]


@pytest.fixture
def eager(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Iterator[Explorer]:
    """An explorer of a model whose attention shows its weights."""
    before = tiny_llama.config._attn_implementation
    tiny_llama.set_attn_implementation("eager")
    made = Explorer(LocalSession(tiny_llama, tokenizer), ("**", MAPS))
    yield made
    made.close()
    tiny_llama.set_attn_implementation(before)


def test_tokens_follow_their_dim(explorer: Explorer, page: Page) -> None:
    explorer.run(TEXT)
    usual = page.ask("tile", **tile_of(SITE))
    assert usual["dims"] == ["batch", "token", "feature"]
    assert (usual["rows_dim"], usual["columns_dim"]) == (1, 2)
    assert usual["row_labels"] == TOKENS and usual["column_labels"] == []
    name = page.send("tile", **tile_of(SITE, rows_dim=2, columns_dim=1, percentile=99))
    turned = page.answer(name)["result"]
    assert turned["column_labels"] == TOKENS and turned["row_labels"] == []
    cells = np.frombuffer(page.cells(name), "<f4").reshape(turned["rows"], turned["columns"])
    assert explorer.trace is not None
    value = explorer.trace[SITE][0].T.numpy()
    assert np.array_equal(cells, value)
    wanted = np.percentile(np.abs(value), 99, method="inverted_cdf")
    assert turned["reach"] == float(wanted) and turned["sampled"] is False
    part = page.ask("tile", **tile_of(SITE, rows_dim=2, columns_dim=1, window=[0, 3, 1, 4]))
    assert part["column_labels"] == TOKENS[1:4]
    batch = page.ask("tile", **tile_of(SITE, rows_dim=0, columns_dim=1))
    assert batch["column_labels"] == TOKENS, "there is one batch row"


def test_attention_weights_have_tokens_on_both_sides(eager: Explorer) -> None:
    page = Page(eager)
    eager.run(TEXT)
    told = page.ask("tile", **tile_of(MAPS, index=[0, 1]))
    assert told["dims"] == ["batch", "head", "token", "token"]
    assert told["row_labels"] == told["column_labels"] == TOKENS
    heads = page.ask("tile", **tile_of(MAPS, rows_dim=1, columns_dim=3, index=[0, 2]))
    assert heads["row_labels"] == [] and heads["column_labels"] == TOKENS


def test_a_batch_row_has_its_own_tokens(explorer: Explorer, page: Page) -> None:
    explorer.run(["the capital of", "a b"])
    second = page.ask("tile", **tile_of(SITE, index=[1]))
    assert second["row_labels"] in (["(pad)", "a", "b"], ["a", "b", "(pad)"])
    turned = page.ask("tile", **tile_of(SITE, rows_dim=2, columns_dim=1, index=[1]))
    assert turned["column_labels"] == second["row_labels"]
    both = page.ask("tile", **tile_of(SITE, rows_dim=0, columns_dim=1, index=[3]))
    assert both["column_labels"] == [] and "differ by batch row" in both["note"]


@pytest.mark.parametrize(
    "more",
    [
        {"rows_dim": 1},
        {"rows_dim": 1, "columns_dim": 1},
        {"rows_dim": 3, "columns_dim": 1},
        {"rows_dim": -1, "columns_dim": 1},
        {"rows_dim": "1", "columns_dim": 2},
        {"percentile": 0},
        {"percentile": "99"},
        {"percentile": True},
        {"percentile": 101},
    ],
)
def test_views_that_are_refused(explorer: Explorer, page: Page, more: dict[str, object]) -> None:
    explorer.run(TEXT)
    page.refused("tile", **tile_of(SITE), **more)
