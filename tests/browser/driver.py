"""A notebook open in a real browser, and the explorer in it.

Owns how tests find and press things. What they expect is in the tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import ConsoleMessage, Error, Locator, Page, expect

from .server import Server

PATIENCE = 60_000
"""Milliseconds that a wait may take: the machine may be small and busy."""
OURS = ("lensview", "lv-", "anywidget", "blob:", "AnyModel", "AnyView")

READY = """() => {
  const widget = window.jupyterapp?.shell.currentWidget;
  return Boolean(widget?.context?.isReady && widget.sessionContext?.session?.kernel);
}"""
RUN = """async (index) => {
  const app = window.jupyterapp;
  const content = app.shell.currentWidget.content;
  content.activeCellIndex = index;
  content.deselectAll();
  await app.commands.execute('notebook:run-cell');
}"""
OUTPUTS = """(index) => {
  const cell = window.jupyterapp.shell.currentWidget.content.widgets[index];
  return cell.model.outputs.toJSON();
}"""


def write_notebook(path: Path, cells: list[str]) -> None:
    """A notebook with these code cells, not run."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, path)


class Notebook:
    """One open notebook."""

    def __init__(self, page: Page, server: Server, name: str) -> None:
        self.page = page
        self.server = server
        self.path = server.root / name
        self.complaints: list[str] = []
        page.on("pageerror", self._page_error)
        page.on("console", self._console)
        page.goto(server.page_url(name))
        self.wait_until_ready()

    def _page_error(self, error: Error) -> None:
        # The hosts throw errors of their own; ours have our module, a blob, in their stack.
        text = f"page error: {error}\n{error.stack or ''}"
        if any(mark in text for mark in OURS):
            self.complaints.append(text)

    def _console(self, message: ConsoleMessage) -> None:
        where = message.location.get("url", "")
        if message.type == "error" and any(mark in message.text + where for mark in OURS):
            self.complaints.append(f"console: {message.text} ({where})")

    def wait_until_ready(self) -> None:
        """Wait for the notebook and its kernel."""
        self.page.wait_for_function(READY, timeout=PATIENCE)
        self.page.wait_for_selector(".jp-Notebook .jp-Cell", state="attached", timeout=PATIENCE)

    def run(self, index: int) -> list[dict[str, Any]]:
        """Run a cell to its end; its outputs. An error in it is the test's failure."""
        self.page.evaluate(RUN, index)
        outputs = self.outputs(index)
        errors = [o for o in outputs if o["output_type"] == "error"]
        assert not errors, errors
        return outputs

    def start(self, index: int) -> None:
        """Begin to run a cell, and do not wait for its end."""
        self.page.evaluate(f"(index) => {{ void ({RUN})(index); }}", index)

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """The outputs of a cell as they would be saved."""
        outputs: list[dict[str, Any]] = self.page.evaluate(OUTPUTS, index)
        return outputs

    def text(self, index: int) -> str:
        """Run a cell to its end; what it printed."""
        return "".join("".join(o.get("text", "")) for o in self.run(index))

    def cell_count(self) -> int:
        """How many cells the notebook has."""
        count: int = self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.content.widgets.length"
        )
        return count

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Run one of the application's commands to its end."""
        self.page.evaluate(
            "async ([name, args]) => { await window.jupyterapp.commands.execute(name, args); }",
            [name, arguments or {}],
        )

    def theme(self, name: str) -> None:
        """Switch to a theme by its name."""
        self.command("apputils:change-theme", {"theme": name})

    def explorer(self, index: int = 0) -> ExplorerView:
        """The explorer that is shown, once it has its tree."""
        root = self.page.locator(".lensview").nth(index)
        root.wait_for(state="attached", timeout=PATIENCE)
        view = ExplorerView(root)
        expect(view.tree.locator("[data-site]").first).to_be_attached(timeout=PATIENCE)
        return view


class ExplorerView:
    """What a person does with one explorer."""

    def __init__(self, root: Locator) -> None:
        self.root = root
        self.page = root.page
        self.tree = self.mark("tree")
        self.prompt = self.mark("prompt")
        self.status = self.mark("status")

    def mark(self, name: str) -> Locator:
        """The element that carries this test mark."""
        return self.root.locator(f'[data-test="{name}"]')

    def state(self, name: str) -> str:
        """One of the root's own marks: ``run``, ``paints``, ``hash``, ``selected``, ``state``."""
        return self.root.get_attribute(f"data-{name}") or ""

    def wait_ready(self, run: int | None = None) -> None:
        """Wait until nothing is in flight, and run number `run` is shown."""
        if run is not None:
            expect(self.root).to_have_attribute("data-run", str(run), timeout=PATIENCE)
        expect(self.root).to_have_attribute("data-state", "ready", timeout=PATIENCE)

    def repainted(self, before: tuple[str, str]) -> None:
        """Wait for a picture other than `before`, a pair that `painted` gave."""
        paints, drawn = before
        expect(self.root).not_to_have_attribute("data-hash", drawn, timeout=PATIENCE)
        expect(self.root).not_to_have_attribute("data-paints", paints, timeout=PATIENCE)

    def painted(self) -> tuple[str, str]:
        """How often the heatmap was painted, and a fingerprint of its picture."""
        return self.state("paints"), self.state("hash")

    def select(self, site: str) -> None:
        """Find a module by the search box, and click it."""
        before = self.painted()
        search = self.mark("search")
        search.fill(site.split(":", maxsplit=1)[0])
        row = self.tree.locator(f'[data-site="{site}"]')
        row.click(timeout=PATIENCE)
        expect(self.root).to_have_attribute("data-selected", site, timeout=PATIENCE)
        self.repainted(before)
        search.fill("")

    def run_prompt(self, text: str) -> None:
        """Type a prompt and press Enter."""
        self.prompt.fill(text)
        self.prompt.press("Enter")

    def labels(self) -> list[str]:
        """The labels at the heatmap's rows."""
        return self.mark("gutter-label").all_inner_texts()

    def next_tokens(self) -> list[tuple[str, float | None, float | None]]:
        """The next-token table: text, baseline and edited probability."""
        rows = self.mark("next-tokens").locator("tbody tr")
        found = []
        for row in rows.all():
            token = row.get_attribute("data-token") or ""
            shares = [row.get_attribute(f"data-{name}") or "" for name in ("baseline", "edited")]
            baseline, edited = (float(s) if s else None for s in shares)
            found.append((token, baseline, edited))
        return found

    def interventions(self) -> Locator:
        """The rows of the interventions table."""
        return self.mark("intervention")

    def set_field(self, row: int, field: str, value: str) -> None:
        """Edit a text of an intervention, and leave the field."""
        cell = self.interventions().nth(row).locator(f'[data-field="{field}"]')
        cell.fill(value)
        cell.press("Enter")
