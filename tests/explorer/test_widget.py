"""The explorer as a user's code has it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

import ipywidgets
import pytest
import torch
from ipywidgets.widgets.widget import _instances
from torch import nn

import lensview as lv
from lensview.explorer import Explorer, widget

from .conftest import Gate, Page, hooks

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PROMPT = "the capital of france is"
MLP = "model.layers.1.mlp"
VIEW = "application/vnd.jupyter.widget-view+json"


def test_run_returns_the_trace(explorer: Explorer, tiny_llama: LlamaForCausalLM) -> None:
    trace = explorer.run(PROMPT)
    assert trace is not None and trace is explorer.trace is explorer.baseline
    assert explorer.prompt == PROMPT and MLP in trace
    with torch.no_grad():
        assert trace.tokens is not None
        plain = tiny_llama(trace.tokens.ids).logits
    assert torch.equal(trace["lm_head"], plain)
    again = explorer.run()
    assert again is not trace and explorer.prompt == PROMPT


def test_run_without_waiting(explorer: Explorer) -> None:
    assert explorer.run(PROMPT, wait=False) is None
    assert explorer.wait(60)
    assert explorer.trace is not None


def test_explore_starts_the_first_run(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    explorer = lv.explore(tiny_llama, tokenizer, PROMPT)
    assert explorer.wait(60) and explorer.trace is not None
    explorer.close()
    explorer = lv.explore(lv.LocalSession(tiny_llama, tokenizer))
    assert explorer.wait(60) and explorer.trace is None
    explorer.close()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((3,), TypeError, "not a int"),
        ((None,), TypeError, "not a NoneType"),
        (("llama", None, "x"), lv.InputError, "no tokenizer"),
        (("llama", "tokenizer", ""), lv.InputError, "empty"),
        (("llama", "tokenizer", None, "**.mpl"), lv.SiteError, "matches none"),
        (("llama", "tokenizer", None, ["model.layers.7"]), lv.SiteError, "model.layers"),
        (("llama", "tokenizer", None, [7]), lv.SiteError, "text"),
    ],
)
def test_explore_refuses_at_once(
    tiny_llama: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    arguments: tuple[Any, ...],
    error: type[Exception],
    said: str,
) -> None:
    names: dict[str, Any] = {"llama": tiny_llama, "tokenizer": tokenizer}
    given: list[Any] = [names.get(a, a) if isinstance(a, str) else a for a in arguments]
    before = len(_instances)
    with pytest.raises(error, match=said):
        lv.explore(*given)
    assert len(_instances) == before


def test_errors_of_a_run_are_raised_where_it_is_waited_for(
    explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    explorer.run(PROMPT)
    before, trace = hooks(tiny_llama), explorer.trace
    for bad in ("", "a " * 65):
        with pytest.raises(lv.InputError):
            explorer.run(bad)
    with pytest.raises((lv.InputError, IndexError)):
        explorer.run(torch.tensor([[1, 2, 9999]]))
    assert hooks(tiny_llama) == before and explorer.trace is trace
    assert explorer.run(PROMPT) is not None


def test_a_failure_that_nobody_waits_for_is_a_note(explorer: Explorer) -> None:
    page = Page(explorer)
    explorer.run("a " * 65, wait=False)
    assert explorer.wait(60)
    assert "context is 64" in page.ask("hello")["state"]["notes"][0]
    explorer.run(PROMPT)
    assert page.ask("hello")["state"]["notes"] == []


def test_interventions_from_code(explorer: Explorer) -> None:
    page = Page(explorer)
    explorer.run(PROMPT)
    edit = lv.scale(MLP, 0)
    explorer.interventions = edit  # one alone is taken too
    taken: Any = explorer.interventions
    assert taken == (edit,)
    assert explorer.wait(60)
    assert not explorer.trace[MLP].any() and explorer.trace is not explorer.baseline
    (row,) = page.ask("hello")["state"]["interventions"]
    assert (row["operation"], row["value"], row["site"]) == ("scale", "0", MLP)
    page.ask("interventions", rows=[row, {**row, "id": "off", "enabled": False}])
    explorer.interventions = (*taken, lv.zero("model.norm", (0, -1)))
    assert explorer.wait(60)
    rows = page.ask("hello")["state"]["interventions"]
    assert [(r["operation"], r["enabled"]) for r in rows] == [
        ("scale", True),
        ("scale", False),
        ("zero", True),
    ]
    assert rows[0]["id"] == row["id"], "what stays keeps its id"
    explorer.interventions = ()
    assert explorer.wait(60)
    assert explorer.trace is explorer.baseline
    assert [r["id"] for r in page.ask("hello")["state"]["interventions"]] == ["off"]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ((3,), lv.InterventionError),
        (7, lv.InterventionError),
        ((lv.zero("model.layers.1.mpl"),), lv.SiteError),
    ],
)
def test_wrong_interventions_are_refused(
    explorer: Explorer, bad: Any, error: type[Exception]
) -> None:
    good = lv.zero(MLP)
    explorer.interventions = (good,)
    with pytest.raises(error):
        explorer.interventions = bad
    assert explorer.interventions == (good,)


def test_selected_is_checked_and_canonical(explorer: Explorer) -> None:
    explorer.selected = f"{MLP}:output"
    assert explorer.selected == MLP
    with pytest.raises(lv.SiteError, match=r"Did you mean 'model\.layers\.1\.mlp'"):
        explorer.selected = "model.layers.1.mpl"
    with pytest.raises(lv.SiteError, match="glob"):
        explorer.selected = "**.mlp"
    assert explorer.selected == MLP
    explorer.selected = ""


def test_setting_the_prompt_runs(explorer: Explorer) -> None:
    text = ipywidgets.Text()
    link = ipywidgets.link((text, "value"), (explorer, "prompt"))
    text.value = PROMPT
    assert explorer.wait(60) and explorer.trace.tokens.labels[0] == PROMPT.split()
    Page(explorer).ask("run", prompt="a b")
    assert text.value == "a b"
    link.unlink()


def test_observers_get_every_run_once_and_may_fail(
    explorer: Explorer, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, str]] = []

    def look(change: Any) -> None:
        seen.append((change.new, threading.current_thread().name))
        with pytest.raises(lv.LensError, match="wait=False"):
            explorer.run(PROMPT)
        raise RuntimeError("the observer's own fault")

    explorer.observe(look, "trace")
    first, second = explorer.run(PROMPT), explorer.run(PROMPT)
    assert [t for t, _ in seen] == [first, second]
    assert all(name != threading.main_thread().name for _, name in seen)
    assert "the observer's own fault" in capfd.readouterr().err
    with pytest.raises(Exception, match="read-only"):
        explorer.trace = None


def test_only_small_things_are_synced(explorer: Explorer) -> None:
    explorer.run(PROMPT)
    explorer.selected = MLP
    own = set(explorer.keys) - set(ipywidgets.DOMWidget().keys)
    assert own == {"selected", "prompt", "_esm", "_anywidget_id"}
    state = {k: v for k, v in explorer.get_state().items() if k != "_esm"}
    assert len(repr(state)) < 2000
    assert len(explorer.get_state("_esm")["_esm"]) < 160_000


def test_a_missing_bundle_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(widget, "BUNDLE", tmp_path / "widget.js")
    with pytest.raises(ImportError, match="npm ci && npm run build"):
        widget._bundle()


class Kept(nn.Module):
    """Holds a large parameter, and can be watched."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


