"""The notebooks run as they are, from a fresh kernel, and show what they say they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
VIEW = "application/vnd.jupyter.widget-view+json"


def read(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.stem)
def test_committed_without_outputs(path: Path) -> None:
    notebook = read(path.name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
    assert "widgets" not in notebook.metadata


@pytest.fixture(scope="module")
def first_look() -> Any:
    notebook = read("01_first_look.ipynb")
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    return notebook


def outputs(notebook: Any, containing: str) -> list[Any]:
    """The outputs of the one code cell whose source has this text."""
    (cell,) = [c for c in notebook.cells if c.cell_type == "code" and containing in c.source]
    return list(cell.outputs)


def plain(notebook: Any, containing: str) -> str:
    return "".join(
        o.get("text", "") or o.get("data", {}).get("text/plain", "")
        for o in outputs(notebook, containing)
    )


def test_no_cell_complains(first_look: Any) -> None:
    for cell in first_look.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error", output
            assert output.get("name") != "stderr", (cell.source, output.text)


def test_the_explorer_is_shown_with_its_fallback(first_look: Any) -> None:
    (shown,) = [o for o in outputs(first_look, "%lens demo") if "data" in o]
    assert VIEW in shown.data
    assert "LlamaForCausalLM" in shown.data["text/html"] and len(shown.data["text/html"]) < 20_000


def test_values(first_look: Any) -> None:
    assert "' Paris', id=7042, probability=0.77" in plain(first_look, "trace = explorer.run(")
    assert "[1, 5, 576]" in plain(first_look, ".shape")
    assert "0.70" in plain(first_look, "explorer.wait()")
    assert "576 elements changed" in plain(first_look, "lv.at(token=3)")
    assert "model.layers.5" in plain(first_look, "edited.diff(baseline)")
    assert "zero model.layers.5.self_attn:input" in plain(first_look, "lv.load(path)")


def test_figures_and_the_snapshot(first_look: Any) -> None:
    (figure,) = outputs(first_look, "lv.figures.heatmap")
    assert "application/vnd.plotly.v1+json" in figure.data
    (snapshot,) = outputs(first_look, "explorer.snapshot()")
    html = snapshot.data["text/html"]
    assert "model.layers.10.mlp" in html and "data:image/png;base64," in html
    assert len(html) < 100_000
