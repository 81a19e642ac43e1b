"""One session over two gloo ranks for all tests of this folder that leave it alive."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lensview as lv
from lensview.bridge.session import RankSession

RANKS = 2
WORDS = "the a cat dog sat ran on mat big red fox and".split()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama, its widths uneven over two ranks, and a tokenizer of a few words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=37,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_bias=True,
        mlp_bias=True,
    )
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    path = tmp_path_factory.mktemp("bridge") / "llama"
    model.save_pretrained(path)
    words = {word: i + 3 for i, word in enumerate(WORDS)}
    tokens = Tokenizer(WordLevel({"<unk>": 0, "<pad>": 1, "</s>": 2, **words}, "<unk>"))
    tokens.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, unk_token="<unk>", pad_token="<pad>", eos_token="</s>"
    ).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def local(folder: Path) -> lv.LocalSession:
    """The same model, whole, in this process."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    return lv.LocalSession(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture(scope="session")
def _shared(folder: Path) -> Iterator[RankSession]:
    with lv.launch(folder, tp=RANKS, device="cpu", env={"OMP_NUM_THREADS": "1"}) as session:
        yield session


@pytest.fixture
def session(_shared: RankSession) -> RankSession:
    """The shared session, which a test leaves alive."""
    assert "ready" in repr(_shared), "an earlier test broke the shared session"
    return _shared
