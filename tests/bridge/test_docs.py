"""The examples of docs/ranks.md run as they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lensview as lv

from .jobs import ROOT, Job

pytestmark = [pytest.mark.ranks, pytest.mark.full]


def test_the_page_on_ranks(folder: Path, local: lv.LocalSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "ranks.md").read_text("utf-8")
    launch, attach, groups = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    prompt = "the big cat sat"
    expected = local.trace(prompt, "**.mlp")
    job = Job(tmp_path, str(folder))
    try:
        job.attach().stop()
        names = {"lv": lv, "path": str(folder), "prompt": prompt, "file": job.file}
        for block in (launch, attach, groups):
            names.pop("trace", None)
            exec(compile(block, "docs/ranks.md", "exec"), names)
            if block is not groups:
                assert names["trace"].sites == expected.sites  # type: ignore[attr-defined]
        assert names["session"].groups == ((0,), (1,))  # type: ignore[attr-defined]
        assert job.codes(30) == [0], job.log()
        names["explorer"].close()  # type: ignore[attr-defined]
    finally:
        job.end()
