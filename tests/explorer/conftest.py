"""A real small model and tokenizer, and a page that talks to an explorer as the browser's does."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import comm.base_comm
import pytest
from ipywidgets.widgets.widget import _instances
from torch import nn

from lensview.explorer import Explorer
from lensview.explorer.protocol import MAX_MESSAGE_BYTES
from lensview.session import LocalSession

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

ANSWERS = ("ok", "error", "cancelled")
WORDS = ["the", "capital", "of", "france", "is", "paris", "a", "b", "c", "d", "e", "f", "g", "h"]


class Wire(comm.base_comm.BaseComm):
    """A comm whose other end is this test. Every message is held to the protocol's limits."""

    def __init__(self) -> None:
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.arrived = threading.Condition()
        super().__init__(target_name="test")

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        # As jupyter_client writes it.
        text = json.dumps(data or {}, allow_nan=False, ensure_ascii=False)
        size = len(text.encode()) + sum(len(b) for b in buffers or [])
        assert size <= MAX_MESSAGE_BYTES + 1024 or "_esm" in text
        with self.arrived:
            self.sent.append((json.loads(text), [bytes(b) for b in buffers or []]))
            self.arrived.notify_all()


class Page:
    """The other end of an explorer."""

    def __init__(self, explorer: Explorer, wire: Wire | None = None, view: str = "one") -> None:
        self.view = view
        self.wire = wire or Wire()
        self._ids = (f"{view}.{i}" for i in itertools.count())
        if wire is None:
            del _instances[explorer.model_id]  # ipywidgets would keep it under both comms
            explorer.comm = self.wire

    def second(self, explorer: Explorer) -> Page:
        """Another view of the same widget."""
        return Page(explorer, self.wire, "two")

    def deliver(self, content: Any, buffers: list[bytes] | None = None) -> None:
        """Hand a message to the widget as ipywidgets does."""
        data = {"method": "custom", "content": content}
        self.wire.handle_msg({"content": {"data": data}, "buffers": buffers or []})

    def send(self, request_method: str, *, key: str = "", **params: Any) -> str:
        """Send a request; its id."""
        name = next(self._ids)
        self.deliver(
            {
                "kind": "req",
                "id": name,
                "view": self.view,
                "method": request_method,
                "params": params,
                "key": key,
            }
        )
        return name

    def custom(self) -> list[tuple[dict[str, Any], list[bytes]]]:
        """Every custom message so far, with its buffers."""
        with self.wire.arrived:
            return [(d["content"], b) for d, b in self.wire.sent if d.get("method") == "custom"]

    def of(self, name: str, *kinds: str) -> list[dict[str, Any]]:
        """The messages about a request, in order."""
        return [m for m, _ in self.custom() if m.get("id") == name and m["kind"] in kinds]

    def events(self) -> list[dict[str, Any]]:
        """The states that came unasked."""
        return [m["state"] for m, _ in self.custom() if m["kind"] == "event"]

    def answer(self, name: str, timeout: float = 60) -> dict[str, Any]:
        """Wait for the one answer."""
        self.until(lambda: bool(self.of(name, *ANSWERS)), timeout, f"no answer to {name}")
        (answer,) = self.of(name, *ANSWERS)
        return answer

    def until(self, true: Callable[[], bool], timeout: float = 60, why: str = "") -> None:
        """Wait for something that a message brings."""
        end = time.monotonic() + timeout
        while not true():
            with self.wire.arrived:
                self.wire.arrived.wait(0.02)
            assert time.monotonic() < end, why

    def ask(self, request_method: str, **params: Any) -> dict[str, Any]:
        """The result of a request that must succeed."""
        answer = self.answer(self.send(request_method, **params))
        assert answer["kind"] == "ok", answer
        result: dict[str, Any] = answer["result"]
        return result

    def refused(self, request_method: str, **params: Any) -> dict[str, Any]:
        """The error of a request that must fail."""
        answer = self.answer(self.send(request_method, **params))
        assert answer["kind"] == "error", answer
        return answer

    def cells(self, name: str) -> bytes:
        """The buffer of a tile's answer."""
        (buffers,) = [b for m, b in self.custom() if m.get("id") == name and m["kind"] == "ok"]
        (cells,) = buffers
        return cells


class Gate:
    """Holds a model's forward at one module until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.passes = 0

    @contextmanager
    def on(self, module: nn.Module) -> Iterator[Gate]:
        def hold(*_: Any) -> None:
            self.passes += 1
            self.reached.set()
            assert self.opened.wait(60)

        handle = module.register_forward_pre_hook(hold)
        try:
            yield self
        finally:
            self.opened.set()
            handle.remove()


def hooks(model: nn.Module) -> list[tuple[list[int], list[int]]]:
    """The hooks of every module, to be compared before and after."""
    return [(list(m._forward_hooks), list(m._forward_pre_hooks)) for m in model.modules()]


def row(site: str, operation: str = "scale", value: str = "0", **more: Any) -> dict[str, Any]:
    """A row of the interventions table as the page sends it."""
    body = {"id": f"{operation} {site}", "enabled": True, "site": site, "operation": operation}
    return {
        **body,
        "index": "",
        "value": value,
        "locked": False,
        "error": "",
        "changed": None,
    } | more


def tile_of(site: str, **more: Any) -> dict[str, Any]:
    """The params of a tile as the page asks for it first."""
    body: dict[str, Any] = {"site": site, "which": "latest", "window": None, "index": []}
    return {**body, "max_rows": 512, "max_columns": 512} | more


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; real, and made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {w: i for i, w in enumerate(["[UNK]", "[PAD]", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="[UNK]", pad_token="[PAD]", model_max_length=64
    )


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test closes the explorers that it makes."""
    before = set(_explorers())
    yield
    left = [e for e in _explorers() if e not in before]
    for explorer in left:
        explorer.close()
    assert left == []


def _explorers() -> list[Explorer]:
    return [w for w in _instances.values() if isinstance(w, Explorer)]


@pytest.fixture
def explorer(
    tiny_llama: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> Iterator[Explorer]:
    """An explorer of the tiny model."""
    made = Explorer(LocalSession(tiny_llama, tokenizer))
    yield made
    made.close()


@pytest.fixture
def page(explorer: Explorer) -> Page:
    """A page on it."""
    return Page(explorer)
