"""Inputs: what is accepted, padded so that rows equal their own runs, and refused in a sentence."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

import lensview as lv
from lensview.capture.inputs import input_device
from lensview.capture.strings import context_length

TEXTS = ["The capital of France is", "Yes", "One two three four five six seven"]


class Letters:
    """The smallest tokenizer: a letter is a token; no padding token, no special tokens."""

    eos_token_id = 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 101 for c in text]}

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(97 + i % 26) for i in ids)


def test_a_batch_of_strings_equals_each_rows_own_run(demo_model: tuple[Any, Any]) -> None:
    model, tokenizer = demo_model
    batch = lv.trace(model, TEXTS, ["model.layers.*", "**.self_attn"], tokenizer=tokenizer)
    assert batch.tokens is not None
    for row, text in enumerate(TEXTS):
        alone = lv.trace(model, text, ["model.layers.*", "**.self_attn"], tokenizer=tokenizer)
        assert alone.tokens is not None
        columns = batch.tokens.positions(row)
        assert batch.tokens.ids[row, columns].tolist() == tokenizer(text)["input_ids"]
        assert batch.tokens.labels[row] == alone.tokens.labels[0]
        for site in alone:
            scale = alone[site].abs().max()
            gap = (batch[site][row, columns] - alone[site][0]).abs().max()
            assert gap <= 1e-5 * max(1.0, float(scale)), (site, row)
        assert [t.id for t in batch.top(3, row)] == [t.id for t in alone.top(3)]


def test_a_tokenizer_without_a_padding_token(tiny_llama: nn.Module) -> None:
    batch = lv.trace(tiny_llama, ["abcd", "x"], "model.layers.2", tokenizer=Letters())
    alone = lv.trace(tiny_llama, "x", "model.layers.2", tokenizer=Letters())
    assert torch.allclose(
        batch["model.layers.2"][1, :1], alone["model.layers.2"][0], rtol=0, atol=1e-5
    )
    assert batch.tokens is not None and batch.tokens.mask.tolist()[1] == [True, False, False, False]
    assert torch.allclose(batch.logits[1], alone.logits[0], atol=1e-5)  # type: ignore[index]


def test_every_form_of_the_same_inputs_gives_the_same_run(tiny_llama: nn.Module) -> None:
    ids = torch.tensor([[1, 2, 3]])
    expected = lv.trace(tiny_llama, ids, "lm_head")["lm_head"]
    forms = [{"input_ids": ids}, UserDict({"input_ids": ids}), (ids,), ids.int()]
    for form in forms:
        trace = lv.trace(tiny_llama, form, "lm_head")
        assert torch.equal(trace["lm_head"], expected)
        assert trace.tokens is not None and trace.tokens.ids.tolist() == [[1, 2, 3]]


def test_inputs_that_are_no_token_ids_have_no_tokens() -> None:
    trace = lv.trace(nn.Linear(3, 2), torch.ones(2, 3), ":output")
    assert trace.tokens is None and trace.logits is None
    assert not trace.aligned(":output")
    with pytest.raises(ValueError, match="no logits"):
        trace.top()


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        ("", lv.InputError, "empty"),
        (["ab", ""], lv.InputError, "Prompt 1 is empty"),
        ([], lv.InputError, "nothing to run"),
        (None, lv.InputError, "nothing to run"),
        ("x" * 65, lv.InputError, "65 tokens.*context is 64"),
        (torch.zeros(1, 0, dtype=torch.int64), lv.InputError, "no tokens"),
        (torch.tensor([[101]]), lv.InputError, "101.*101 embeddings"),
        (torch.tensor([[-1]]), lv.InputError, "-1"),
        ([1, 2], TypeError, r"torch\.tensor"),
        (5, TypeError, "int"),
        (torch.tensor([1, 2, 3]), lv.InputError, r"ids\[None\]"),
    ],
    ids=repr,
)
def test_what_cannot_be_run_is_refused_and_the_next_run_works(
    tiny_llama: nn.Module, inputs: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        lv.trace(tiny_llama, inputs, "lm_head", tokenizer=Letters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in tiny_llama.modules())
    assert lv.trace(tiny_llama, "x" * 64, "lm_head", tokenizer=Letters())["lm_head"].shape[1] == 64


def test_a_string_without_a_tokenizer(tiny_llama: nn.Module) -> None:
    with pytest.raises(lv.InputError, match="tokenizer="):
        lv.trace(tiny_llama, "hello")


def test_the_context_comes_from_the_configuration(
    tiny_llama: nn.Module, tiny_gpt2: nn.Module
) -> None:
    assert context_length(tiny_llama) == context_length(tiny_gpt2) == 64
    assert context_length(nn.Linear(1, 1)) is None


def test_inputs_go_where_an_offloaded_model_takes_them(tiny_llama: nn.Module) -> None:
    """O12: weights on meta outside their own call; values and outputs are a plain model's."""
    from accelerate import cpu_offload

    ids = torch.tensor([[1, 2, 3]])
    expected = lv.trace(tiny_llama, ids, "**")
    cpu_offload(tiny_llama, execution_device=torch.device("cpu"))
    assert next(tiny_llama.parameters()).device.type == "meta"
    assert input_device(tiny_llama).type == "cpu"
    trace = lv.trace(tiny_llama, ids, "**", lv.add("model.layers.1", torch.zeros(16)))
    assert trace.sites == expected.sites
    assert all(torch.equal(trace[s], expected[s]) for s in expected)


