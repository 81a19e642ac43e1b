"""Effects: against two runs compared by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2], [8, 8, 1, 90, 12, 33]])


def by_hand(model: nn.Module, path: str) -> Tensor:
    handle = model.get_submodule(path).register_forward_hook(lambda m, a, o: o * 2)
    with torch.no_grad():
        logits: Tensor = model(IDS).logits[:, -1]
    handle.remove()
    return logits


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_each_alone_against_the_baseline(kind: str, request: pytest.FixtureRequest) -> None:
    model: nn.Module = request.getfixturevalue(f"tiny_{kind}")
    block = "model.layers" if kind == "llama" else "transformer.h"
    early, late = f"{block}.0.mlp", f"{block}.2.mlp"
    edits = [lv.scale(early, 2), lv.scale(late, 2), lv.scale(early, 1)]
    first, second, none = lv.effects(model, IDS, edits)
    with torch.no_grad():
        before = model(IDS).logits[:, -1]
    for effect, path in ((first, early), (second, late)):
        after = by_hand(model, path)
        assert effect.intervention is edits[0 if path is early else 1]
        assert effect.first == path and effect.moved is True
        assert effect.largest == pytest.approx((after - before).abs().max().item())
        p, q = before.double().log_softmax(-1), after.double().log_softmax(-1)
        assert effect.kl == pytest.approx((p.exp() * (p - q)).sum(-1).tolist())
        assert effect.report.changed == 2 * 6 * 16
    plain = lv.trace(model, IDS)
    edited = lv.trace(model, IDS, "**", edits[0])
    assert first.differing == sum(not torch.equal(plain[s], edited[s]) for s in plain)
    assert first.sites == len(plain) and second.differing < first.differing
    assert (none.first, none.differing, none.moved, none.largest) == (None, 0, False, 0.0)
    assert f"first {early}" in str(first) and "logits the same" in str(none)


def test_an_edit_of_the_last_layer_at_an_early_token_moves_no_logit(tiny_llama: nn.Module) -> None:
    (effect,) = lv.effects(
        tiny_llama, IDS, lv.zero("model.layers.2.mlp", lv.at(token=0)), sites="**.mlp"
    )
    assert effect.first == "model.layers.2.mlp" and effect.differing == 1 and effect.sites == 3
    assert effect.moved is False and effect.kl == (0.0, 0.0)


def test_dropout_is_the_same_in_every_run_and_the_random_state_a_plain_calls() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.drop, self.b = nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.b(self.drop(self.a(x)))
            return out

    model, x = Drops().train(), torch.randn(4, 8)
    torch.manual_seed(3)
    with torch.no_grad():
        model(x)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    same, moved = lv.effects(model, x, [lv.scale("a", 1), lv.scale("b", 2)])
    assert torch.equal(torch.get_rng_state(), state)
    assert same.first is None and moved.first == "b" and moved.differing == 2
    assert same.moved is None and same.kl is None and "differ" in str(moved)


def test_one_that_meets_no_value_is_told_and_the_others_are_run() -> None:
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(1, 3, 8)
    idle, done = lv.effects(model, (x, x, x), [lv.zero("out_proj"), lv.scale(":output", 2)])
    assert idle.report.calls == 0 and idle.first is None and "did nothing" in str(idle)
    assert done.first == ":output" and done.report.calls == 1


def test_a_bad_one_is_an_error(tiny_llama: nn.Module) -> None:
    with pytest.raises(lv.InterventionError, match=r"\(4,\)"):
        lv.effects(tiny_llama, IDS, lv.add("model.layers.0", torch.ones(4)))
