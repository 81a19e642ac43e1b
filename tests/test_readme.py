"""The README's and the docs' examples run as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import lensview as lv

Q = "model.layers.0.self_attn.q_proj"
ROOT = Path(__file__).parents[1]


def python_blocks(name: str) -> list[str]:
    """The page's Python examples, IPython's lines left out."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)
    return ["\n".join(line for line in b.splitlines() if line[:1] != "%") for b in blocks]


def test_the_readme(
    demo_model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in python_blocks("README.md"):
        exec(compile(block, "README.md", "exec"), names)
    assert names["trace"].top(1)[0].text == " Paris"
    assert names["explorer"].trace is not None or names["explorer"].wait(60)
    assert (tmp_path / "run.safetensors").exists()
    q = lv.extract(names["model"], names["prompt"], [Q], tokenizer=names["tokenizer"])[Q]
    torch.testing.assert_close(names["q"], q, rtol=1e-5, atol=1e-5 * float(q.abs().max()))
    names["explorer"].close()


def test_the_page_on_the_explorer(demo_model: tuple[Any, Any]) -> None:
    blocks = python_blocks("docs/explorer.md")
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    for block in blocks[:-1]:
        exec(compile(block, "docs/explorer.md", "exec"), names)
    explorer = names["explorer"]
    assert [run.inputs for run in explorer.runs][-1] == "The capital of Italy is"
    assert explorer.interventions == () and explorer.trace is explorer.runs[-1].trace
    exec(compile(blocks[-1], "docs/explorer.md", "exec"), names)
    assert "closed" in repr(explorer)


def test_the_page_on_sites(demo_model: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = demo_model
    other = lv.trace(model, "The capital of Spain is", "**.mlp", tokenizer=tokenizer)
    names = {"lv": lv, "model": model, "inputs": "The capital of France is", "other": other}
    block = "\n".join(python_blocks("docs/sites-and-interventions.md"))
    block = block.replace("tokenizer=None", "tokenizer=tokenizer")
    block = block.replace("run.safetensors", str(tmp_path / "run.safetensors"))
    exec(compile(block, "docs", "exec"), {**names, "tokenizer": tokenizer})
    assert (tmp_path / "run.safetensors").exists()


def test_the_page_on_datasets(
    demo_model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = dict(zip(("model", "tokenizer"), demo_model, strict=True))
    with pytest.warns(lv.LensWarning, match="1 item was skipped"):
        for block in python_blocks("docs/datasets.md"):
            exec(compile(block, "docs", "exec"), names)
    data = names["data"]
    assert len(data) == 4 and data.skipped == {2: "it has no tokens"}
    assert data[0]["model.layers.3"].shape == (5, 576)
    assert data[0]["model.layers.29"].shape == (1, 576)
    assert names["again"].keys() == data.keys() and names["table"].num_rows == 4
    costs = names["costs"](tokens=1e9, hidden=4096, layers=1, rate=10_000.0)
    assert costs["bytes"] == 8.192e12 and costs["files"] == 30_518
    assert 27 < costs["hours"] < 29


def test_the_page_on_files(
    demo_model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = demo_model
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"lv": lv, "model": model, "tokenizer": tokenizer}
    names["inputs"] = "The capital of France is"
    for block in python_blocks("docs/files.md"):
        exec(compile(block, "docs", "exec"), names)
    mlp = "model.layers.3.mlp"
    assert names["data"][mlp].dims == ("batch", "token", "feature")
    assert (tmp_path / "small.html").stat().st_size < 1_000_000
    assert [c.name for c in names["trace"].checks if not c.ok] == []
    assert names["guess"].groups["model.layers.*.mlp"] == 30 * names["trace"][mlp].nbytes
    assert names["small"].stats(mlp) == names["trace"].stats(mlp)


def test_the_page_on_views(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    names: dict[str, Any] = {"lv": lv, "model": model, "tokenizer": tokenizer}
    for block in python_blocks("docs/views.md"):
        exec(compile(block, "docs", "exec"), names)
    assert names["lens"].difference == 0.0 and names["lens"].way == "model.norm → lm_head"
    assert names["pattern"].heads == 9 and names["pattern"].difference < 1e-5
