"""Field case O14: what a position means while generating, against loops written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2]])
LAYER, TOKEN, NEW = "model.layers.1", 2, 8
FREE: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}


@contextmanager
def edited(model: nn.Module, v: Tensor, cached: bool) -> Iterator[None]:
    """``+ v`` at the token 2 of the whole sequence, by a plain hook."""
    first = [0]

    def hook(_m: nn.Module, _a: Any, output: Tensor) -> Tensor:
        start = first[0]
        if cached:
            first[0] += output.shape[1]
        output = output.clone()
        if start <= TOKEN < start + output.shape[1]:
            output[:, TOKEN - start] += v
        return output

    handle = model.get_submodule(LAYER).register_forward_hook(hook)
    yield
    handle.remove()


@torch.no_grad()
def loop(model: Any, cached: bool) -> list[Tensor]:
    """Greedy decoding step by step: the last logits (1, V) of each of the `NEW` steps."""
    ids, given, found = IDS, IDS, []
    cache: dict[str, Any] = {}  # one argument, under the name that this transformers has
    for _ in range(NEW):
        if cached:
            output = model(given, use_cache=True, **cache)
            cache = {n: output[n] for n in ("cache", "past_key_values") if n in output}
        else:
            output = model(ids, use_cache=False)
        found.append(output.logits[:, -1])
        given = found[-1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, given], 1)
    return found


def last(gen: lv.Generation) -> list[Tensor]:
    return [t.logits for t in gen if t.logits is not None]


def close(one: list[Tensor], other: list[Tensor], bound: float = 1e-5) -> bool:
    return all((a - b).abs().max() <= bound for a, b in zip(one, other, strict=True))


def test_o14_an_absolute_position_is_the_same_with_and_without_a_cache(tiny_llama: Any) -> None:
    """Logits of every step are those of a loop by hand; the two ways agree; both were moved."""
    v = torch.linspace(-2, 2, 16)
    edit, plain = lv.add(LAYER, v, lv.at(token=TOKEN)), loop(tiny_llama, cached=True)
    found = {}
    for cached in (True, False):
        with edited(tiny_llama, v, cached):
            expected = loop(tiny_llama, cached)
        gen = lv.generate(tiny_llama, IDS, LAYER, edit, use_cache=cached, **FREE)
        assert close(last(gen), expected) and not close(last(gen), plain, 1e-3)
        assert [t[LAYER].shape[1] for t in gen] == [6] + [1 if cached else n for n in range(7, 14)]
        assert gen.reports[0].calls == (1 if cached else NEW)
        found[cached] = last(gen)
    assert close(found[True], found[False])


def test_o14_an_index_beyond_a_step_of_length_1_is_passed_over(tiny_llama: Any) -> None:
    """Token 2 is in the prefill alone; the prefill's lm_head has one position."""
    gen = lv.generate(tiny_llama, IDS, "lm_head", lv.zero(LAYER, lv.at(token=TOKEN)), **FREE)
    assert [t.reports[0].calls for t in gen] == [1] + [0] * (NEW - 1)
    assert [t["lm_head"].shape for t in gen] == [(1, 1, 101)] * NEW
    with pytest.raises(lv.InterventionError, match=r"lm_head.*\(1, 6\).*\(1, 1, 101\)"):
        lv.generate(tiny_llama, IDS, (), lv.zero("lm_head", lv.at(token=TOKEN)), **FREE)
    forced = lv.generate(tiny_llama, IDS, (), lv.put("lm_head", 9.0, lv.at(feature=33)), **FREE)
    assert forced.ids[0, 6:].tolist() == [33] * NEW, "every step, without a token"


def test_o14_every_new_token_is_another_thing_without_a_cache(tiny_llama: Any) -> None:
    """``at(token=-1)`` is documented to differ: a cache remembers the edits of earlier steps."""
    edit = lv.add(LAYER, torch.linspace(-2, 2, 16), lv.at(token=-1))
    on, off = (lv.generate(tiny_llama, IDS, (), edit, use_cache=c, **FREE) for c in (True, False))
    assert on.reports[0].calls == off.reports[0].calls == NEW
    assert (last(on)[0] - last(off)[0]).abs().max() <= 1e-5
    assert not close(last(on), last(off), 5e-5)


def test_o14_the_end_of_a_sequence_is_told(tiny_llama: Any) -> None:
    """The third new token ends it: 3 steps of 8, no error, and the trace says why."""
    eos = int(loop(tiny_llama, cached=True)[2].argmax())
    gen = lv.generate(tiny_llama, IDS, LAYER, max_new_tokens=NEW, eos_token_id=eos)
    assert len(gen) == 3 and gen.ids.shape == (1, 9) and int(gen.ids[0, -1]) == eos
    assert gen.ended == (lv.Ending("eos", 2),)
    assert [t.meta["step"]["ended"] for t in gen] == [{}, {}, {"0": "eos at step 2"}]
    with pytest.raises(IndexError, match=r"3 steps \(eos at step 2\)"):
        gen.step(3)


def test_o14_rows_of_beams_are_labelled(tiny_llama: Any) -> None:
    """(batch times beams, 1, V), as a hook by hand sees them; edited rows are every beam's."""
    v = torch.linspace(-2, 2, 16)
    kept: list[Tensor] = []
    head = tiny_llama.lm_head.register_forward_hook(lambda m, a, o: kept.append(o.clone()))
    with edited(tiny_llama, v, cached=True):
        ids = tiny_llama.generate(IDS, num_beams=4, **FREE)
    head.remove()
    edit = lv.add(LAYER, v, lv.at(token=TOKEN))
    gen = lv.generate(tiny_llama, IDS, "lm_head", edit, num_beams=4, **FREE)
    assert torch.equal(gen.ids, ids) and gen.rows == "beam"
    assert all(t.meta["step"]["rows"] == "beam" for t in gen)
    assert [t["lm_head"].shape for t in gen] == [(4, 1, 101)] * NEW
    assert all(torch.equal(t["lm_head"], k) for t, k in zip(gen, kept, strict=True))
    with pytest.raises(lv.SiteError, match="rows are beams"):
        gen.stack("lm_head")
