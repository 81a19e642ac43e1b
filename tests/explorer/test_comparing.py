"""The timeline: runs kept, restored, compared; checks, limits, and what is taken out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import lensview as lv
from lensview.explorer import Explorer
from lensview.explorer.timeline import Timeline

from .conftest import Page, row, tile_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT = "the capital of france is"
MLP = "model.layers.1.mlp"


def kl_by_hand(first: torch.Tensor, second: torch.Tensor) -> float:
    p, q = (t[0].double().softmax(-1).numpy() for t in (first, second))
    return float(np.sum(p * (np.log(p) - np.log(q))))


def test_baseline_and_edited_are_told_how_far_apart_they_are(
    page: Page, explorer: Explorer
) -> None:
    assert page.ask("run", prompt=PROMPT)["divergence"] is None
    state = page.ask("interventions", rows=[row(MLP)])
    logits = explorer.baseline.logits, explorer.trace.logits
    assert state["divergence"]["forward"] == pytest.approx(kl_by_hand(*logits), rel=1e-9)
    assert state["divergence"]["backward"] == pytest.approx(kl_by_hand(*logits[::-1]), rel=1e-9)


def test_the_timeline_holds_what_was_run(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row(MLP)])
    state = page.ask("rename", number=2, name="  no   mlp ")
    first, second = state["runs"]
    assert (first["number"], first["prompt"], first["interventions"]) == (1, PROMPT, [])
    assert (second["name"], second["interventions"]) == ("no mlp", [f"scale {MLP} 0"])
    assert first["held"] and second["held"] and first["seed"] == torch.initial_seed()
    assert [r.number for r in explorer.runs] == [1, 2]
    assert explorer.runs[1].trace is explorer.trace
    held = state["limits"]["held_bytes"]
    assert explorer.baseline is not None and explorer.trace is not None
    assert held == bytes_of(explorer.baseline) + bytes_of(explorer.trace)


def bytes_of(trace: lv.Trace) -> int:
    tensors = {id(trace[s]): trace[s] for s in trace.sites}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def test_looking_at_another_site_is_no_new_run(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("tile", **tile_of(f"{MLP}:input"))
    (run,) = explorer.runs
    assert run.trace is explorer.trace and f"{MLP}:input" in run.trace.sites
    page.ask("interventions", rows=[row(MLP, "patch", "run 1")])
    assert explorer.interventions


def test_a_run_is_restored(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("interventions", rows=[row(MLP)])
    wanted = explorer.trace.logits.clone()
    page.ask("interventions", rows=[])
    page.ask("run", prompt="a b")
    state = page.ask("restore", number=2)
    assert state["prompt"] == PROMPT and explorer.prompt == PROMPT
    assert [r["operation"] for r in state["interventions"]] == ["scale"]
    assert torch.equal(explorer.trace.logits, wanted)
    assert page.ask("undo")["interventions"] == []
    assert "no run 99" in page.refused("restore", number=99)["message"]


def test_two_runs_are_compared(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    a = explorer.trace
    page.ask("interventions", rows=[row("model.layers.0.mlp")])
    page.ask("interventions", rows=[])
    page.ask("run", prompt="a b c d e")
    b = explorer.trace
    before = page.ask("hello")["state"]["run"]
    state = page.ask("pair", first=1, second=4)
    assert state["pair"] == [1, 4] and state["run"] > before
    assert any("prompts differ" in note for note in state["notes"])
    assert state["divergence"]["forward"] == pytest.approx(kl_by_hand(a.logits, b.logits), rel=1e-9)
    shown = {t["id"]: t["probability"] for t in state["edited"]}
    shares = b.logits[0].softmax(-1)
    assert shown == pytest.approx({i: float(shares[i]) for i in shown})
    assert [t["id"] for t in state["baseline"]][:10] == a.logits[0].topk(10).indices.tolist()
    for which, wanted in (
        ("latest", b[MLP]),
        ("baseline", a[MLP]),
        ("difference", b[MLP] - a[MLP]),
    ):
        name = page.send("tile", **tile_of(MLP, which=which))
        page.answer(name)
        cells = np.frombuffer(page.cells(name), "<f4").reshape(5, 16)
        np.testing.assert_array_equal(cells, wanted[0].numpy())
    assert page.answer(name)["result"]["stats"] == "run 4 minus run 1"
    assert explorer.trace is b, "the explorer's own traces stay those of the latest run"
    state = page.ask("pair", first=None, second=None)
    assert state["pair"] == [] and state["edited"] == []


def test_runs_of_other_shapes_say_so(page: Page) -> None:
    page.ask("run", prompt=PROMPT)
    page.ask("run", prompt="a b")
    state = page.ask("pair", first=1, second=2)
    assert state["baseline"] and state["edited"] and state["divergence"]["forward"] > 0
    said = page.refused("tile", **tile_of(MLP, which="difference"))["message"]
    assert "(1, 2, 16)" in said and "(1, 5, 16)" in said
    page.ask("tile", **tile_of(MLP, which="baseline"))
    assert page.ask("run", prompt="a")["pair"] == [], "a new run ends the comparison"


def test_values_beyond_the_limit_are_let_go_and_tables_stay(page: Page, explorer: Explorer) -> None:
    timeline = explorer._open().timeline
    page.ask("run", prompt=PROMPT)
    timeline.limit = int(1.5 * timeline.held_bytes)
    logits = explorer.trace.logits.clone()
    state = page.ask("run", prompt="a b c d e")
    assert [r["held"] for r in state["runs"]] == [False, True]
    assert explorer.runs[0].trace is None
    state = page.ask("pair", first=1, second=2)
    assert any("let go" in note for note in state["notes"])
    assert state["divergence"]["forward"] == pytest.approx(
        kl_by_hand(logits, explorer.trace.logits), rel=1e-9
    )
    assert "let go" in page.refused("tile", **tile_of(MLP))["message"]
    state = page.ask("interventions", rows=[row(MLP, "patch", "run 1")])
    assert "let go" in state["interventions"][0]["error"]
    page.ask("interventions", rows=[])
    page.ask("restore", number=1)
    assert torch.equal(explorer.trace.logits, logits)


def test_a_value_of_two_runs_is_counted_once(page: Page, explorer: Explorer) -> None:
    timeline = explorer._open().timeline
    page.ask("run", prompt=PROMPT)
    one = timeline.held_bytes
    page.ask("interventions", rows=[row(MLP)])
    edited = timeline.held_bytes - one
    assert edited == bytes_of(explorer.trace), "the run without edits is the first run's"
    timeline.limit = 0
    timeline.trim()
    assert [r.trace is None for r in explorer.runs] == [True, False]
    assert timeline.held_bytes == one + edited, "its baseline is still the second run's"


def test_an_own_limit_of_nothing_keeps_the_latest() -> None:
    assert Timeline(0).held_bytes == 0
    with pytest.raises(lv.InputError, match="none yet"):
        Timeline().find(1)


def test_checks_are_green_or_amber_and_never_silent(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    state = page.ask("run", prompt=PROMPT)
    checks = {c["name"]: c for c in state["checks"]}
    assert not checks["plain call"]["ok"] and "Not compared" in checks["plain call"]["reason"]
    assert checks["mode"]["ok"] and checks["padding"]["ok"] and checks["reach"]["ok"]
    state_before = torch.get_rng_state()
    checks = {c["name"]: c for c in page.ask("verify")["checks"]}
    assert checks["plain call"]["ok"] and "bit for bit" in checks["plain call"]["reason"]
    assert torch.equal(state_before, torch.get_rng_state())
    with torch.no_grad():
        tiny_llama.lm_head.weight[3] += 1
    checks = {c["name"]: c for c in page.ask("verify")["checks"]}
    assert not checks["plain call"]["ok"]
    assert "1 of 101 logits differ" in checks["plain call"]["reason"]
    tiny_llama.train()
    state = page.ask("run", prompt=PROMPT)
    checks = {c["name"]: c for c in state["checks"]}
    assert not checks["mode"]["ok"] and "train mode" in checks["mode"]["reason"]
    assert [r["amber"] for r in state["runs"]] == [1, 1], "a plain call differs; train mode"


def test_padding_and_overflow_are_checked(page: Page, explorer: Explorer) -> None:
    explorer.run(["the capital", "a b c"])
    checks = {c["name"]: c for c in page.ask("hello")["state"]["checks"]}
    assert (
        checks["padding"]["ok"] and "padded on the right and masked" in checks["padding"]["reason"]
    )
    page.ask("interventions", rows=[row(MLP, "scale", "1e39")])
    checks = {c["name"]: c for c in page.ask("hello")["state"]["checks"]}
    assert not checks["overflow"]["ok"]


def test_the_cost_of_a_run_before_it(
    page: Page, explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    told = page.ask("estimate", prompt=PROMPT, sites=["**"], keep="")
    page.ask("run", prompt=PROMPT)
    assert told["sites"] == len(explorer.trace.sites) and told["bytes"] == bytes_of(explorer.trace)
    prices = {c["name"]: c for c in told["choices"]}
    half = next(c for name, c in prices.items() if "half" in name)
    assert half["bytes"] == pytest.approx(told["bytes"] / 2, rel=0.01)
    layers = next(c for name, c in prices.items() if "layers" in name)
    assert layers["sites"] == ["model.layers.*"] and layers["bytes"] == 3 * 5 * 16 * 4
    state = page.ask("limits", sites=["**"], keep="half", max_mib=8)
    assert explorer.trace[MLP].dtype == torch.bfloat16
    assert bytes_of(explorer.trace) == half["bytes"]
    assert state["limits"]["max_bytes"] == 8 << 20 and state["limits"]["keep"] == "half"
    page.ask("limits", sites=["model.layers.*"], keep="last token", max_mib=None)
    assert explorer.trace[f"{MLP[:14]}"].shape == (1, 1, 16) and len(explorer.trace.sites) == 3
    assert "keep is one of" in page.refused("limits", sites=["**"], keep="x", max_mib=1)["message"]
    assert explorer._open().wanted.keep == "last token"


def run_text(text: str, names: dict[str, Any]) -> dict[str, Any]:
    exec(compile(text, "<copied>", "exec"), names)
    return names


def test_copied_code_gives_the_same_logits(
    page: Page,
    explorer: Explorer,
    tiny_llama: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    direction = torch.linspace(-1, 1, 16)
    names = {"net": tiny_llama, "tok": tokenizer, "direction": direction}
    monkeypatch.setattr("lensview.explorer.editing.namespace", lambda: names)
    explorer._open().origins._names = lambda: names
    page.ask("run", prompt='the "capital"')
    page.ask("interventions", rows=[row(MLP, "scale", "-0.5")])
    page.ask("run", prompt=PROMPT)
    rows = [
        row(MLP, "clamp", "-0.1, ", index="0, 1:3"),
        row("model.layers.0.mlp", "noise", "0.1, 7", index="at(token=-1)"),
        row("model.layers.2.mlp", "project_out", "direction"),
        row("model.layers.0", "patch", "run 2", index=":, 0:1"),
        row("model.norm", "add", "direction", enabled=False),
        row("model.norm", "put", "0.5", index="..., 3"),
    ]
    state = page.ask("interventions", rows=rows)
    assert [r["error"] for r in state["interventions"]] == [""] * 6
    text = page.ask("code")["text"]
    assert "net" in text and "tokenizer=tok" in text and "…" not in text and "direction)" in text
    done = run_text(text, dict(names))
    assert torch.equal(done["trace"].logits, explorer.trace.logits)
    assert torch.equal(done["baseline"].logits, explorer.baseline.logits)
    assert not torch.equal(explorer.baseline.logits, explorer.trace.logits)


def test_copied_code_says_what_has_no_name(explorer: Explorer) -> None:
    explorer.run("a b c")
    explorer.interventions = (lv.add(MLP, torch.ones(16)), lv.put(MLP, math.inf))
    assert explorer.wait(60)
    text = explorer.code()
    assert "model = …  # the LlamaForCausalLM" in text and "tokenizer = …" in text
    assert "the tensor of shape (16,), given in code" in text and 'float("inf")' in text
    compile(text.replace("…", "None"), "<copied>", "exec")


def test_a_trace_is_saved_and_nothing_is_overwritten_unasked(
    page: Page, explorer: Explorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page.ask("run", prompt=PROMPT)
    first = explorer.trace[MLP].clone()
    told = page.ask("save", path="one", what="trace", replace=False)
    assert told["path"] == str(tmp_path / "one.safetensors") and not told["exists"]
    assert torch.equal(lv.load("one.safetensors")[MLP], first)
    page.ask("run", prompt="a b")
    assert page.ask("save", path="one", what="trace", replace=False)["exists"]
    assert torch.equal(lv.load("one.safetensors")[MLP], first)
    page.ask("save", path="one", what="trace", replace=True)
    assert lv.load("one.safetensors")[MLP].shape == (1, 2, 16)
    for path, said in (("", "Name a file"), ("no/such/one", "no folder"), ("x/", "Name a file")):
        refused = page.refused("save", path=path, what="trace", replace=False)
        assert said in refused["message"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.safetensors"]


def test_a_figure_needs_a_selected_site(page: Page, explorer: Explorer) -> None:
    page.ask("run", prompt=PROMPT)
    assert "Select a site" in page.refused("figure")["message"]
    explorer.selected = MLP
    assert "lensview.figures.heatmap" in page.ask("figure")["text"]
