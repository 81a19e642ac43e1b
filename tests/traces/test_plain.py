"""Values that are no tensor: kept as they were at the call, saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.traces.plain import CacheSummary, ObjectSummary, from_json, plain, to_json

IDS = torch.tensor([[5, 17, 3, 9]])


class Takes(nn.Module):
    """Takes anything as `extra`."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        return x + 1


class Model(nn.Module):
    def __init__(self, extra: Any) -> None:
        super().__init__()
        self.inner, self.extra = Takes(), extra

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(self.inner(x, extra=self.extra), extra="second")
        return out


@pytest.mark.parametrize("value", [None, True, 3, 2.5, float("inf"), "text", [], object()])
def test_a_plain_argument_is_kept_by_value_or_by_its_type(value: Any, tmp_path: Path) -> None:
    trace = lv.trace(Model(value), torch.ones(2), "inner:input[extra]")
    simple = value is None or isinstance(value, (bool, int, float, str))
    expected = value if simple else ObjectSummary(type(value).__name__)
    assert trace.value("inner:input[extra]@0") == expected
    assert type(trace.value("inner:input[extra]@0")) is type(expected)
    assert trace.value("inner:input[extra]@1") == "second"
    with pytest.raises(lv.SiteError, match="2 times"):
        trace.value("inner:input[extra]")
    with pytest.raises(lv.NotRecordedError, match=r"no tensor.*trace\.value"):
        trace["inner:input[extra]@1"]
    assert trace.sites == () and trace.missed == {}
    trace.save(tmp_path / "t.safetensors")
    assert lv.load(tmp_path / "t.safetensors").plain == trace.plain


def test_a_cache_is_what_it_was_at_the_call_and_never_what_it_became(
    tiny_llama: Any, tmp_path: Path
) -> None:
    with torch.no_grad():
        output = tiny_llama(IDS, use_cache=True)
    name = "cache" if "cache" in output else "past_key_values"  # transformers renamed it
    cache = output[name]
    site, end = f"model.layers.1.self_attn:input[{name}]", f":output[{name}]"
    call = {"input_ids": IDS[:, :2], name: cache}
    trace = lv.trace(tiny_llama, call, [site, end, ":input[input_ids]"])
    # Layer 0 has added its 2 tokens when layer 1 is called; layers 1 and 2 have not.
    assert trace.value(site) == CacheSummary(type(cache).__name__, (6, 4, 4))
    whole = trace.value(end)
    assert isinstance(whole, CacheSummary) and whole.lengths == (6, 6, 6)
    with torch.no_grad():
        tiny_llama(**{**call, "input_ids": IDS})
    assert cache.get_seq_length() == 10
    assert trace.value(site) == CacheSummary(type(cache).__name__, (6, 4, 4))
    with pytest.raises(lv.NotRecordedError, match=r"DynamicCache of 3 layers.*trace\.value"):
        trace[site]
    with pytest.raises(lv.NotRecordedError, match="is a tensor"):
        trace.value(":input[input_ids]")
    trace.save(tmp_path / "t.safetensors")
    assert lv.load(tmp_path / "t.safetensors").value(site) == trace.value(site)


def test_a_cache_with_layers_that_count_nothing() -> None:
    class State:
        def get_seq_length(self) -> int:
            raise ValueError("a recurrent state has no length")

    class Layer:
        def get_seq_length(self) -> int:
            return 5

    class Hybrid(State):
        layers = (State(), Layer())

    assert plain(Hybrid()) == CacheSummary("Hybrid", (None, 5))
    assert plain(State()) == CacheSummary("State", (None,))


@pytest.mark.parametrize(
    "value",
    [None, False, -1, 0.5, float("-inf"), "ü", CacheSummary("C", (None, 2)), ObjectSummary("X")],
)
def test_the_json_is_strict_and_comes_back(value: Any) -> None:
    text = json.dumps(to_json(value), allow_nan=False)
    assert from_json(json.loads(text)) == value


def test_globs_select_only_tensors() -> None:
    trace = lv.trace(Model(3), torch.ones(2), "**:input[x]")
    assert trace.plain == {} and trace.missed == {}
