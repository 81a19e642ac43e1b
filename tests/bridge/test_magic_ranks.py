"""``%lens --tp`` in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import get_ipython as start_shell
from IPython.utils.capture import capture_output

import lensview as lv
from lensview.bridge.session import RankSession

from .jobs import Job

pytestmark = [pytest.mark.ranks, pytest.mark.full]


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    found: Any = start_shell() or InteractiveShell.instance()
    found.extension_manager.load_extension("lensview")
    yield found
    found.extension_manager.unload_extension("lensview")


def run(shell: InteractiveShell, source: str) -> str:
    with capture_output() as captured:
        shell.run_cell(source)
    return captured.stdout + captured.stderr


def test_a_line_starts_the_ranks(
    shell: InteractiveShell, folder: Path, local: lv.LocalSession
) -> None:
    told = run(shell, f"%lens --tp 2 '{folder}' --prompt 'the big cat sat'")
    explorer = shell.user_ns["_lens"]
    session = explorer.session
    try:
        assert "ready on 2 ranks" in told
        assert isinstance(session, RankSession)
        assert explorer.wait(60)
        expected = local.trace("the big cat sat", "lm_head")
        assert [t.id for t in explorer.trace.top(5)] == [t.id for t in expected.top(5)]
        shell.user_ns["place"] = str(folder)
        told = run(shell, "ex = %lens --tp 2 place --prompt 'a dog'")
        assert shell.user_ns["ex"].session is session, "the ranks of the first cell serve again"
        assert "ready on" not in told
    finally:
        session.stop()
        shell.user_ns["_lens"].close()
    assert "takes a path" in run(shell, "%lens --tp 2")


def test_a_line_attaches(
    shell: InteractiveShell, folder: Path, local: lv.LocalSession, tmp_path: Path
) -> None:
    job = Job(tmp_path, str(folder))
    try:
        job.attach().stop()
        run(shell, f"%lens --attach '{job.file}' --prompt 'the big cat sat'")
        explorer = shell.user_ns["_lens"]
        assert isinstance(explorer.session, lv.AttachedSession)
        assert explorer.wait(60)
        expected = local.trace("the big cat sat", "lm_head")
        assert [t.id for t in explorer.trace.top(5)] == [t.id for t in expected.top(5)]
        run(shell, f"%lens --attach '{job.file}'")
        assert shell.user_ns["_lens"].session is explorer.session
        assert "takes no model" in run(shell, f"%lens --attach '{job.file}' demo")
        assert "does not exist" in run(shell, f"%lens --attach '{tmp_path}/none'")
        assert not explorer.session.ready, "another file detaches"
        assert job.running()
    finally:
        job.end()
