"""Servers and browsers for the tests in this folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from .driver import PATIENCE, Notebook, write_notebook
from .server import REPOSITORY, Server

RESULTS = REPOSITORY / "test-results"
SIZE = {"width": 1400, "height": 1100}
TINY = Path(__file__).with_name("tiny.py")

Open = Callable[..., Notebook]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One JupyterLab for all tests."""
    yield from _served(tmp_path_factory.mktemp("lab"), "lab")


@pytest.fixture(scope="session")
def notebook7(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Notebook 7 for all tests."""
    yield from _served(tmp_path_factory.mktemp("notebook7"), "notebook")


def _served(folder: Path, app: str) -> Iterator[Server]:
    server = Server(folder, app)
    shutil.copy(TINY, server.root)
    yield server
    server.close()


@pytest.fixture
def open_notebook(request: pytest.FixtureRequest, lab: Server, browser: Browser) -> Iterator[Open]:
    """Opens a new notebook of given cells. Errors of ours in the page fail the test; a test that
    fails leaves a screenshot in ``test-results/``."""
    opened: list[Notebook] = []
    name = request.node.name.replace("[", "-").replace("]", "")

    def opener(*cells: str, server: Server | None = None) -> Notebook:
        at = server or lab
        file = f"{name}-{len(opened)}.ipynb"
        write_notebook(at.root / file, list(cells))
        context = browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        notebook = Notebook(page, at, file)
        opened.append(notebook)
        return notebook

    yield opener
    failed = getattr(request.node, "failed", True)
    for i, notebook in enumerate(opened):
        if failed or notebook.complaints:
            RESULTS.mkdir(exist_ok=True)
            notebook.page.screenshot(path=RESULTS / f"{name}-{i}.png")
        notebook.page.context.close()
        notebook.server.end_sessions()
    complaints = [c for notebook in opened for c in notebook.complaints]
    assert complaints == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.failed = report.failed  # type: ignore[attr-defined]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
