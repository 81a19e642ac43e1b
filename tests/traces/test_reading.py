"""Reading files: one site at a time, and nothing that a stranger wrote runs or grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import lensview as lv
from lensview.traces import storage

from .test_storage import IDS, made_of

MIB = 1 << 20


def in_fresh_process(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_one_site_costs_that_site(tmp_path: Path) -> None:
    """Pages of the file that came into a fresh process, by the system's count."""
    made_of({f"site{i}": torch.full((4 * MIB,), float(i)) for i in range(12)}).save(tmp_path / "a")
    code = (
        "import sys, lensview as lv\n"
        "def held():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    rows = [l.split() for l in lines if l.startswith(('RssFile', 'RssAnon'))]\n"
        "    return sum(int(r[1]) for r in rows) / 1024\n"
        "import safetensors.torch\n"
        "before = held()\n"
        "trace = lv.load(sys.argv[1]); repr(trace); [trace.shape(s) for s in trace]\n"
        "loaded = held() - before\n"
        "assert float(trace['site7'].mean()) == 7.0\n"
        "one = held() - before\n"
        "assert float(trace['site3'][-1]) == 3.0\n"
        "print(loaded, one, held() - before)\n"
    )
    loaded, one, cell = map(float, in_fresh_process(code, tmp_path / "a").split())
    assert loaded < 8 and 14 < one < 26 and cell - one < 4  # of 192 MiB, 16 a site


def test_it_opens_without_lensview(tiny_llama: nn.Module, tmp_path: Path) -> None:
    trace = lv.trace(tiny_llama, IDS, "**.mlp")
    trace.save(tmp_path / "run.safetensors")
    plain = load_file(tmp_path / "run.safetensors")
    assert set(trace.sites) | {"//ids", "//mask", "//logits"} == plain.keys()
    assert all(torch.equal(plain[site], trace[site]) for site in trace)
    code = (
        "import sys, safetensors.numpy as sn\n"
        "found = sn.load_file(sys.argv[1])\n"
        "assert not {'torch', 'lensview'} & sys.modules.keys()\n"
        "print(found['model.layers.1.mlp'].sum(dtype='f8'))\n"
    )
    said = float(in_fresh_process(code, tmp_path / "run.safetensors"))
    assert said == pytest.approx(float(trace["model.layers.1.mlp"].double().sum()))


def test_a_loaded_trace_outlives_its_file_and_sees_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_of({"a": torch.ones(5), "b": torch.ones(5)}).save(path)
    first = lv.load(path)
    made_of({"a": torch.zeros(5), "b": torch.zeros(5)}).save(path)
    second = lv.load(path)
    path.unlink()
    assert first["a"].tolist() == [1.0] * 5 and second["a"].tolist() == [0.0] * 5
    first["a"].add_(1)
    assert first["a"].tolist() == [2.0] * 5  # what was read is the trace's, not the file's


def test_a_file_that_was_written_into_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_of({"a": torch.ones(5), "b": torch.ones(5)}).save(path)
    trace = lv.load(path)
    assert trace["a"].tolist() == [1.0] * 5
    content = path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(lv.TraceFileError, match="was written into since it was loaded"):
        _ = trace["b"]


def test_saving_over_the_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_of({"a": torch.arange(1000.0), "b": torch.ones(2)}).save(path)
    lv.load(path).save(path)
    again = lv.load(path)
    assert torch.equal(again["a"], torch.arange(1000.0)) and len(again) == 2


