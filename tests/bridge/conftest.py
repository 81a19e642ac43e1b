"""One session over two gloo ranks for all tests of this folder that leave it alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lensview as lv
from lensview.bridge.session import RankSession

from .jobs import Job
from .llama import save_llama

RANKS = 2


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama, its widths uneven over two ranks, and a tokenizer of a few words."""
    return save_llama(tmp_path_factory.mktemp("bridge") / "llama")


@pytest.fixture(scope="session")
def local(folder: Path) -> lv.LocalSession:
    """The same model, whole, in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return lv.LocalSession(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="module")
def one(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of one rank."""
    job = Job(tmp_path_factory.mktemp("one"), str(folder))
    job.attach().stop()
    yield job
    job.end()


@pytest.fixture(scope="session")
def _shared(folder: Path) -> Iterator[RankSession]:
    with lv.launch(folder, tp=RANKS, device="cpu", env={"OMP_NUM_THREADS": "1"}) as session:
        yield session


@pytest.fixture
def session(_shared: RankSession) -> RankSession:
    """The shared session, which a test leaves alive."""
    assert "ready" in repr(_shared), "an earlier test broke the shared session"
    return _shared
