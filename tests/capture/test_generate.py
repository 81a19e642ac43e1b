"""Generation: transformers' own loop unchanged, each step's values, and what a position means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9, 44, 2]])
LAYER = "model.layers.1"
NEW = 8


class Letters:
    """A letter is a token."""

    eos_token_id = 0
    chat_template = None

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 101 for c in text]}

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


@contextmanager
def by_hand(model: nn.Module, site: str) -> Iterator[list[Tensor]]:
    """The outputs of one module in all forwards, by a plain hook."""
    kept: list[Tensor] = []

    def keep(_m: nn.Module, _a: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output).clone())

    handle = model.get_submodule(site).register_forward_hook(keep)
    yield kept
    handle.remove()


def hook_counts(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def tiny_t5() -> Any:
    import transformers as tf

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    start: dict[str, Any] = {"decoder_start_token_id": 0}
    config = tf.T5Config(vocab_size=101, **sizes, **start)
    model = tf.T5ForConditionalGeneration(config)
    model.eval()
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_cache": False},
        {"do_sample": True, "temperature": 3.0},
        {"num_beams": 3},
        {"do_sample": True, "num_return_sequences": 2},
        {"cache_implementation": "static"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_ids_records_and_random_numbers_are_a_plain_generates(
    tiny_llama: Any, tiny_gpt2: Any, kind: str, options: dict[str, Any]
) -> None:
    model = tiny_llama if kind == "llama" else tiny_gpt2
    site = LAYER if kind == "llama" else "transformer.h.1"
    options = {"eos_token_id": None, **options}
    before = hook_counts(model)
    torch.manual_seed(3)
    with by_hand(model, site) as expected:
        ids = model.generate(IDS, max_new_tokens=NEW, **options)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    gen = lv.generate(model, IDS, site, max_new_tokens=NEW, **options)
    assert torch.equal(gen.ids, ids)
    assert torch.equal(torch.get_rng_state(), state)
    assert hook_counts(model) == before
    assert len(gen) == len(gen.steps) == len(expected) == NEW
    for i, want in enumerate(expected):
        assert torch.equal(gen.step(i)[site], want)
        assert gen.step(i).sites == (site,), "calls count from 0 in each step"
        assert gen.step(i).aligned(site)


def test_stack_joins_what_the_cache_read_once(tiny_llama: Any) -> None:
    gen = lv.generate(tiny_llama, IDS, [LAYER, "lm_head"], max_new_tokens=NEW, eos_token_id=None)
    stacked = gen.stack(LAYER)
    assert stacked.shape == (1, 6 + NEW - 1, 16)
    whole = lv.trace(tiny_llama, gen.ids[:, :-1], LAYER)[LAYER]
    assert (stacked - whole).abs().max() <= 1e-5
    # transformers computes the prefill's logits at its last token alone.
    assert gen.step(0)["lm_head"].shape == (1, 1, 101)
    with pytest.raises(lv.SiteError, match="step 0"):
        gen.stack("lm_head")
    with pytest.raises(lv.NotRecordedError, match="not asked for"):
        gen.stack("model.layers.0")
    with pytest.raises(IndexError, match=r"8 steps.*max_new_tokens"):
        gen.step(NEW)
    uncached = lv.generate(
        tiny_llama, IDS, LAYER, max_new_tokens=3, eos_token_id=None, use_cache=False
    )
    with pytest.raises(lv.SiteError, match="without a cache"):
        uncached.stack(LAYER)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("token", "cached", "uncached"),
    [(2, 1, NEW), (8, 1, NEW - 3), ([1, 7], 2, NEW), (slice(4, 9), 4, NEW), (-1, NEW, NEW)],
    ids=str,
)
def test_an_absolute_position_means_the_same_with_and_without_cache(
    tiny_llama: Any, tiny_gpt2: Any, kind: str, token: Any, cached: int, uncached: int
) -> None:
    """O14. -1 is the exception, and documented: a cache remembers the edits of earlier steps."""
    model = tiny_llama if kind == "llama" else tiny_gpt2
    site = LAYER if kind == "llama" else "transformer.h.1"
    torch.manual_seed(1)
    edit = lv.add(site, torch.randn(16) * 3, lv.at(token=token))
    options: dict[str, Any] = {"max_new_tokens": NEW, "eos_token_id": None}
    plain = lv.generate(model, IDS, (), **options)
    forced = plain.ids[:, 6:]
    options["prefix_allowed_tokens_fn"] = along(forced)
    with_cache = lv.generate(model, IDS, (), edit, **options)
    without = lv.generate(model, IDS, (), edit, use_cache=False, **options)
    assert with_cache.reports[0].calls == cached
    assert without.reports[0].calls == uncached
    gaps = [gap(a, b) for a, b in zip(with_cache, without, strict=True)]
    moved = [gap(a, b) for a, b in zip(with_cache, plain, strict=True)]
    assert max(moved) > 1e-3
    if token == -1:
        assert gaps[0] <= 1e-5 and max(gaps) > 5e-5
    else:
        assert max(gaps) <= 1e-5


def along(tokens: Tensor) -> Callable[[int, Tensor], list[int]]:
    """Lets `generate` write nothing but `tokens`, so that runs can be compared."""
    return lambda row, ids: [int(tokens[row, min(len(ids) - 6, NEW - 1)])]


def gap(one: lv.Trace, other: lv.Trace) -> float:
    assert one.logits is not None and other.logits is not None
    return float((one.logits - other.logits).abs().max())


def test_an_edit_at_a_position_is_what_a_hook_by_hand_does(tiny_llama: Any) -> None:
    """Token 8 is the one column of step 3; a value over several tokens is dealt out to steps."""
    value = torch.randn(1, 4, 16)
    seen = [0]

    def edit(_m: nn.Module, _a: Any, output: Tensor) -> Tensor:
        first, seen[0] = seen[0], seen[0] + output.shape[1]
        output = output.clone()
        for i, token in enumerate(range(5, 9)):
            if first <= token < seen[0]:
                output[:, token - first] += value[:, i]
        return output

    handle = tiny_llama.get_submodule(LAYER).register_forward_hook(edit)
    with by_hand(tiny_llama, LAYER) as expected:
        ids = tiny_llama.generate(IDS, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    handle.remove()
    edits = lv.add(LAYER, value, lv.at(token=slice(5, 9)))
    gen = lv.generate(tiny_llama, IDS, LAYER, edits, max_new_tokens=NEW, eos_token_id=None)
    assert torch.equal(gen.ids, ids)
    assert all(torch.equal(t[LAYER], e) for t, e in zip(gen, expected, strict=True))
    assert gen.reports[0].calls == 4 and gen.reports[0].changed == 4 * 16
    assert [t.reports[0].calls for t in gen] == [1, 1, 1, 1, 0, 0, 0, 0]


def test_a_patch_falls_on_the_same_tokens(tiny_llama: Any) -> None:
    other = torch.tensor([[5, 17, 3, 9, 44, 2, 61, 7]])
    source = lv.trace(tiny_llama, other, LAYER)
    edit = lv.patch(LAYER, source, lv.at(token=[1, 6, 7]))
    gen = lv.generate(tiny_llama, IDS, LAYER, edit, max_new_tokens=4, eos_token_id=None)
    stacked = gen.stack(LAYER)
    assert torch.equal(stacked[:, [1, 6, 7]], source[LAYER][:, [1, 6, 7]])
    short = lv.trace(tiny_llama, other[:, :3], LAYER)
    with pytest.raises(lv.InterventionError, match="does not hold the tokens"):
        edit = lv.patch(LAYER, short, lv.at(token=4))
        lv.generate(tiny_llama, IDS, (), edit, max_new_tokens=2)


def test_what_never_comes_is_told_and_a_plain_index_is_strict(tiny_llama: Any) -> None:
    with pytest.warns(lv.LensWarning, match="did nothing"):
        gen = lv.generate(tiny_llama, IDS, (), lv.zero(LAYER, lv.at(token=99)), max_new_tokens=2)
    assert gen.reports[0].calls == 0
    with pytest.raises(lv.InterventionError, match="out of range for dim 1 of size 1"):
        lv.generate(tiny_llama, IDS, (), lv.zero(LAYER, (slice(None), 2)), max_new_tokens=2)
    assert hook_counts(tiny_llama) == 0


def test_an_early_end_is_told(tiny_llama: Any) -> None:
    """O14: the third new token as end of sequence: 3 steps, no error, the reason in the trace."""
    plain = lv.generate(tiny_llama, IDS, (), max_new_tokens=NEW, eos_token_id=None)
    eos = int(plain.ids[0, 8])
    assert eos not in plain.ids[0, 6:8]
    gen = lv.generate(tiny_llama, IDS, LAYER, max_new_tokens=NEW, eos_token_id=eos)
    assert len(gen) == 3
    assert gen.ended == (lv.Ending("eos", 2),)
    assert gen.step(-1).meta["step"]["ended"] == {"0": "eos at step 2"}
    assert "eos at step 2" in repr(gen)
    with pytest.raises(IndexError, match=r"3 steps \(eos at step 2"):
        gen.step(5)


TEXTS = ["abcdefg", "xy", "hello"]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_rows_of_strings_equal_their_own_runs(tiny_llama: Any, tiny_gpt2: Any, kind: str) -> None:
    model = tiny_llama if kind == "llama" else tiny_gpt2
    site = LAYER if kind == "llama" else "transformer.h.1"
    letters, edit = Letters(), lv.add(site, torch.randn(16), lv.at(token=[0, 3, 8, -1]))
    options: dict[str, Any] = {"max_new_tokens": 6, "tokenizer": letters, "eos_token_id": None}
    batch = lv.generate(model, TEXTS, site, edit, **options)
    for row, text in enumerate(TEXTS):
        alone = lv.generate(model, text, site, edit, **options)
        assert torch.equal(batch.ids[row, -6:], alone.ids[0, -6:])
        assert batch.text(row) == alone.text() == " ".join(map(str, alone.ids[0, -6:].tolist()))
        assert batch.text(row, prompt=True) == " ".join(map(str, alone.ids[0].tolist()))
        for there, here in zip(batch, alone, strict=True):
            assert there.tokens is not None and here.tokens is not None
            columns = there.tokens.positions(row)
            assert there.tokens.labels[row] == here.tokens.labels[0]
            assert (there[site][row, columns] - here[site][0]).abs().max() <= 1e-5


def test_a_row_that_ended_is_padding_from_there_on(tiny_llama: Any) -> None:
    rows = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
    plain = lv.generate(tiny_llama, rows, (), max_new_tokens=NEW, eos_token_id=None).ids[:, 4:]
    eos = next(int(t) for t in plain[0] if t not in plain[1])
    step = plain[0].tolist().index(eos)
    gen = lv.generate(
        tiny_llama,
        rows,
        LAYER,
        lv.zero(LAYER, lv.at(token=-1)),
        max_new_tokens=NEW,
        eos_token_id=eos,
        prefix_allowed_tokens_fn=lambda row, ids: [int(plain[row, min(len(ids) - 4, NEW - 1)])],
    )
    assert [e.reason for e in gen.ended] == ["eos", "max_new_tokens"]
    assert gen.ended[0].step == step < NEW - 1
    for i, trace in enumerate(gen):
        assert trace.tokens is not None
        assert bool(trace.tokens.mask[0].any()) is (i <= step)
        zeroed = [bool((trace[LAYER][row, -1] == 0).all()) for row in (0, 1)]
        assert zeroed == [i <= step, True]


def test_the_demo_model_answers_a_chat(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    question = "What is the capital of France?"
    site = "model.layers.10"
    gen = lv.generate(
        model, [question, "Hi"], site, tokenizer=tokenizer, chat=True, max_new_tokens=8
    )
    assert "Paris" in gen.text(0)
    message = [{"role": "user", "content": question}]
    made = tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with by_hand(model, site) as expected:
        ids = model.generate(**made, max_new_tokens=8, do_sample=False)
    assert gen.ids[0, -8:].tolist() == ids[0, -8:].tolist()
    columns = gen.step(0).tokens.positions(0)  # type: ignore[union-attr]
    scale = float(expected[0].abs().max())
    assert (gen.step(0)[site][0, columns] - expected[0][0]).abs().max() <= 1e-5 * scale
    alone = lv.trace(model, question, site, tokenizer=tokenizer, chat=True)
    assert alone.tokens is not None and alone.tokens.ids.tolist() == made["input_ids"].tolist()


def test_beams_are_labelled_and_never_joined(tiny_llama: Any) -> None:
    gen = lv.generate(
        tiny_llama, IDS.repeat(2, 1), LAYER, max_new_tokens=3, num_beams=2, eos_token_id=None
    )
    assert gen.rows == "beam" and gen.step(1).meta["step"]["rows"] == "beam"
    assert gen.step(1)[LAYER].shape == (4, 1, 16)
    assert gen.ids.shape == (2, 9) and len(gen.ended) == 2
    with pytest.raises(lv.SiteError, match="beams"):
        gen.stack(LAYER)
    samples = lv.generate(
        tiny_llama, IDS, LAYER, max_new_tokens=3, do_sample=True, num_return_sequences=3
    )
    assert samples.rows == "sample" and len(samples.ids) == 3


def test_an_encoder_belongs_to_step_0_and_steps_are_the_decoders() -> None:
    model = tiny_t5()
    encoder, decoder = "encoder.block.1", "decoder.block.1"
    with by_hand(model, encoder) as read, by_hand(model, decoder) as written:
        ids = model.generate(IDS, max_new_tokens=4, do_sample=False, eos_token_id=None)
    gen = lv.generate(model, IDS, [encoder, decoder], max_new_tokens=4, eos_token_id=None)
    assert torch.equal(gen.ids, ids) and gen.ids.shape == (1, 5)
    assert torch.equal(gen.step(0)[encoder], read[0])
    assert not gen.step(0).aligned(encoder) and gen.step(0).aligned(decoder)
    assert encoder in gen.step(1).missed
    assert torch.equal(gen.stack(decoder), torch.cat(written, 1))
    edits = [lv.zero(encoder, lv.at(token=-1)), lv.zero(decoder, lv.at(token=2))]
    zeroed = lv.generate(model, IDS, [encoder, decoder], edits, max_new_tokens=4, eos_token_id=None)
    assert [r.calls for r in zeroed.reports] == [1, 1]
    assert zeroed.step(0)[encoder][0, -1].abs().sum() == 0
    assert zeroed.step(0)[encoder][0, :-1].abs().sum() > 0
    assert [bool((t[decoder] == 0).all()) for t in zeroed] == [False, False, True, False]


def test_a_cache_given_by_the_caller_counts(tiny_llama: Any) -> None:
    with torch.no_grad():
        past = tiny_llama(IDS[:, :4], use_cache=True).past_key_values
    expected = lv.generate(tiny_llama, IDS, LAYER, max_new_tokens=4, eos_token_id=None)
    given = {"input_ids": IDS, "past_key_values": past}
    edit = lv.add(LAYER, 0.0, lv.at(token=7))
    gen = lv.generate(tiny_llama, given, LAYER, edit, max_new_tokens=4, eos_token_id=None)
    assert torch.equal(gen.ids, expected.ids)
    assert gen.step(0).meta["step"]["first"] == 4
    assert gen.step(0)[LAYER].shape == (1, 2, 16)
    assert [t.reports[0].calls for t in gen] == [0, 0, 1, 0]
    assert (gen.stack(LAYER) - expected.stack(LAYER)[:, 4:]).abs().max() <= 1e-5


def test_limits_hold_over_all_steps(tiny_llama: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 4, "eos_token_id": None}
    gen = lv.generate(tiny_llama, IDS, "model.layers.*", keep=lv.at(token=-1), **options)
    assert all(t[LAYER].shape == (1, 1, 16) and not t.aligned(LAYER) for t in gen)
    room = 3 * 6 * 16 * 4 + 16 * 4
    gen = lv.generate(tiny_llama, IDS, "model.layers.*", max_bytes=room, **options)
    assert [len(t) for t in gen] == [3, 1, 0, 0]
    assert "left out" in gen.step(2).missed[LAYER]


def test_cancel_and_interrupt_leave_the_model_as_it_was(tiny_llama: Any) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, text: str) -> None:
        seen.append((done, total))
        if done == 2:
            watch.cancel()

    watch = lv.Watch(progress)
    with pytest.raises(lv.RunCancelled):
        lv.generate(tiny_llama, IDS, "**", max_new_tokens=NEW, watch=watch, eos_token_id=None)
    assert seen == [(1, NEW), (2, NEW)]
    assert hook_counts(tiny_llama) == 0

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = tiny_llama.get_submodule(LAYER).register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lv.generate(tiny_llama, IDS, "**", max_new_tokens=NEW)
    handle.remove()
    assert hook_counts(tiny_llama) == 0
    assert len(lv.generate(tiny_llama, IDS, LAYER, max_new_tokens=2, eos_token_id=None)) == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
    ids=str,
)
def test_what_has_no_steps_is_refused_before_any_forward(
    tiny_llama: Any, options: dict[str, Any], text: str
) -> None:
    with by_hand(tiny_llama, LAYER) as ran, pytest.raises(lv.InputError, match=text):
        lv.generate(tiny_llama, IDS, LAYER, **options)
    assert not ran
    with pytest.raises(lv.InputError, match="cannot generate"):
        lv.generate(tiny_llama.model, IDS)


def test_forwards_that_are_no_steps_are_refused_afterwards(tiny_llama: Any) -> None:
    """A decoding of which nobody told: here a processor that runs the model once more."""
    again: list[int] = []

    def more(ids: Tensor, scores: Tensor) -> Tensor:
        if not again:
            again.append(1)
            tiny_llama(ids)
            tiny_llama(ids)
        return scores

    with pytest.raises(lv.CaptureUnsupportedError, match="2 new tokens in 4 forwards"):
        lv.generate(tiny_llama, IDS, LAYER, max_new_tokens=2, logits_processor=[more])


def test_an_overflow_in_any_step_is_told(tiny_llama: Any) -> None:
    model = tiny_llama.to(torch.float16)
    edit = lv.scale("model.layers.1", 60000.0)
    with pytest.warns(lv.LensWarning, match=r"infinite or NaN.*\n.*scale model\.layers\.1"):
        gen = lv.generate(
            model,
            torch.tensor([[1, 2, 3]]),
            "model.layers.1",
            [lv.put("model.layers.1", 2.0), edit],
            max_new_tokens=2,
        )
    overflowed = sum(int(t["model.layers.1"].isinf().sum()) for t in gen)
    assert gen.reports[1].overflowed == overflowed > 0
