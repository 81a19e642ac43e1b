"""Interventions: each against the same change written by hand, and every rule for what fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lensview as lv
from lensview.errors import InterventionError, NotRecordedError
from lensview.operations import apply
from lensview.regions import Frame
from lensview.sites import Site

SITE = Site("x", call=0)


def applied(edit: lv.Intervention, tensor: Tensor, frame: Frame | None = None) -> Tensor:
    before = tensor.clone()
    result, changed = apply(edit, tensor, SITE, frame or Frame())
    assert torch.equal(tensor.nan_to_num(), before.nan_to_num()), "the value itself was written to"
    assert result.dtype == tensor.dtype and result.device == tensor.device
    both = (result == before) | (result.isnan() & before.isnan())
    assert int(changed) == int((~both).sum())
    return result


CASES: list[tuple[lv.Intervention, Callable[[Tensor], Any]]] = [
    (lv.zero("x"), lambda t: t.zero_()),
    (lv.zero("x", (0, slice(1, 3))), lambda t: t[0, 1:3].zero_()),
    (lv.scale("x", 2.5), lambda t: t.mul_(2.5)),
    (lv.scale("x", torch.arange(4.0), (slice(None), -1)), lambda t: t[:, -1].mul_(torch.arange(4))),
    (lv.add("x", 3), lambda t: t.add_(3)),
    (lv.add("x", torch.ones(4)), lambda t: t.add_(1)),
    (lv.add("x", torch.ones(2, 1, 1)), lambda t: t.add_(1)),
    (lv.put("x", -1.5, (..., [0, 3])), lambda t: t.__setitem__((..., [0, 3]), -1.5)),
    (lv.put("x", torch.arange(4.0), 1), lambda t: t[1].copy_(torch.arange(4.0))),
    (lv.clamp("x", -0.5, 0.5), lambda t: t.clamp_(-0.5, 0.5)),
    (lv.clamp("x", high=0.0), lambda t: t.clamp_(max=0)),
    (lv.patch("x", torch.full((2, 5, 4), 9.0), (0, 2)), lambda t: t[0, 2].fill_(9)),
]


@pytest.mark.parametrize(("edit", "by_hand"), CASES, ids=lambda c: str(c) if c else "")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_equals_the_same_change_by_hand(
    edit: lv.Intervention, by_hand: Callable[[Tensor], Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(2, 5, 4).to(dtype)
    expected = tensor.clone()
    by_hand(expected)
    assert torch.equal(applied(edit, tensor), expected)


def test_eight_bit_floats_are_computed_wide_and_come_back_as_they_were() -> None:
    tensor = torch.tensor([0.5, -2.0, 3.5]).to(torch.float8_e4m3fn)
    for edit, expected in ((lv.add("x", 1.0), [1.5, -1, 4.5]), (lv.scale("x", 2), [1, -4, 7])):
        result, changed = apply(edit, tensor, SITE, Frame())
        assert result.dtype == tensor.dtype and result.float().tolist() == expected
        assert int(changed) == 3
    kept, changed = apply(lv.patch("x", tensor), tensor, SITE, Frame())
    assert int(changed) == 0 and torch.equal(kept.float(), tensor.float())


@pytest.mark.parametrize("kind", ["sparse", "nested"])
def test_layouts_that_no_operation_can_change_are_refused_by_name(kind: str) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    tensor = torch.eye(3).to_sparse() if kind == "sparse" else nested
    with pytest.raises(InterventionError, match=f"zero at x: the value is a {kind}"):
        apply(lv.zero("x"), tensor, SITE, Frame())


def test_nan_is_zeroed_kept_by_clamp_and_not_counted_as_changed() -> None:
    tensor = torch.tensor([[float("nan"), 5.0]])
    assert applied(lv.zero("x"), tensor).tolist() == [[0, 0]]
    kept = applied(lv.clamp("x", 0, 1), tensor)
    assert kept.isnan().tolist() == [[True, False]]
    _, changed = apply(lv.patch("x", tensor), tensor, SITE, Frame())
    assert int(changed) == 0


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (torch.ones(5), None),
        (torch.ones(1), None),
        (torch.ones(2, 4), (slice(None), slice(1, 3))),
        (torch.ones(3, 5, 4), None),
        (torch.ones(2, 5, 4), (0,)),
        (torch.ones(1, 1, 1, 1), None),
    ],
    ids=lambda v: str(getattr(v, "shape", v)),
)
def test_nothing_but_the_rule_broadcasts(value: Tensor, index: Any) -> None:
    for make in (lv.add, lv.scale, lv.put):
        with pytest.raises(InterventionError, match=r"at x: .*shape") as caught:
            apply(make("x", value, index), torch.zeros(2, 5, 4), SITE, Frame())
        assert str(tuple(value.shape)) in str(caught.value)


def test_a_patch_needs_equal_shapes_and_reads_the_source_by_its_own_tokens() -> None:
    with pytest.raises(InterventionError, match="equal"):
        apply(lv.patch("x", torch.zeros(2, 6, 4)), torch.zeros(2, 5, 4), SITE, Frame())
    longer = torch.arange(7.0).reshape(1, 7, 1).expand(1, 7, 4)
    source = {"x": longer}
    mask = torch.ones(1, 5, dtype=torch.bool)
    # The last token of each: -1 is column 6 in the source, column 4 in the run.
    edit = lv.patch("x", _Source(source, torch.ones(1, 7, dtype=torch.bool)), lv.at(token=-1))
    result = applied(edit, torch.zeros(1, 5, 4), Frame(mask))
    assert result[0, :, 0].tolist() == [0, 0, 0, 0, 6]


class _Source(dict[str, Tensor]):
    """A mapping that has tokens, as a Trace has."""

    def __init__(self, records: dict[str, Tensor], mask: Tensor) -> None:
        super().__init__(records)
        self.tokens = type("Tokens", (), {"mask": mask})


def test_tokens_on_other_columns_in_each_row() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    tensor = torch.zeros(2, 3, 4)
    per_row = torch.tensor([1.0, 2.0]).reshape(2, 1, 1)
    result = applied(lv.add("x", per_row, lv.at(token=-1)), tensor, Frame(mask))
    assert result[:, :, 0].tolist() == [[0, 1, 0], [0, 0, 2]]
    with pytest.raises(InterventionError):
        applied(lv.add("x", torch.ones(2, 2, 4), lv.at(token=-1)), tensor, Frame(mask))


def test_whole_numbers_are_never_rounded_silently() -> None:
    ids, flags = torch.tensor([1, 2]), torch.tensor([True, False])
    for edit in (lv.scale("x", 2), lv.add("x", 0.5), lv.put("x", 1.5), lv.add("x", torch.ones(2))):
        with pytest.raises(InterventionError, match="round"):
            apply(edit, ids, SITE, Frame())
    assert applied(lv.add("x", 3), ids).tolist() == [4, 5]
    assert applied(lv.put("x", torch.tensor([7, 8])), ids).tolist() == [7, 8]
    with pytest.raises(InterventionError):
        apply(lv.add("x", 1), flags, SITE, Frame())
    with pytest.raises(InterventionError, match="complex"):
        apply(lv.put("x", torch.ones(2, dtype=torch.complex64)), torch.ones(2), SITE, Frame())


def test_what_makes_no_sense_is_refused_when_it_is_made() -> None:
    with pytest.raises(InterventionError, match="number"):
        lv.scale("x", "2")  # type: ignore[arg-type]
    with pytest.raises(InterventionError, match="above"):
        lv.clamp("x", 2, 1)
    with pytest.raises(InterventionError, match="low, high"):
        lv.clamp("x")
    with pytest.raises(InterventionError, match="numbers"):
        lv.clamp("x", torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(NotRecordedError, match="'mlp'"):
        lv.patch("mpl", {"mlp": torch.ones(1)})
    with pytest.raises(InterventionError, match="Trace"):
        lv.patch("x", [1, 2])
    with pytest.raises(lv.SiteError):
        lv.zero("x[")


def test_the_callers_vector_keeps_its_gradient_and_its_values() -> None:
    vector = torch.ones(4, requires_grad=True)
    applied(lv.add("x", vector), torch.zeros(2, 4))
    assert vector.requires_grad and vector.grad is None and vector.tolist() == [1] * 4