def test_links_and_folders(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    made_of({"a": torch.ones(2)}).save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and len(lv.load(tmp_path / "target")) == 1
    with pytest.raises(IsADirectoryError, match="is a folder"):
        made_of({"a": torch.ones(2)}).save(tmp_path)


# --- hostile files ----------------------------------------------------------------------------


def body_of(path: Path) -> dict[str, Any]:
    with safe_open(path, "pt") as file:
        body: dict[str, Any] = json.loads(file.metadata()["lensview"])
    return body


def refused(path: Path, match: str) -> None:
    with pytest.raises(lv.TraceFileError, match=match):
        lv.load(path)


def raw(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_headers_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a"
    made_of({"a": torch.ones(4)}).save(path)
    lensview = {"lensview": json.dumps(body_of(path))}
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    refused(path, "header of 4,611,686,018,427,387,904 bytes")
    path.write_bytes((storage.MAX_HEADER + 1).to_bytes(8, "little") + b"{}" * 100)
    refused(path, "no trace")
    a = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    for wrong in (
        {"data_offsets": [8, 24]},
        {"data_offsets": [0, 1 << 60], "shape": [1 << 58]},
        {"shape": [5]},
        {"shape": [1 << 62, 1 << 62]},
        {"dtype": "object"},
    ):
        raw(path, {"__metadata__": lensview, "a": {**a, **wrong}}, b"\0" * 16)
        refused(path, "no whole safetensors file")
    raw(path, {"__metadata__": lensview, "a": a, "b": a}, b"\0" * 16)
    refused(path, "no whole safetensors file")


def test_descriptions_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a"
    deep = "[" * 200_000 + "]" * 200_000
    many = "[" + "[]," * (storage._MAX_CONTAINERS + 1) + "[]]"
    cases = {
        deep: "cannot be read .*recursion",
        '{"format": ' + deep + "}": "cannot be read",
        many: "too many parts",
        '{"format": 1e999}': "cannot be read",
        '{"format": NaN}': "NaN is no number",
        '{"format": true}': "cannot be read",
        '{"format": ' + "9" * 10_000 + "}": "cannot be read",
        "[]": "cannot be read",
        '"x"': "cannot be read",
    }
    for text, match in cases.items():
        save_file({"a": torch.ones(1)}, path, {"lensview": text})
        refused(path, match)


def test_parts_of_another_kind(tiny_llama: nn.Module, tmp_path: Path) -> None:
    """Each field in turn is something else: an error at load, never a surprise at use."""
    path = tmp_path / "a"
    lv.trace(tiny_llama, IDS, "**.mlp", lv.scale("model.norm", 2)).save(path)
    tensors, good = load_file(path), body_of(path)
    for field in good.keys() - {"format"}:
        for wrong in (7, "text", [1], {"a": 1}, [[1]], {"a": [1]}, None):
            valid = {"labels": (None,), "scope": ("text",), "meta": ({"a": 1}, {"a": [1]})}
            valid["plain"], valid["calls"] = ({"a": 1},), ({"a": 1},)
            if wrong in valid.get(field, ()):
                continue
            save_file(tensors, path, {"lensview": json.dumps({**good, field: wrong})})
            try:
                lv.load(path)
            except lv.TraceFileError:
                continue
            raise AssertionError(f"{field}={wrong!r} was taken")
    sites = [{**good["sites"][0], "tensor": "none such"}]
    save_file(tensors, path, {"lensview": json.dumps({**good, "sites": sites})})
    refused(path, "no tensor 'none such'")
    form = {"layout": "sparse_coo", "size": [1 << 62, 1 << 62], "dtype": "float32", "bytes": 8}
    parts = ["model.layers.0.mlp", "model.layers.0.mlp"]
    sites = [{**good["sites"][0], "tensor": {**form, "parts": parts, "coalesced": True}}]
    save_file(tensors, path, {"lensview": json.dumps({**good, "sites": sites})})
    with pytest.raises(lv.TraceFileError, match="make no tensor"):
        _ = lv.load(path)["model.layers.0.mlp"]


def test_functions_in_a_file_wait_for_trust(tiny_llama: nn.Module, tmp_path: Path) -> None:
    """A source text comes along as text; loading, printing and reading the trace runs none."""
    source = f"def f(t):\n    open({str(tmp_path / 'ran')!r}, 'w')\n    return t"
    trace = lv.trace(tiny_llama, IDS, "**.mlp", lv.call("model.norm", source=source))
    (tmp_path / "ran").unlink()
    trace.save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert repr(again) and str(again.interventions[0]) and again.top(3) and again.diff(trace)
    with pytest.raises(lv.InterventionError, match="trusted"):
        lv.trace(tiny_llama, IDS, "**.mlp", again.interventions)
    assert not (tmp_path / "ran").exists()


class Odd(nn.Module):
    """Modules with the names that a format might trip over."""

    NAMES = ("__metadata__", "<script>alert(1)</script>", "名前 ✓", 'a"b\\c', "\udc80", "__proto__")

    def __init__(self) -> None:
        super().__init__()
        for name in self.NAMES:
            self.add_module(name, nn.Linear(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.children():
            x = child(x)
        return x


def test_names_survive_whatever_they_are(tmp_path: Path) -> None:
    trace = lv.trace(Odd(), torch.ones(2, 3), "**")
    trace.save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert again.sites == trace.sites and len(again) == len(Odd.NAMES) + 1
    assert all(torch.equal(again[s], trace[s]) for s in trace)
    assert again.plan == trace.plan


def test_a_new_file_has_the_rights_of_any_other(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        made_of({"a": torch.ones(1)}).save(tmp_path / "a")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