def test_close_lets_go_of_everything() -> None:
    model = Kept()
    widgets = set(_instances)
    explorer = lv.explore(model, inputs=torch.ones(2, 4))
    assert explorer.wait(60)
    explorer.observe(lambda change: None, "trace")
    explorer.selected = "inner"
    explorer.interventions = (lv.zero("inner"),)
    assert explorer.wait(60)
    threads = set(explorer._jobs._threads.values())
    traces = [weakref.ref(explorer.trace), weakref.ref(explorer.baseline)]
    gc.collect()
    gc.disable()
    try:
        explorer.close()
        assert [t() for t in traces] == [None, None], "without a collection"
    finally:
        gc.enable()
    assert set(_instances) == widgets
    assert not any(t.is_alive() for t in threads)
    assert explorer.trace is None and "closed" in repr(explorer)
    for use in (explorer.run, explorer.snapshot, lambda: explorer.session):
        with pytest.raises(lv.LensError, match="closed"):
            use()
    explorer.close()
    left = weakref.ref(model)
    del model, threads, use
    gc.collect()
    assert left() is None, "a closed explorer in Out[] keeps no model"


def test_a_trace_that_the_timeline_lets_go_of_is_freed(explorer: Explorer) -> None:
    explorer._open().timeline.limit = 0
    gc.collect()
    gc.disable()
    try:
        old = weakref.ref(explorer.run(PROMPT))
        explorer.run("a b c")
        assert explorer.wait(60)
        assert old() is None
    finally:
        gc.enable()


