"""Files: every kind of tensor comes back bit for bit, and whatever is no trace is refused."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.plan import Plan
from lensview.sites import Site
from lensview.traces.description import FORMAT
from lensview.traces.parts import Parts, Record
from lensview.traces.trace import Trace

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])


def made_of(tensors: dict[str, Tensor]) -> Trace:
    records = {str(Site.parse(s)): Record(Site.parse(s), t) for s, t in tensors.items()}
    return Trace(Parts(Plan.make(list(tensors)), records))


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_a_run_and_all_that_belongs_to_it(tiny_llama: nn.Module, tmp_path: Path) -> None:
    first = lv.trace(tiny_llama, IDS, "**")
    edits = [
        lv.patch("model.layers.0", first, 0),
        lv.add("model.layers.1", torch.ones(16), lv.at(token=-1)),
    ]
    trace = lv.trace(tiny_llama, IDS, ["**", "model.layers"], edits)
    trace.save(tmp_path / "deep" / "run.safetensors")
    again = lv.load(tmp_path / "deep" / "run.safetensors")
    assert again.sites == trace.sites and again.missed == trace.missed
    assert all(torch.equal(again[s], trace[s]) for s in trace)
    assert again.top(5) == trace.top(5) and again.top(101, 1) == trace.top(101, 1)
    assert again.meta == trace.meta
    assert again.meta["config"]["num_key_value_heads"] == 2 and again.meta["seed"] == 0
    assert again.meta["versions"].keys() == {"lensview", "torch", "transformers"}
    assert torch.equal(again.tokens.ids, IDS) and again.tokens.labels == trace.tokens.labels  # type: ignore[union-attr]
    assert [str(i) for i in again.interventions] == [str(i) for i in edits]
    assert [(r.calls, r.changed) for r in again.reports] == [
        (r.calls, r.changed) for r in trace.reports
    ]
    assert trace.diff(again).first is None
    # What was loaded can be used as a source: the file is a full stand-in for the run.
    carried = lv.trace(tiny_llama, IDS, "**", lv.patch("model.layers.1", again))
    assert torch.equal(carried.logits, trace.logits)  # type: ignore[arg-type]


def test_a_config_that_json_cannot_write(tiny_llama: Any, tmp_path: Path) -> None:
    tiny_llama.config.limit = (0.0, float("inf"))
    tiny_llama.config.told = {1: torch.float16}
    lv.trace(tiny_llama, IDS, "model.norm").save(tmp_path / "a")
    config = lv.load(tmp_path / "a").meta["config"]
    assert config["limit"] == [0.0, "inf"] and "float16" in config["told"]["1"]


def test_functions_and_overflows_survive_as_far_as_they_can(
    tiny_llama: nn.Module, tmp_path: Path
) -> None:
    mlp = "model.layers.0.mlp"
    edits = [lv.call(mlp, lambda x: x + 1), lv.scale(mlp, float("inf"))]
    with pytest.warns(lv.LensWarning, match="infinite"):
        trace = lv.trace(tiny_llama, IDS, mlp, edits)
    trace.save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert [r.overflowed for r in again.reports] == [0, IDS.numel() * 16]
    assert str(again.interventions[0]) == str(edits[0]) and not again.interventions[0].portable
    with pytest.raises(lv.InterventionError, match="not portable when it was saved"):
        lv.trace(tiny_llama, IDS, (), again.interventions)


def test_a_file_from_before_overflows_were_counted(tiny_llama: nn.Module, tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    trace = lv.trace(tiny_llama, IDS, "model.norm", lv.scale("model.norm", 2))
    trace.save(tmp_path / "new")
    with safe_open(tmp_path / "new", "pt") as file:
        body = json.loads(file.metadata()["lensview"])
    assert body["format"] == 1
    body["reports"] = [counts[:2] for counts in body["reports"]]
    save_file(load_file(tmp_path / "new"), tmp_path / "old", {"lensview": json.dumps(body)})
    (report,) = lv.load(tmp_path / "old").reports
    assert (report.calls, report.changed, report.overflowed) == (1, IDS.numel() * 16, 0)


def test_token_texts_survive_without_the_tokenizer(
    demo_model: tuple[Any, Any], tmp_path: Path
) -> None:
    model, tokenizer = demo_model
    trace = lv.trace(model, "Größe 大", "model.norm", tokenizer=tokenizer)
    trace.save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert again.top(64) == trace.top(64)
    beyond = again.top(200)[-1]
    assert beyond.text == f"#{beyond.id}"
    assert lv.load(tmp_path / "a", tokenizer=tokenizer).top(200) == trace.top(200)
    assert again.tokens is not None and trace.tokens is not None
    assert again.tokens.labels == trace.tokens.labels


def odd_tensors() -> dict[str, Tensor]:
    base = torch.arange(24.0).reshape(4, 6)
    specials = torch.tensor([float("nan"), -0.0, float("inf"), 1e-40])
    return {
        "shared": base,
        "shared.again": base,
        "transposed": base.t(),
        "slice": base[1:3, ::2],
        "strided.overlap": base.expand(3, 4, 6),
        "0-d": torch.tensor(3.5),
        "empty": torch.zeros(0, 5),
        "bool": torch.tensor([True, False]),
        "int64": torch.tensor([2**62, -1]),
        "uint8": torch.tensor([255], dtype=torch.uint8),
        "bf16": specials.bfloat16(),
        "fp16": specials.half(),
        "float64": specials.double(),
        "float8": torch.tensor([0.5, -2]).to(torch.float8_e4m3fn),
        "complex64": torch.complex(specials, specials.flip(0)),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        r"a/b[x]\odd\.名前 ✓:input@3".replace("/", r"\/")
        .replace("[", r"\[")
        .replace("]", r"\]"): base,
    }


def test_odd_tensors_and_names_come_back_bit_for_bit(tmp_path: Path) -> None:
    """O22: what plain safetensors refuses (shared, strided, views) is handled here."""
    tensors = odd_tensors()
    made_of(tensors).save(tmp_path / "odd")
    again = lv.load(tmp_path / "odd")
    assert len(again) == len(tensors)
    for text, tensor in tensors.items():
        got = again[text]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), text
        assert bits(got) == bits(tensor.resolve_conj()), text


def test_a_slice_costs_its_own_bytes_and_a_shared_tensor_is_stored_once(tmp_path: Path) -> None:
    big = torch.zeros(1 << 20)
    made_of({"slice": big[:4], "a": big[:1000], "b": big[:1000]}).save(tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < 8000


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run"
    made_of({"a": torch.ones(2)}).save(path)
    before = path.read_bytes()
    with pytest.raises(lv.TraceFileError):
        made_of({"a": torch.ones(2, device="meta")}).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_truncated_foreign_and_newer_files(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "run"
    made_of({"a": torch.ones(1000)}).save(path)
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(lv.TraceFileError, match="run"):
            lv.load(path)
    path.write_bytes(b"PK\x03\x04 this is a zip of pickles")
    with pytest.raises(lv.TraceFileError):
        lv.load(path)
    save_file({"a": torch.ones(1)}, path)
    with pytest.raises(lv.TraceFileError, match="not a trace"):
        lv.load(path)
    body = {"format": FORMAT + 1}
    save_file({"a": torch.ones(1)}, path, {"lensview": json.dumps(body)})
    with pytest.raises(lv.TraceFileError, match=r"Upgrade"):
        lv.load(path)
    save_file({"a": torch.ones(1)}, path, {"lensview": json.dumps({"format": FORMAT})})
    with pytest.raises(lv.TraceFileError, match="not a trace"):
        lv.load(path)
    save_file({"a": torch.ones(1)}, path, {"lensview": "{"})
    with pytest.raises(lv.TraceFileError, match="description"):
        lv.load(path)
    with pytest.raises(FileNotFoundError):
        lv.load(tmp_path / "none")


def test_the_header_is_strict_json(tiny_llama: nn.Module, tmp_path: Path) -> None:
    edit = lv.clamp("model.layers.0", high=float("inf"))
    lv.trace(tiny_llama, IDS, "lm_head", edit).save(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    json.loads(header["__metadata__"]["lensview"], parse_constant=pytest.fail)


def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Kill a real process at different moments of a save; what stands at the path always loads."""
    path = tmp_path / "run"
    made_of({"a": torch.zeros(10)}).save(path)
    script = (
        "import sys, torch\n"
        "from lensview.plan import Plan\n"
        "from lensview.sites import Site\n"
        "from lensview.traces.parts import Parts, Record\n"
        "from lensview.traces.trace import Trace\n"
        "record = Record(Site('a'), torch.ones(8_000_000))\n"
        "trace = Trace(Parts(Plan.make('a'), {'a': record}))\n"
        "print('go', flush=True)\n"
        "while True: trace.save(sys.argv[1])\n"
    )
    seen = set()
    for wait in (0.0, 0.004, 0.011, 0.023, 0.05):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"go\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
        process.kill()
        process.wait()
        process.stdout.close()
        value = lv.load(path)["a"]
        assert value.unique().numel() == 1 and value.numel() in (10, 8_000_000)
        seen.add(value.numel())
    assert seen


def test_how_a_value_lay_over_ranks_is_kept_and_shown(
    tiny_llama: nn.Module, tmp_path: Path
) -> None:
    """A reader sees what is no whole, or what was put together; not what every rank had."""
    said = {
        "model.layers.0": "whole over 2 ranks",
        "model.layers.1": "shard of dim 2 (16) over 2 ranks, colwise",
        "model.layers.2": "rank-local: nothing says what this is of the whole.",
    }
    plain = lv.trace(tiny_llama, IDS, list(said))
    assert {plain.placement(site) for site in said} == {""}
    records = {s: replace(r, placement=said[s]) for s, r in plain._parts.records.items()}
    lv.Trace(replace(plain._parts, records=records)).save(tmp_path / "run.safetensors")
    loaded = lv.load(tmp_path / "run.safetensors")
    assert {site: loaded.placement(site) for site in said} == said
    shown = {s: lv.figures.heatmap(loaded, s).layout.title.subtitle.text for s in said}
    assert "over 2 ranks" not in shown["model.layers.0"]
    assert said["model.layers.1"] in shown["model.layers.1"]
    assert "rank-local" in shown["model.layers.2"]
