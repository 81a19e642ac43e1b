"""Conversions: arrays, labelled arrays and tables, beside numpy by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lensview as lv

from .test_storage import made_of, odd_tensors

MLP, ATTENTION = "model.layers.0.mlp", "model.layers.0.self_attn"
WEIGHTS = f"{ATTENTION}:output[1]"
PADDED = {
    "input_ids": torch.tensor([[5, 17, 3, 9, 1, 2], [8, 90, 0, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]),
}


@pytest.fixture
def trace(tiny_llama: Any) -> lv.Trace:
    tiny_llama.config._attn_implementation = "eager"
    sites = ["**", "model.layers.*.mlp.act_fn", WEIGHTS]
    return lv.trace(tiny_llama.bfloat16(), PADDED, sites)


def test_numpy_keeps_every_value(tmp_path: Path) -> None:
    tensors = {k: v for k, v in odd_tensors().items() if v.dtype != torch.float8_e4m3fn}
    trace = made_of(tensors)
    for site, tensor in tensors.items():
        array = trace.to_numpy(site)
        assert array.shape == tuple(tensor.shape)
        if tensor.dtype == torch.bfloat16:
            assert array.dtype == np.float32
            bits = (array.view(np.uint32) >> 16).astype(np.uint16)
            assert bits.tolist() == tensor.view(torch.uint16).tolist()
        else:
            assert array.dtype == tensor.resolve_conj().numpy().dtype
            assert array.tobytes() == np.ascontiguousarray(tensor.resolve_conj().numpy()).tobytes()
    eighth = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn)
    again = torch.from_numpy(made_of({"a": eighth}).to_numpy("a")).to(torch.float8_e4m3fn)
    known = ~eighth.float().isnan()
    assert torch.equal(again.view(torch.uint8)[known], eighth.view(torch.uint8)[known])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_array_is_a_copy_and_a_nested_tensor_has_none() -> None:
    trace = made_of({"a": torch.ones(3), "b": torch.nested.nested_tensor([torch.ones(2)])})
    trace.to_numpy("a")[0] = 7
    assert trace["a"].tolist() == [1, 1, 1]
    with pytest.raises(TypeError, match="b is a nested tensor"):
        trace.to_numpy("b")
    with pytest.raises(lv.NotRecordedError, match="c was not asked for"):
        trace.to_numpy("c")


def test_xarray_has_named_dims_and_tokens(trace: lv.Trace) -> None:
    data = trace.to_xarray()
    assert set(data.data_vars) == set(trace.sites)
    assert data[MLP].dims == ("batch", "token", "feature")
    assert data["model.layers.0.mlp.act_fn"].dims == ("batch", "token", "feature_32")
    assert data[WEIGHTS].dims == ("batch", "head", "token", "key")
    assert data["lm_head"].dims == ("batch", "token", "feature_101")
    assert data[MLP].attrs["dtype"] == "bfloat16"
    assert data[MLP].attrs["remark"] == "bfloat16 widened to float32, exactly"
    # By label and by hand.
    by_hand = trace[MLP].float().numpy()[0, 3]
    np.testing.assert_array_equal(data[MLP].isel(batch=0).sel(token=3).values, by_hand)
    assert data["token_id"].values.tolist() == PADDED["input_ids"].tolist()
    assert data["token_label"].values[1].tolist() == ["#8", "#90", "", "", "", ""]
    real = data[MLP].where(data["token_real"]).mean("token").values
    mask = PADDED["attention_mask"][:, :, None].numpy().astype(bool)
    expected = np.nanmean(np.where(mask, trace[MLP].float().numpy(), np.nan), axis=1)
    np.testing.assert_allclose(real, expected, rtol=1e-6)
    assert json.loads(data.attrs["meta"])["config"]["num_attention_heads"] == 4


def test_dims_that_could_be_two_things_are_numbered(tiny_llama: Any) -> None:
    tiny_llama.config._attn_implementation = "eager"
    four = torch.tensor([[5, 17, 3, 9]])  # as many tokens as heads
    data = lv.trace(tiny_llama, four, [WEIGHTS, MLP]).to_xarray()
    assert data[WEIGHTS].dims == ("dim0_1", "dim1_4", "dim2_4", "dim3_4")
    assert data[MLP].dims == ("batch", "token", "feature")
    cut = lv.trace(tiny_llama, four, MLP, keep=lv.at(token=-1)).to_xarray()
    assert cut[MLP].dims == ("dim0_1", "dim1_1", "dim2_16")
    assert "token=-1" in cut[MLP].attrs["kept"]


def test_flattened_tokens_have_their_places(tiny_mixtral: nn.Module) -> None:
    gate = "model.layers.0.mlp.gate"
    data = lv.trace(tiny_mixtral, PADDED, gate).to_xarray()
    assert data[gate].dims == ("flat_token", "feature")
    at = (data["flat_batch"] == 1) & (data["flat_position"] == 1)
    assert data["flat_token_id"].values[at.values].tolist() == [90]


def test_tables_of_statistics(trace: lv.Trace) -> None:
    table = trace.to_pandas()
    assert list(table.index) == list(trace.sites)
    row, values = table.loc[MLP], trace[MLP].double().numpy()
    for name, expected in {
        "mean": values.mean(),
        "std": values.std(),
        "min": values.min(),
        "max": values.max(),
        "rms": np.sqrt((values**2).mean()),
    }.items():
        assert row[name] == pytest.approx(expected, rel=1e-9), name
    assert row["count"] == values.size and list(row["shape"]) == [2, 6, 16]
    arrow = trace.to_arrow("**.mlp")
    assert arrow.column("site").to_pylist() == [f"model.layers.{i}.mlp" for i in range(3)]
    assert (
        arrow.column("rms").to_pylist()
        == table.loc[arrow.column("site").to_pylist(), "rms"].tolist()
    )
    assert arrow.column("shape").to_pylist()[0] == [2, 6, 16]


def test_tables_of_values_without_numbers() -> None:
    trace = made_of({"a": torch.tensor([float("nan"), float("inf")]), "b": torch.zeros(0)})
    arrow = trace.to_arrow().to_pylist()
    assert [row["mean"] for row in arrow] == [None, None]
    assert (arrow[0]["nan"], arrow[0]["posinf"], arrow[1]["count"]) == (1, 1, 0)
    assert trace.to_pandas()["mean"].isna().all()


def test_a_loaded_trace_converts_alike(trace: lv.Trace, tmp_path: Path) -> None:
    trace.save(tmp_path / "a")
    assert lv.load(tmp_path / "a").to_xarray().identical(trace.to_xarray())


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("xarray", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    yield


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("name", ["xarray", "pandas", "arrow"])
def test_what_is_missing_says_how_to_install_it(name: str, tiny_gpt2: nn.Module) -> None:
    trace = lv.trace(tiny_gpt2, torch.tensor([[1, 2]]), "transformer.h.0")
    with pytest.raises(lv.MissingExtraError, match=rf"pip install 'lensview\[{name}\]'"):
        getattr(trace, f"to_{name}")()