def test_twenty_in_a_row(tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    before, widgets = hooks(tiny_llama), len(_instances)
    threads = threading.active_count()
    refs = []
    for _ in range(20):
        explorer = lv.explore(tiny_llama, tokenizer, PROMPT)
        assert explorer.wait(60)
        refs.append((weakref.ref(explorer), weakref.ref(explorer.trace)))
        explorer.close()
    del explorer
    gc.collect()
    assert [r for pair in refs for r in pair if r() is not None] == []
    assert len(_instances) == widgets and threading.active_count() == threads
    assert hooks(tiny_llama) == before


def test_an_interrupt_of_the_kernel_cancels_the_run(
    explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    explorer.run(PROMPT)
    before, trace = hooks(tiny_llama), explorer.trace
    with Gate().on(tiny_llama.model.layers[1]) as gate:

        def interrupt() -> None:
            assert gate.reached.wait(60)
            os.kill(os.getpid(), signal.SIGINT)
            gate.opened.set()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            explorer.run("a b c")
        thread.join()
    assert hooks(tiny_llama) == before and explorer.trace is trace
    assert explorer.run("a b c") is not None


def test_a_cancel_in_the_page_is_an_error_in_the_cell(
    explorer: Explorer, tiny_llama: LlamaForCausalLM
) -> None:
    with Gate().on(tiny_llama.model.layers[1]) as gate:

        def supersede() -> None:
            assert gate.reached.wait(60)
            explorer.run(PROMPT, wait=False)
            gate.opened.set()

        thread = threading.Thread(target=supersede)
        thread.start()
        with pytest.raises(lv.RunCancelled, match="newer"):
            explorer.run("a b c")
        thread.join()
    assert explorer.wait(60) and explorer.prompt == PROMPT


def test_the_process_ends_while_a_run_goes_on() -> None:
    script = (
        "import torch, lensview as lv, threading\n"
        "reached = threading.Event()\n"
        "class Slow(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        reached.set(); threading.Event().wait(60); return x\n"
        "ex = lv.explore(Slow(), inputs=torch.ones(1))\n"
        "assert reached.wait(60)\n"
        "print('out')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "out"), done.stderr


def test_what_a_notebook_saves(explorer: Explorer) -> None:
    explorer.run(PROMPT)
    explorer.selected = MLP
    data, _ = explorer._repr_mimebundle_() or ({}, {})
    assert set(data) == {"text/plain", "text/html", VIEW}
    assert len(data["text/html"]) < 20_000
    assert "LlamaForCausalLM" in data["text/plain"] and "next token" in data["text/plain"]
    explorer.close()
    assert explorer._repr_mimebundle_ is None


class Pinned:
    """A comm as ipykernel 7.4 makes them: it remembers who published last."""

    kernel = object()

    def __init__(self) -> None:
        self._reply_subshell_lock = threading.Lock()
        self._reply_subshell_ids: dict[str, Any] = {}

    def send(self, data: Any, buffers: Any = None) -> None:
        self._reply_subshell_id = "main"
        self._reply_subshell_ids[data["content"].get("id", "x")] = "main"


def test_the_comm_is_not_pinned_to_the_shell_that_published_last() -> None:
    comm = Pinned()
    comm.send({"content": {"id": "a"}})
    widget._forget_pin(comm)
    assert not hasattr(comm, "_reply_subshell_id") and comm._reply_subshell_ids == {}
    widget._forget_pin(None)
    widget._forget_pin(object())


def test_the_installed_ipykernel_still_pins_this_way() -> None:
    from ipykernel.comm.comm import BaseComm

    made = BaseComm(target_name="x")
    if hasattr(made, "_reply_subshell_lock"):
        assert isinstance(made._reply_subshell_ids, dict)
        assert "_reply_subshell_id" in BaseComm.publish_msg.__code__.co_names
