"""Every row equals the item's own single run, by plain hooks on a plain call."""

from __future__ import annotations

import io
import random
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lensview as lv
from lensview.datasets.manifests import read_state

from .toy import Letters, item_by_hand, texts, toy

close = torch.testing.assert_close


def ids_of(text: str, limit: int = 64) -> list[int]:
    return Letters()(text)["input_ids"][:limit]


def extract(model: nn.Module, items: Any, sites: Any, path: Path, **more: Any) -> Any:
    more = {"tokenizer": Letters(), "progress": False, "shard_bytes": 20_000, **more}
    return lv.extract_dataset(model, items, sites, path, **more)


@pytest.mark.parametrize("which", ["tiny_llama", "tiny_gpt2"])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_rows_are_single_runs(
    which: str, batch_size: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(which)
    prefix = "model.layers" if which == "tiny_llama" else "transformer.h"
    sites = [f"{prefix}.0", f"{prefix}.1.mlp", f"{prefix}.2"]
    items = texts(37, longest=40)
    dataset = extract(model, items, sites, tmp_path / "a", batch_size=batch_size)
    assert len(dataset) == 37 and dataset.sites == tuple(sites)
    assert dataset.lengths.tolist() == [len(text) for text in items]
    for i, text in enumerate(items):
        alone = item_by_hand(model, ids_of(text), sites)
        for site in sites:
            assert dataset[i][site].shape == (len(text), 16)
            close(dataset[i][site], alone[site], rtol=1e-5, atol=1e-6)
        assert dataset.tokens(i).tolist() == ids_of(text)


def test_what_is_kept_of_each_site(tiny_llama: nn.Module, tmp_path: Path) -> None:
    sites = [f"model.layers.{i}" for i in range(3)]
    items = [*texts(20), "a"]
    dataset = extract(
        tiny_llama,
        items,
        ["model.layers.*", "model.layers.0:input"],
        tmp_path / "a",
        keep={"model.layers.0": "last", "model.layers.1": "mean", "model.layers.2": [0, -1]},
        dtype={"model.layers.1": torch.float64, "model.layers.2": torch.bfloat16},
    )
    assert set(dataset.sites) == {*sites, "model.layers.0:input"}
    for i, text in enumerate(items):
        alone = item_by_hand(tiny_llama, ids_of(text), [*sites, "model.embed_tokens"])
        item = dataset[i]
        close(item[sites[0]], alone[sites[0]][-1:], rtol=1e-5, atol=1e-6)
        mean = alone[sites[1]].mean(0, keepdim=True).double()
        close(item[sites[1]], mean, rtol=1e-5, atol=1e-6)
        ends = alone[sites[2]][[0, -1]].bfloat16()
        assert item[sites[2]].dtype == torch.bfloat16
        close(item[sites[2]], ends, rtol=1e-2, atol=1e-3)
        close(item["model.layers.0:input"], alone["model.embed_tokens"])


def test_empty_and_too_long_texts(tiny_llama: nn.Module, tmp_path: Path) -> None:
    """An empty one has no rows, a long one those of its beginning; both are listed, none moves."""
    items = ["abc", "", "x" * 200, "de", "y" * 64]
    with pytest.warns(lv.LensWarning, match="1 item was skipped and 1 item was cut"):
        dataset = extract(tiny_llama, items, "model.layers.1", tmp_path / "a")
    assert len(dataset) == 5
    assert dataset.skipped == {1: "it has no tokens"} and dataset.truncated == {2: 200}
    assert dataset[1]["model.layers.1"].shape == (0, 16)
    assert dataset.lengths.tolist() == [3, 0, 64, 2, 64]
    for i in (0, 2, 3, 4):
        alone = item_by_hand(tiny_llama, ids_of(items[i]), ["model.layers.1"])
        close(dataset[i]["model.layers.1"], alone["model.layers.1"], rtol=1e-5, atol=1e-6)
    shorter = extract(tiny_llama, items, "model.layers.1", tmp_path / "b", max_tokens=2)
    assert shorter.truncated == {0: 3, 2: 200, 4: 64}
    assert shorter.lengths.tolist() == [2, 0, 2, 2, 2]


def test_positions_that_an_item_has_not(tiny_llama: nn.Module, tmp_path: Path) -> None:
    items = ["abcdef", "ab"]
    dataset = extract(
        tiny_llama,
        items,
        ["model.layers.0", "model.layers.1"],
        tmp_path / "a",
        keep={"model.layers.1": [4, -1]},
    )
    assert dataset.skipped == {1: "2 tokens: positions (4, -1) at model.layers.1"}
    assert dataset[1]["model.layers.1"].shape == (0, 16)
    assert dataset[1]["model.layers.0"].shape == (2, 16)
    alone = item_by_hand(tiny_llama, ids_of("abcdef"), ["model.layers.1"])["model.layers.1"]
    close(dataset[0]["model.layers.1"], alone[[4, 5]], rtol=1e-5, atol=1e-6)


def test_a_mask_keeps_padding_out_of_a_model_that_looks_both_ways(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=101,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model, items = BertModel(config).eval(), texts(30)
    dataset = extract(model, items, ["encoder.layer.0", "pooler"], tmp_path / "a")
    for i, text in enumerate(items):
        alone = item_by_hand(model, ids_of(text), ["encoder.layer.0", "pooler"])
        close(dataset[i]["encoder.layer.0"], alone["encoder.layer.0"], rtol=1e-4, atol=1e-5)
        assert dataset[i]["pooler"].shape == (16,)
        close(dataset[i]["pooler"], alone["pooler"], rtol=1e-4, atol=1e-5)


class Both(nn.Module):
    """Looks at all tokens at once and takes no mask: padding would change every row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(101, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        mixed: Tensor = self.mix(x + x.mean(1, keepdim=True))
        return mixed


def test_without_a_mask_no_row_is_padded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    model = Both().eval()
    items = [torch.randint(0, 101, (draw.randint(1, 6),)) for _ in range(40)]
    dataset = extract(model, items, "mix", tmp_path / "a", tokenizer=None)
    for i, ids in enumerate(items):
        close(dataset[i]["mix"], item_by_hand(model, ids.tolist(), ["mix"])["mix"])


def test_experts_see_flattened_tokens(tiny_mixtral: nn.Module, tmp_path: Path) -> None:
    model, items = tiny_mixtral, texts(12)
    site = "model.layers.0.mlp.experts"
    dataset = extract(model, items, site, tmp_path / "a")
    kept: list[Tensor] = []
    module = dict(model.named_modules())[site]
    module.register_forward_hook(lambda _m, _a, out: kept.append(out.clone()))
    for i, text in enumerate(items):
        with torch.no_grad():
            model(torch.tensor([ids_of(text)]))
        close(dataset[i][site], kept[-1], rtol=1e-4, atol=1e-6)
    with pytest.raises(lv.SiteError, match="no item's part can be told"):
        extract(model, items, f"{site}.act_fn", tmp_path / "b")


@pytest.mark.parametrize("site", ["model.rotary_emb", "model.layers.0.self_attn:output[1]"])
def test_what_is_not_batch_by_tokens_is_refused(tmp_path: Path, site: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    options: dict[str, Any] = {"num_hidden_layers": 1, "attn_implementation": "eager"}
    config = LlamaConfig(
        vocab_size=101, hidden_size=16, intermediate_size=32, num_attention_heads=4, **options
    )
    with pytest.raises(lv.SiteError, match="no item's part can be told"):
        extract(LlamaForCausalLM(config).eval(), ["abcd", "ab"], site, tmp_path / "a")


def test_a_module_of_several_calls_is_asked_for_by_call(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(101, 8)
            self.act = nn.Tanh()

        def forward(self, input_ids: Tensor) -> Tensor:
            once: Tensor = self.act(self.embed(input_ids))
            return torch.as_tensor(self.act(once * 2))

    model = Twice().eval()
    items = [torch.tensor([1, 2, 3]), torch.tensor([4])]
    with pytest.raises(lv.SiteError, match="called 2 times"):
        extract(model, items, "act", tmp_path / "a")
    dataset = extract(model, items, "act@1", tmp_path / "b")
    for i, ids in enumerate(items):
        close(dataset[i]["act@1"], torch.tanh(2 * torch.tanh(model.embed(ids))).detach())


def test_images_have_no_tokens(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 5)).eval()
    items: list[dict[str, Any]]
    items = [{"input": torch.randn(3, 8, 8), "id": f"image {i}"} for i in range(11)]
    dataset = extract(model, items, ["0", "2"], tmp_path / "a", tokenizer=None)
    for i, item in enumerate(items):
        with torch.no_grad():
            alone = model[0](item["input"][None])
            close(dataset[i]["0"], alone[0])
            close(dataset[i]["2"], model[2](model[1](alone))[0])
        assert torch.equal(dataset.item(f"image {i}")["2"], dataset[i]["2"])
    with pytest.raises(lv.InputError, match="has no tokens"):
        extract(model, items, ["0", "2"], tmp_path / "b", tokenizer=None, keep="last")


def test_interventions_are_applied_in_every_run(tiny_llama: nn.Module, tmp_path: Path) -> None:
    vector = torch.randn(16)
    edits = [lv.add("model.layers.0", vector, lv.at(token=-1)), lv.scale("model.layers.2", 0.5)]
    items = texts(15)
    dataset = extract(tiny_llama, items, "model.layers.1", tmp_path / "a", interventions=edits)

    def edit(_m: nn.Module, _a: Any, out: Tensor) -> Tensor:
        out[:, -1] += vector
        return out

    handle = dict(tiny_llama.named_modules())["model.layers.0"].register_forward_hook(edit)
    for i, text in enumerate(items):
        alone = item_by_hand(tiny_llama, ids_of(text), ["model.layers.1"])
        close(dataset[i]["model.layers.1"], alone["model.layers.1"], rtol=1e-5, atol=1e-5)
    handle.remove()


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    model = toy()
    weights = {n: t.clone() for n, t in model.state_dict().items()}
    torch.manual_seed(5)
    state = torch.get_rng_state()
    extract(model, texts(30), "layers.1", tmp_path / "a")
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(t, weights[n]) for n, t in model.state_dict().items())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_a_model_that_drops_values_by_chance_is_told(tmp_path: Path) -> None:
    ids, vector = {"input": torch.tensor([1, 2])}, {"input": torch.randn(4, 6)}
    cases = (
        (nn.Embedding(101, 8), nn.Dropout(0.5), ids),
        (nn.Linear(6, 6), nn.BatchNorm1d(4), vector),
    )
    for number, (*parts, item) in enumerate(cases):
        model = nn.Sequential(*parts).train()
        with pytest.warns(lv.LensWarning, match=r"Call model\.eval\(\) first"):
            extract(model, [item, item], "0", tmp_path / str(number), batch_size=2, stop=True)


def test_rows_of_another_shape_than_those_before_are_refused(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 3).eval()
    items = [{"input": torch.randn(3, size, size)} for size in (8, 8, 9)]
    with pytest.raises(lv.SiteError, match=r"items \[2\] have rows of \[4, 7, 7\]"):
        extract(nn.Sequential(model), items, "0", tmp_path / "a", tokenizer=None)


def test_a_model_that_drops_tokens_is_refused(tmp_path: Path) -> None:
    """Of more than ten tokens, which the first look did not meet."""

    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(101, 8)

        def forward(self, input_ids: Tensor) -> Tensor:
            return torch.as_tensor(self.embed(input_ids[:, :10]))

    items = [torch.arange(4), torch.arange(12)]
    with pytest.raises(lv.SiteError, match=r"at items \[1\] its value has shape \[1, 10, 8\]"):
        extract(Short().eval(), items, "embed", tmp_path / "a", batch_size=1)


def test_shards_are_about_as_large_as_asked_for(tmp_path: Path) -> None:
    items = texts(400, longest=30)
    extract(toy(), items, "layers.1", tmp_path / "a", shard_bytes=100_000)
    parts = read_state(tmp_path / "a").parts
    theory = sum(map(len, items)) * 16 * 4
    assert len(parts) == -(-theory // 100_000) or len(parts) == theory // 100_000
    assert all(part.said["bytes"] >= 100_000 for part in parts[:-1])


def test_the_bar_goes_to_stderr_with_rate_and_time_left(tmp_path: Path) -> None:
    told = io.StringIO()
    with redirect_stderr(told):
        lv.extract_dataset(
            toy(pause=0.02), texts(80), "layers.1", tmp_path / "a", tokenizer=Letters()
        )
    assert "tokens/s" in told.getvalue() and "80/80" in told.getvalue()
    assert "item/s" in told.getvalue() and "<" in told.getvalue()


def test_progress_is_told_to_a_watch(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    watch = lv.Watch(lambda done, total, _text: seen.append((done, total)))
    extract(toy(), texts(20), "layers.1", tmp_path / "a", watch=watch, batch_size=8)
    assert seen == [(8, 20), (16, 20), (20, 20)]
