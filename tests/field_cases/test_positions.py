"""Field cases O13 to O17: padding, steps, precision and odd layouts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.tensors.stats import stats
from lensview.tensors.tiles import tile

LONG, SHORT = [5, 17, 3, 9, 44], [8, 21]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def batch(side: str) -> dict[str, Tensor]:
    pads = [0] * (len(LONG) - len(SHORT))
    row = [*pads, *SHORT] if side == "left" else [*SHORT, *pads]
    real = [0] * len(pads), [1] * len(SHORT)
    mask = [*real[0], *real[1]] if side == "left" else [*real[1], *real[0]]
    ids = torch.tensor([LONG, row])
    return {"input_ids": ids, "attention_mask": torch.tensor([[1] * len(LONG), mask])}


@pytest.mark.parametrize("side", ["left", "right"])
def test_o13_padded_batches(tiny_llama: nn.Module, side: str) -> None:
    """Values at real tokens are the single runs'; a token index counts real tokens only."""
    layer, inputs = "model.layers.1", batch(side)
    trace = lv.trace(tiny_llama, inputs, layer)
    assert trace.tokens is not None and trace.logits is not None
    for row, ids in enumerate([LONG, SHORT]):
        alone = lv.trace(tiny_llama, torch.tensor([ids]), layer)
        assert alone.logits is not None
        columns = trace.tokens.positions(row)
        assert torch.allclose(trace[layer][row, columns], alone[layer][0], rtol=0, atol=1e-5)
        assert torch.allclose(trace.logits[row], alone.logits[0], rtol=0, atol=1e-5)
    assert trace.tokens.mask.tolist() == (inputs["attention_mask"] != 0).tolist()
    first, last = (0, 4) if side == "right" else (3, 4)
    edited = lv.trace(tiny_llama, inputs, layer, lv.put(layer, 7.0, lv.at(batch=1, token=0)))
    assert _columns_of(edited[layer], 7.0) == [(1, 0 if side == "right" else first)]
    edited = lv.trace(tiny_llama, inputs, layer, lv.put(layer, 7.0, lv.at(token=-1)))
    assert _columns_of(edited[layer], 7.0) == [(0, last), (1, 1 if side == "right" else last)]
    with pytest.raises(lv.InterventionError, match="2 real tokens"):
        lv.trace(tiny_llama, inputs, (), lv.zero(layer, lv.at(batch=1, token=2)))


def _columns_of(tensor: Tensor, value: float) -> list[tuple[int, int]]:
    return [(int(b), int(t)) for b, t in (tensor == value).all(-1).nonzero()]


def test_o14_what_a_position_means_in_a_step_that_continues_a_cache(tiny_llama: Any) -> None:
    """A step is a run of its own: its tokens are its own, and the rest is said to be absent."""
    ids = torch.tensor([LONG])
    whole = lv.trace(tiny_llama, ids, "model.layers.2")
    with torch.no_grad():
        output = tiny_llama(ids[:, :4], use_cache=True)
    name = "cache" if "cache" in output else "past_key_values"
    step = {"input_ids": ids[:, 4:], name: output[name]}
    trace = lv.trace(tiny_llama, step, "model.layers.2")
    assert trace["model.layers.2"].shape == (1, 1, 16)
    assert torch.allclose(
        trace["model.layers.2"], whole["model.layers.2"][:, 4:], rtol=0, atol=1e-5
    )
    with pytest.raises(lv.InterventionError, match="1 real tokens"):
        lv.trace(tiny_llama, {**step}, (), lv.zero("model.layers.2", lv.at(token=2)))


def _bits(tensor: Tensor) -> list[int]:
    return tensor.contiguous().flatten().view(torch.uint8).tolist()


def test_o15_bfloat16_on_the_way_to_numpy(tiny_llama: nn.Module, tmp_path: Path) -> None:
    """Captured, counted, drawn, saved and loaded in its own dtype, NaN and -0.0 included."""
    trace = lv.trace(tiny_llama.bfloat16(), torch.tensor([LONG]), "**")
    assert {t.dtype for t in trace.values() if t.is_floating_point()} >= {torch.bfloat16}
    odd = torch.tensor([[1.5, float("nan"), -0.0, float("-inf")]])
    dtypes = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
    for dtype in [*dtypes, torch.complex64, torch.int64, torch.bool]:
        value = (
            odd.nan_to_num(0, 0, 0).to(dtype)
            if dtype in (torch.int64, torch.bool)
            else odd.to(dtype)
        )
        held = lv.trace(nn.Identity(), value, ":output")
        assert _bits(held[":output"]) == _bits(value) and held[":output"].dtype == dtype
        held.save(tmp_path / "odd.safetensors")
        again = lv.load(tmp_path / "odd.safetensors")[":output"]
        assert again.dtype == dtype and _bits(again) == _bits(value)
        counted = stats(held[":output"])
        assert counted.count == 4 and counted.dtype == str(dtype).removeprefix("torch.")
        assert tile(held[":output"], max_rows=4, max_columns=4) is not None
    big = torch.full((1 << 12,), 1.0, dtype=torch.bfloat16)
    assert stats(big).mean == 1.0  # a sum in bfloat16 would stop at 256
    assert lv.figures.heatmap(trace, "model.layers.0") is not None


@cuda
def test_o16_asynchronous_copy_to_cpu() -> None:
    """Bit-identical each time, also when read in another thread and after the memory is reused."""
    x = torch.randn(1 << 22, device="cuda")
    model = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    for _ in range(20):
        trace = lv.trace(model, x.clone(), "0")
        read: list[Tensor] = []
        thread = threading.Thread(target=lambda t=trace, r=read: r.append(t["0"].cpu()))
        torch.empty_like(x).fill_(-1)
        thread.start()
        thread.join()
        assert torch.equal(read[0], x.cpu())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_o17_nested_tensors_out_of_transformer_encoder(tmp_path: Path) -> None:
    """Captured as they are: real rows only; counted, drawn and saved."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 4, 8)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    dense = model.layers[0](x, src_key_padding_mask=padding).detach()
    inputs = {"src": x, "src_key_padding_mask": padding}
    trace = lv.trace(model, inputs, ["layers.0", ":output"], keep_output=True)
    nested = trace["layers.0"]
    assert nested.is_nested
    for row, (got, real) in enumerate(zip(nested.unbind(), (4, 2), strict=True)):
        assert torch.allclose(got, dense[row, :real], rtol=0, atol=1e-5)
    assert not trace[":output"].is_nested and trace[":output"][1, 2:].abs().sum() == 0
    assert stats(nested).count == 6 * 8
    assert tile(nested) is not None
    trace.save(tmp_path / "nested.safetensors")
    again = lv.load(tmp_path / "nested.safetensors")["layers.0"]
    assert again.is_nested
    assert all(torch.equal(a, b) for a, b in zip(again.unbind(), nested.unbind(), strict=True))
    sparse = torch.eye(3).to_sparse()
    held = lv.trace(nn.Identity(), sparse, ":output")
    assert torch.equal(held[":output"].to_dense(), torch.eye(3))
