"""What the tree is told of a run: calls, sizes and the user's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.errors import InputError, SiteError
from lensview.explorer import Explorer
from lensview.explorer.outputs import sizes_page
from lensview.explorer.overlays import Overlays
from lensview.session import LocalSession

from .conftest import Page, row

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

SITE = "model.layers.1.mlp"


def by_hand(model: nn.Module, inputs: Any, scale: float = 1.0) -> dict[str, list[Tensor]]:
    """Every module's outputs by plain hooks, with one module's output scaled."""
    seen: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Any:
        def see(module: nn.Module, args: Any, out: Any) -> Any:
            if name == SITE:
                out = out * scale
            main = (
                out
                if isinstance(out, Tensor)
                else next(iter(out.values()))
                if isinstance(out, dict)
                else out[0]
            )
            seen.setdefault(name, []).append(main.detach().clone())
            return out

        return see

    handles = [m.register_forward_hook(hook(n)) for n, m in model.named_modules()]
    with torch.no_grad():
        model(**inputs)
    for handle in handles:
        handle.remove()
    return seen


def rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())


def sizes(page: Page) -> tuple[list[Any], list[Any]]:
    """All pages of sizes: per row, the size and the size of the change."""
    found: list[Any] = []
    changes: list[Any] = []
    while True:
        part = page.ask("sizes", offset=len(found), limit=7)
        if not part["rms"]:
            return found, changes
        found += part["rms"]
        changes += part["changes"]


def test_sizes_are_those_of_plain_hooks(
    explorer: Explorer, page: Page, tiny_llama: LlamaForCausalLM
) -> None:
    page.ask("run", prompt="the capital of france")
    rows = [r.path for r in explorer.session.tree()]
    inputs = explorer.session.tokenizer("the capital of france", return_tensors="pt")
    inputs.pop("token_type_ids", None)
    plain = by_hand(tiny_llama, inputs)
    found, changes = sizes(page)
    assert len(found) == len(rows) and changes == []
    for path, value in zip(rows, found, strict=True):
        if path in plain and path:
            assert value == pytest.approx(rms(plain[path][0]), rel=1e-6), path
    assert found[rows.index("model.layers")] is None

    page.ask("interventions", rows=[row(SITE, "scale", "3")])
    edited = by_hand(tiny_llama, inputs, 3.0)
    _, changes = sizes(page)
    for path, value in zip(rows, changes, strict=True):
        if path in plain and path:
            gap = rms(edited[path][0].double() - plain[path][0].double())
            assert value == pytest.approx(gap, rel=1e-4, abs=1e-9), path
    assert changes[rows.index("model.layers.0.mlp")] == 0


class Twice(nn.Module):
    """One module twice, one never, one that gives NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.Tanh()
        self.never = nn.Linear(3, 3)
        self.log = Log()

    def forward(self, x: Tensor) -> Tensor:
        return self.log(self.act(self.act(x)))


class Log(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


@pytest.fixture
def twice() -> Iterator[Explorer]:
    made = Explorer(LocalSession(Twice()))
    yield made
    made.close()


def test_calls_and_odd_values(twice: Explorer) -> None:
    page = Page(twice)
    x = torch.tensor([[1.0, -1.0, 0.0]])
    twice.run(x)
    names = [r[0] for r in page.ask("tree", offset=0, limit=10)["rows"]]
    assert names == ["", "act", "never", "log"]
    told = page.ask("outputs", offset=0, limit=10)
    assert told["calls"] == [1, 2, 0, 1]
    assert [told["shapes"][i] if i >= 0 else "" for i in told["rows"]][1:3] == [
        "1 x 3, 2 calls",
        "",
    ]
    found = page.ask("sizes", offset=0, limit=10)
    assert found["odd"] == [2, 0, 0, 2] and found["rms"][2] is None
    assert found["rms"][1] == pytest.approx(rms(x.tanh()))
    assert found["rms"][3] == pytest.approx(abs(float(x[0, 0].tanh().tanh().log())))


def test_a_page_ends_when_its_time_is_over(explorer: Explorer) -> None:
    explorer.run("the capital")
    latest = explorer._runs.latest  # type: ignore[union-attr]
    many = explorer.session.tree() * 20
    short = sizes_page(explorer.session, many, latest, Overlays(), 0, len(many), seconds=0)
    assert 0 < len(short.rms) < len(many)


def test_overlays_of_modules(explorer: Explorer, page: Page) -> None:
    explorer.run("the capital")
    before = page.ask("hello")["state"]["overlays"]
    explorer.overlay("salience", {SITE: 0.5, "model.layers.0.mlp": torch.tensor(-2.0)})
    assert page.events()[-1]["overlays"] > before
    part = page.ask("sizes", offset=0, limit=1000)
    rows = [r.path for r in explorer.session.tree()]
    told = {p: v for p, v in zip(rows, part["overlay"], strict=True) if v is not None}
    assert part["overlay_name"] == "salience"
    assert told == {SITE: 0.5, "model.layers.0.mlp": -2.0}
    explorer.overlay("salience", None)
    part = page.ask("sizes", offset=0, limit=1000)
    assert part["overlay_name"] == "" and part["overlay"] == []


def test_overlays_of_tokens(explorer: Explorer, page: Page) -> None:
    explorer.run("the capital of")
    explorer.overlay("<b>loss</b>", {f"{SITE}:output": torch.tensor([1.0, float("nan"), 3.0])})
    explorer.overlay("all", [1, 2, 3])
    (here, everywhere) = page.ask("strips", site=SITE)["strips"]
    assert here == {"name": "<b>loss</b>", "values": [1.0, "nan", 3.0]}
    assert everywhere == {"name": "all", "values": [1.0, 2.0, 3.0]}
    assert [s["name"] for s in page.ask("strips", site="lm_head")["strips"]] == ["all"]
    explorer.run("the capital")
    assert page.ask("strips", site=SITE)["strips"] == [], "of another number of tokens"


@pytest.mark.parametrize(
    ("name", "values", "error", "says"),
    [
        ("", {SITE: 1}, InputError, "name"),
        ("a", {}, InputError, "None to clear"),
        ("a", {"model.layers.1.mpl": 1}, SiteError, "model.layers.1.mlp"),
        ("a", {SITE: torch.zeros(2, 2)}, InputError, "(2, 2)"),
        ("a", torch.zeros(5), InputError, "2 tokens"),
        ("a", {SITE: "x"}, InputError, "read"),
        ("a", {SITE: object()}, InputError, "object"),
        ("a", {SITE: 1, "lm_head": torch.zeros(2)}, InputError, "two names"),
    ],
)
def test_overlays_that_do_not_fit(
    explorer: Explorer, name: str, values: Any, error: type[Exception], says: str
) -> None:
    explorer.run("the capital")
    with pytest.raises(error) as caught:
        explorer.overlay(name, values)
    assert says in str(caught.value)


def test_rows_tell_quantized_and_offloaded() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)])
    model[2].weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), requires_grad=False)
    assert [r.note for r in lv.modules.tree(model)] == ["container", "", "no values", "quantized"]
    model[1].__dict__["_hf_hook"] = object()
    assert lv.modules.tree(model)[2].note == "offloaded"
