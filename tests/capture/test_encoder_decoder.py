"""Encoder-decoders: tokens are the encoder's, and a decoder's values are never labelled by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lensview as lv


@pytest.fixture
def t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=101, **sizes)).eval()


@pytest.fixture
def inputs() -> dict[str, torch.Tensor]:
    """As many decoder tokens as encoder tokens, which is where they are easily confused."""
    return {
        "input_ids": torch.tensor([[5, 6, 7, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0]]),
        "decoder_input_ids": torch.tensor([[1, 2, 3, 4]]),
        "decoder_attention_mask": torch.tensor([[1, 1, 0, 0]]),
    }


def test_only_the_encoders_values_are_rows_of_tokens(t5: nn.Module, inputs: dict[str, Any]) -> None:
    trace = lv.trace(t5, inputs, ["encoder.block.0", "decoder.block.0", "lm_head"])
    assert [trace.aligned(s) for s in trace] == [True, False, False]


def test_a_token_index_means_nothing_in_the_decoder(
    t5: nn.Module, inputs: dict[str, Any], tmp_path: Any
) -> None:
    site = "encoder.block.0"
    edited = lv.trace(t5, inputs, site, lv.zero(site, lv.at(token=-1)))
    assert edited[site][0, :, 0].ne(0).tolist() == [True, True, False, True]
    with pytest.raises(lv.InterventionError, match="encoder"):
        lv.trace(t5, inputs, (), lv.zero("decoder.block.0", lv.at(token=-1)))
    with pytest.raises(lv.InterventionError, match=r"keep= at decoder.*\n*.*encoder"):
        lv.trace(t5, inputs, "decoder.block.0", keep=lv.at(token=-1))
    edited.save(tmp_path / "run")
    again = lv.load(tmp_path / "run")
    assert again.tokens is not None and again.tokens.scope == "encoder"


def test_merged_ranks_label_no_decoder_either(t5: nn.Module, inputs: dict[str, Any]) -> None:
    sites = ["encoder.block.0", "decoder.block.0"]
    other = {**inputs, "input_ids": inputs["input_ids"] + 1}
    merged = lv.merge_ranks([lv.trace(t5, one, sites) for one in (inputs, other)])
    assert [merged.aligned(s) for s in merged] == [True, False]


def test_the_next_token_is_the_decoders(t5: nn.Module, inputs: dict[str, Any]) -> None:
    trace = lv.trace(t5, inputs, ":output")
    with torch.no_grad():
        logits = t5(**inputs).logits
    assert torch.equal(trace.logits, logits[:, 1])  # type: ignore[arg-type]
    del inputs["decoder_attention_mask"]
    with torch.no_grad():
        logits = t5(**inputs).logits
    assert torch.equal(lv.trace(t5, inputs, ()).logits, logits[:, 3])  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForTokenClassification"])
def test_logits_that_are_no_next_tokens_are_not_shown_as_such(kind: str) -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=101,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = getattr(transformers, kind)(config).eval()
    trace = lv.trace(model, torch.tensor([[1, 2, 3]]), ())
    assert trace.logits is not None and not trace.predicts
    with pytest.raises(ValueError, match=f"{kind} does not generate"):
        trace.top()
