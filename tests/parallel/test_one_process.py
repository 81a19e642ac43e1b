"""What serves ranks, in a process that has none: digests, and the plain model."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.errors import InputError, SiteError
from lensview.parallel.agreement import digest
from lensview.parallel.byhand import gather, shard
from lensview.parallel.group import Ranks
from lensview.parallel.pack import Parcel
from lensview.parallel.weights import weight

IDS = torch.tensor([[1, 2, 3]])


def twice(factor: int) -> Callable[[Tensor], Tensor]:
    """Two functions of one name and place that differ in a constant alone."""
    return (lambda w: w * 2) if factor == 2 else (lambda w: w * 3)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (IDS, IDS.clone(), IDS + 1),
        (IDS, IDS.expand(1, 3), IDS[0]),
        (IDS, IDS.repeat(1, 2)[:, :3], IDS.int()),
        ({"a": IDS, "b": None}, {"a": IDS.clone(), "b": None}, {"a": IDS, "c": None}),
        ([IDS, 1.5], [IDS.clone(), 1.5], [IDS, 1.25]),
        ("text", "te" + "xt", "Text"),
        (["ab", "c"], ["ab", "c"], ["a", "bc"]),
        (True, True, 1),
        (slice(0, 3), slice(0, 3), slice(0, 4)),
        ({3, 1, 2}, {2, 1, 3}, {1, 2}),
        (np.arange(4), np.arange(4), np.arange(4)[::-1]),
        (torch.float32, torch.float32, torch.float16),
        (lv.scale("a.b", 2.0), lv.scale("a.b", 2.0), lv.scale("a.b", 2.5)),
        (lv.add("a", torch.ones(3)), lv.add("a", torch.ones(3)), lv.add("a", torch.zeros(3))),
        (twice(2), twice(2), twice(3)),
        (IDS.t().bfloat16(), IDS.bfloat16().t(), IDS.t().half()),
        (torch.zeros(2, device="meta"), torch.ones(2, device="meta"), torch.zeros(3)),
        (nn.Linear(2, 2), nn.Linear(2, 2), nn.ReLU()),
        (torch.tensor(3), torch.tensor(3), torch.tensor([3])),
    ],
)
def test_a_digest_is_of_what_is_held(one: Any, same: Any, other: Any) -> None:
    assert digest(one) == digest(same)
    assert digest(one) != digest(other)


def test_a_digest_is_the_same_in_another_process() -> None:
    code = (
        "import torch, lensview as lv; from lensview.parallel.agreement import digest;"
        "print(digest([lv.scale('a', 2.0), {'x': torch.ones(2)}, object(), print]), end='')"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert said == {digest([lv.scale("a", 2.0), {"x": torch.ones(2)}, object(), print])}


def test_a_tensors_digest_begins_with_what_it_is() -> None:
    assert digest(IDS).startswith("int64 [1, 3] ")


def test_on_a_whole_model_nothing_is_moved() -> None:
    model, value = nn.Linear(3, 2), torch.randn(2, 3, requires_grad=True)
    assert Ranks.of(model) is None
    assert gather(model, value) is value and shard(model, value, 0) is value


def test_weights_of_a_whole_model() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    held = model[0].weight
    assert isinstance(held, Tensor)
    whole = weight(model, "0.weight")
    assert torch.equal(whole, held) and whole.data_ptr() != held.data_ptr()
    assert not whole.requires_grad
    assert torch.equal(weight(model, "0.weight", [4, 0, -1]), held[[4, 0, -1]])
    assert torch.equal(weight(model, "0.weight", slice(1, 4)), held[1:4])
    assert weight(model, "0.weight", []).shape == (0, 3)
    assert torch.equal(weight(model, "1.running_var"), torch.ones(5))
    assert weight(model, "1.num_batches_tracked").item() == 0
    for name in ("0.wieght", "0", "2.weight", ""):
        with pytest.raises(SiteError, match="no parameter or buffer"):
            weight(model, name)
    with pytest.raises(InputError, match="no row 5"):
        weight(model, "0.weight", [5])
    with pytest.raises(InputError, match="one number"):
        weight(model, "1.num_batches_tracked", [0])
    with pytest.raises(InputError, match=r"offloaded.*\(2, 3\)"):
        weight(nn.Linear(3, 2, device="meta"), "weight")


def test_parcels_give_back_what_was_packed() -> None:
    values = [torch.tensor([True]), torch.randn(3, dtype=torch.float64), torch.ones(2, 3).t()[:2]]
    parcel = Parcel([v.dtype for v in values], [[tuple(v.shape)] for v in values])
    row = parcel.pack(values, torch.device("cpu"))
    assert row.dtype is torch.uint8 and parcel.length == row.numel() == 1 + 24 + 16
    for one, other in zip(parcel.unpack(row, 0), values, strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype


def test_nothing_heavy_is_imported_without_ranks() -> None:
    modules = "byhand weights agreement degrees group moves placements".split()
    code = "import sys\n" + "".join(f"import lensview.parallel.{name}\n" for name in modules)
    code += "from torch import nn; lensview.parallel.byhand.gather(nn.Linear(1, 1), None)\n"
    code += "print([name for name in ('torch.distributed.tensor', 'torch.distributed.fsdp',"
    code += "'transformers.distributed') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
