"""Files of sparse, nested and otherwise unusual tensors: bit for bit, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import lensview as lv

from .test_storage import bits, made_of

BASE = torch.tensor([[0, 0, 1.5, 0], [0, -2, 0, float("nan")]])
AT = torch.tensor([[0, 0], [1, 1]])
LAYOUTS = {
    "coo": BASE.to_sparse(),
    "coo.uncoalesced": torch.sparse_coo_tensor(AT, torch.tensor([1.0, 2.0]), (2, 3)),
    "coo.hybrid": torch.sparse_coo_tensor(AT[1:] - 1, torch.ones(2, 3).bfloat16(), (2, 3)),
    "coo.empty": torch.sparse_coo_tensor(torch.zeros(2, 0).long(), torch.zeros(0), (2, 3)),
    "csr": BASE.to_sparse_csr(),
    "csc": BASE.to_sparse_csc(),
    "bsr": BASE.to_sparse_bsr((1, 2)),
    "bsc": BASE.to_sparse_bsc((2, 2)),
}


def pieces(tensor: Tensor) -> list[Tensor]:
    """The plain tensors that a sparse one is made of, by PyTorch's own accessors."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    names = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
    return [*(getattr(tensor, name)() for name in names), tensor.values()]


def test_sparse_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    made_of(LAYOUTS).save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    for name, tensor in LAYOUTS.items():
        got = again[name]
        assert (got.layout, got.dtype, got.shape) == (tensor.layout, tensor.dtype, tensor.shape)
        assert [bits(p) for p in pieces(got)] == [bits(p) for p in pieces(tensor)], name
    assert not again["coo.uncoalesced"].is_coalesced() and again["coo"].is_coalesced()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_come_back_as_they_were(layout: torch.layout, tmp_path: Path) -> None:
    parts = [torch.randn(n, 3).bfloat16() for n in (2, 4, 1)]
    made_of({"a": torch.nested.nested_tensor(parts, layout=layout)}).save(tmp_path / "a")
    loaded = lv.load(tmp_path / "a")
    assert loaded.shape("a") == (3, 4, 3)
    again = loaded["a"]
    assert again.is_nested and again.layout == layout
    assert [bits(p) for p in again.unbind()] == [bits(p) for p in parts]


def test_complex_numbers_without_a_name_in_safetensors(tmp_path: Path) -> None:
    wide = torch.complex(
        torch.tensor([float("nan"), -0.0]).double(), torch.tensor([1.0, 2]).double()
    )
    made_of({"a": wide, "b": wide.conj(), "c": wide[0]}).save(tmp_path / "a")
    again = lv.load(tmp_path / "a")
    assert again.dtype("a") == torch.complex128 and again.shape("c") == ()
    for name, tensor in {"a": wide, "b": wide.conj(), "c": wide[0]}.items():
        assert bits(again[name]) == np.asarray(tensor.resolve_conj()).tobytes()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_cannot_be_stored_is_named(tmp_path: Path) -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], layout=torch.jagged)
    refused = {
        "a quantized tensor": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "on the meta device": torch.ones(2, device="meta"),
        "jagged tensor seen as a view": jagged.transpose(1, 2),
        "mkldnn": torch.ones(2, 2).to_mkldnn(),
    }
    for what, tensor in refused.items():
        with pytest.raises(lv.TraceFileError, match=f"odd is .*{what}"):
            made_of({"odd": tensor}).save(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
