"""%lens in a real IPython shell."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ipywidgets
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.testing.globalipapp import get_ipython as start_shell
from IPython.utils.capture import RichOutput, capture_output
from torch import nn

import lensview as lv
from lensview.explorer import Explorer

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

VIEW = "application/vnd.jupyter.widget-view+json"


class Words:
    """A tokenizer of one id per word, small enough to need no file."""

    def __call__(self, texts: Any, **options: Any) -> dict[str, Any]:
        rows = [texts] if isinstance(texts, str) else texts
        ids = [[1 + len(w) for w in row.split()] for row in rows]
        if options.get("return_tensors") == "pt":
            return {
                "input_ids": torch.tensor(ids),
                "attention_mask": torch.ones(len(ids), len(ids[0]), dtype=torch.int64),
            }
        return {"input_ids": ids, "attention_mask": [[1] * len(r) for r in ids]}

    def decode(self, ids: Any, **options: Any) -> str:
        return " ".join(f"w{int(i)}" for i in ([ids] if isinstance(ids, int) else ids))


class Notebook:
    """A shell with %lens, and what its cells printed and displayed."""

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.names: dict[str, Any] = shell.user_ns

    def run(self, source: str) -> tuple[str, list[RichOutput]]:
        with capture_output() as captured:
            self.shell.run_cell(source, store_history=True)
        return captured.stdout + captured.stderr, captured.outputs

    def explorer(self) -> Explorer:
        made = self.names["_lens"]
        assert isinstance(made, Explorer)
        return made


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    shell = start_shell() or InteractiveShell.instance()
    shell.reset()
    shell.run_line_magic("load_ext", "lensview")
    yield Notebook(shell)
    for explorer in live_explorers():
        explorer.close()
    shell.run_line_magic("unload_ext", "lensview")
    shell.reset()


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if "UsageError" in line]


def test_a_model_is_shown_once_and_bound(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    notebook.names["model"] = tiny_llama
    text, shown = notebook.run("%lens model  # the one from above")
    assert [VIEW in out.data for out in shown] == [True]
    assert "no tokenizer found" in text
    explorer = notebook.explorer()
    assert explorer.session.root is tiny_llama
    assert explorer.trace is None


@pytest.mark.parametrize(
    ("source", "views"),
    [
        ("ex = %lens model", 1),
        ("ex = %lens model\nex", 2),
        ("%lens model\nx = 1", 1),
        ("if True:\n    ex = %lens model", 1),
        ("for _ in range(2):\n    %lens model", 2),
        ("ex = get_ipython().run_line_magic('lens', 'model')", 1),
        ("get_ipython().run_line_magic('lens', 'model')", 1),
    ],
)
def test_display_happens_once_however_it_is_called(
    notebook: Notebook, tiny_llama: LlamaForCausalLM, source: str, views: int
) -> None:
    notebook.names["model"] = tiny_llama
    text, shown = notebook.run(source)
    # What is the last line of a cell is printed by this shell, and displayed by a notebook's.
    assert sum(VIEW in out.data for out in shown) + text.count("Explorer of") == views
    if "ex" in notebook.names:
        assert notebook.names["ex"] is notebook.explorer()
    assert not any(isinstance(v, Explorer) for v in notebook.names["Out"].values()) or views == 2


def test_prompt_sites_and_a_tokenizer_from_the_namespace(
    notebook: Notebook, tiny_llama: LlamaForCausalLM
) -> None:
    notebook.names.update(model=tiny_llama, tok=Words())
    text, _ = notebook.run("""%lens model --prompt "one three 'five'" --sites '**.mlp'""")
    assert "`tok`" in text
    explorer = notebook.explorer()
    assert explorer.wait(60)
    assert explorer.prompt == "one three 'five'"
    assert explorer.trace.sites == tuple(f"model.layers.{i}.mlp" for i in range(3))


def test_the_cell_form_takes_the_prompt_from_the_cell(
    notebook: Notebook, tiny_llama: LlamaForCausalLM
) -> None:
    notebook.names.update(model=tiny_llama, words=Words())
    notebook.run("%%lens model --tokenizer words\none two\nthree  # stays")
    assert notebook.explorer().prompt == "one two\nthree  # stays"
    text, _ = notebook.run("%%lens model --prompt x --tokenizer words\none")
    assert errors(text) == [
        "UsageError: The prompt is given twice: by --prompt and by the cell's text."
    ]


def test_the_models_own_tokenizer(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    tiny_llama.tokenizer = Words()  # type: ignore[assignment]
    notebook.names["model"] = tiny_llama
    text, _ = notebook.run("%lens model --prompt 'a bb'")
    assert "the model's own tokenizer" in text
    assert notebook.explorer().wait(60) and notebook.explorer().trace is not None


def test_expressions_and_sessions(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    notebook.names["models"] = {"a b": tiny_llama}
    notebook.run("%lens models['a b']")
    assert notebook.explorer().session.root is tiny_llama
    session = lv.LocalSession(tiny_llama, Words())
    notebook.names["session"] = session
    notebook.run("%lens session --prompt 'a b'")
    assert notebook.explorer().session is session


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("things", "`things` is a list, not a model (a torch nn.Module) or a session."),
        ("kind", "`kind` is the class Linear, not a model"),
        ("name", "`name` is a str, not a model"),
        ("mdoel", "`mdoel` is not defined. Did you mean `model`?"),
        ("", "%lens takes a model: %lens NAME, or %lens demo."),
        ("model --tokenizer things", "`things` is a list, not a tokenizer"),
        ("model --prompt 'x", "a quote is not closed"),
        ("model other", "unrecognized arguments: other"),
        ("model.nothing", "`model.nothing` failed: AttributeError"),
        ("model --sites '**.mpl'", "**.mpl"),
        ("model --prompt 'x'", "has no tokenizer here"),
        ("model -)", "unrecognized arguments"),
        ("1 +", "unrecognized arguments"),
        ("'1 +'", "`1 +` is neither a name nor an expression"),
    ],
)
def test_a_wrong_line_is_one_line(
    notebook: Notebook, tiny_llama: LlamaForCausalLM, line: str, said: str
) -> None:
    notebook.names.update(model=tiny_llama, things=[1], kind=nn.Linear, name="gpt2")
    text, shown = notebook.run(f"%lens {line}")
    assert "Traceback" not in text
    assert len(errors(text)) == 1 and said in errors(text)[0], text
    assert not shown


def test_errors_name_the_models_that_are_there(
    notebook: Notebook, tiny_llama: LlamaForCausalLM
) -> None:
    notebook.names.update(llama=tiny_llama, things=[1])
    text, _ = notebook.run("%lens things")
    assert "Models here: `llama`." in errors(text)[0]


def test_an_empty_prompt_is_refused(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    notebook.names.update(model=tiny_llama, tok=Words())
    before = len(live_explorers())
    text, _ = notebook.run("%lens model --prompt ' '")
    assert "empty" in errors(text)[0]
    assert len(live_explorers()) == before


def live_explorers() -> list[Explorer]:
    from ipywidgets.widgets.widget import _instances

    return [w for w in _instances.values() if isinstance(w, Explorer)]


def test_running_the_cell_again_leaves_one(
    notebook: Notebook, tiny_llama: LlamaForCausalLM
) -> None:
    from ipywidgets.widgets.widget import _instances

    notebook.names.update(model=tiny_llama, tok=Words())
    hooks = hook_count(tiny_llama)
    traces: list[weakref.ref[lv.Trace]] = []
    widgets: list[int] = []
    for _ in range(20):
        notebook.run("%lens model --prompt 'a bb ccc'")
        assert notebook.explorer().wait(60)
        traces.append(weakref.ref(notebook.explorer().trace))
        widgets.append(len(_instances))
    gc.collect()
    assert sum(t() is not None for t in traces) == 1
    assert len(live_explorers()) == 1
    assert widgets[-1] == widgets[0]
    assert hook_count(tiny_llama) == hooks
    with pytest.raises(lv.LensError, match="closed"):
        first = Explorer(lv.LocalSession(tiny_llama))
        first.close()
        first.run()


def hook_count(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_two_in_one_cell_live_side_by_side(
    notebook: Notebook, tiny_llama: LlamaForCausalLM
) -> None:
    notebook.names["model"] = tiny_llama
    for _ in range(3):
        notebook.run("a = %lens model\nb = %lens model")
        a, b = notebook.names["a"], notebook.names["b"]
        assert a is not b and {a, b} == set(live_explorers())


@pytest.mark.filterwarnings("ignore:`Completer.complete` is pending deprecation")
def test_help_and_completion(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    notebook.names.update(my_model=tiny_llama, tok=Words(), other=[1])
    doc = notebook.shell.magics_manager.magics["line"]["lens"].__doc__
    for word in ("%lens demo", "--prompt", "--sites", "--tokenizer", "closes the explorer"):
        assert word in doc
    text, matches = notebook.shell.complete("m", "%lens m", 7)
    assert matches == ["my_model"] and text == "m"
    assert notebook.shell.complete("--", "%lens my_model --", 17)[1] == [
        "--prompt",
        "--sites",
        "--tokenizer",
        "--tp",
        "--attach",
    ]
    assert notebook.shell.complete("", "%lens my_model --tokenizer ", 27)[1] == ["tok"]
    assert "demo" in notebook.shell.complete("", "%lens ", 6)[1]


def test_the_namespace_is_not_poked(notebook: Notebook) -> None:
    class Trap:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("looked at")

    notebook.names.update(trap=Trap(), tokenizer=Trap(), plain=SimpleNamespace())
    text, _ = notebook.run("%lens trap")
    assert "`trap` is a Trap, not a model" in errors(text)[0]


def test_demo(
    notebook: Notebook, demo_model: tuple[PreTrainedModel, PreTrainedTokenizerBase]
) -> None:
    text, shown = notebook.run("%lens demo")
    assert sum(VIEW in out.data for out in shown) == 1
    explorer = notebook.explorer()
    assert explorer.prompt == "The capital of France is"
    assert explorer.wait(300)
    (top,) = explorer.trace.top(1)
    assert top.text == " Paris" and abs(top.probability - 0.77) < 0.01
    assert not errors(text)


def test_unload_takes_it_away(notebook: Notebook) -> None:
    notebook.run("%unload_ext lensview")
    text, _ = notebook.run("%lens demo")
    assert "not found" in text
    notebook.run("%load_ext lensview")
    assert "lens" in notebook.shell.magics_manager.magics["line"]


def test_ipywidgets_compose(notebook: Notebook, tiny_llama: LlamaForCausalLM) -> None:
    notebook.names["model"] = tiny_llama
    notebook.run("ex = %lens model")
    explorer = notebook.names["ex"]
    text = ipywidgets.Text()
    link = ipywidgets.link((explorer, "selected"), (text, "value"))
    text.value = "model.layers.1.mlp"
    assert explorer.selected == "model.layers.1.mlp"
    explorer.selected = "model.norm"
    assert text.value == "model.norm"
    assert ipywidgets.HBox([explorer]).children == (explorer,)
    link.unlink()