def test_arguments_in_a_wrong_place_are_named(tiny_llama: nn.Module) -> None:
    ids = torch.tensor([[1, 2]])
    with pytest.raises(TypeError, match=r"sites is a Letters.*tokenizer=…"):
        lv.trace(tiny_llama, "ab", Letters())  # type: ignore[arg-type]
    with pytest.raises(lv.InputError, match="tokenizer is a str"):
        lv.trace(tiny_llama, "ab", tokenizer="gpt2")
    with pytest.raises(lv.InputError, match="the class Letters"):
        lv.trace(tiny_llama, "ab", tokenizer=Letters)
    with pytest.raises(TypeError, match="interventions is a NoneType"):
        lv.trace(tiny_llama, ids, "**", None)  # type: ignore[arg-type]
    with pytest.raises(lv.InterventionError, match=r"'zero' is a str"):
        lv.trace(tiny_llama, ids, "**", "zero")  # type: ignore[arg-type]
    with pytest.raises(lv.SiteError, match="LlamaMLP"):
        lv.zero(tiny_llama.get_submodule("model.layers.0.mlp"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="explore"):
        lv.explore(tiny_llama, "a prompt", Letters())
    with pytest.raises(TypeError, match="another Trace"):
        lv.trace(tiny_llama, ids, ()).diff({})  # type: ignore[arg-type]


def test_what_tokenizers_give_as_it_is(demo_model: tuple[Any, Any]) -> None:
    """BatchEncoding of tensors and of lists, extra values that are no tensors, `lv.Args`."""
    model, tokenizer = demo_model
    with torch.no_grad():
        expected = model(**tokenizer(TEXTS[0], return_tensors="pt")).logits
    tensors = tokenizer(TEXTS[0], return_tensors="pt")
    forms: list[Any] = [
        tensors,
        tokenizer(TEXTS[0]),
        tokenizer([TEXTS[0]]),
        {**tensors, "use_cache": False, "logits_to_keep": 0, "past_key_values": None},
        lv.Args(tensors["input_ids"], attention_mask=tensors["attention_mask"], use_cache=True),
    ]
    for form in forms:
        trace = lv.trace(model, form, (), keep_output=True)
        assert torch.equal(trace.output.logits, expected)
        assert trace.tokens is not None and trace.tokens.ids.shape == (1, 5)
    with pytest.raises(lv.InputError, match="rows of 5, 1, 7 tokens"):
        lv.trace(model, tokenizer(TEXTS), ())


def test_a_cache_of_the_callers_is_run_on(tiny_llama: nn.Module) -> None:
    ids = torch.tensor([[0, 0, 3, 9, 44], [5, 17, 3, 9, 2]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    whole = lv.trace(tiny_llama, {"input_ids": ids, "attention_mask": mask}, "model.layers.*")
    with torch.no_grad():
        first = {"input_ids": ids[:, :3], "attention_mask": mask[:, :3]}
        past = tiny_llama(**first, use_cache=True).past_key_values
    rest = {"input_ids": ids[:, 3:], "attention_mask": mask, "past_key_values": past}
    trace = lv.trace(tiny_llama, rest, "model.layers.*", lv.add("model.layers.2", 0.0))
    assert trace.tokens is not None and trace.tokens.mask.tolist() == [[True, True]] * 2
    for site in trace:
        assert (trace[site] - whole[site][:, 3:]).abs().max() <= 1e-5
    assert past.get_seq_length() == 5


def test_chat_is_for_strings_and_for_tokenizers_with_a_template(
    tiny_llama: nn.Module, demo_model: tuple[Any, Any]
) -> None:
    with pytest.raises(lv.InputError, match="no chat template"):
        lv.trace(tiny_llama, "hi", (), tokenizer=Letters(), chat=True)
    with pytest.raises(lv.InputError, match="Give strings"):
        lv.trace(tiny_llama, torch.tensor([[1]]), (), chat=True)
    model, tokenizer = demo_model
    trace = lv.trace(model, ["hi", "hello there"], (), tokenizer=tokenizer, chat=True)
    assert trace.tokens is not None
    for row, text in enumerate(["hi", "hello there"]):
        message = [{"role": "user", "content": text}]
        made = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        real = trace.tokens.ids[row, trace.tokens.positions(row)]
        assert tokenizer.decode(real) == made
