"""Checks on every rank: weights, code by hand and degrees of a split Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lensview.errors import (
    DegreeError,
    InputError,
    PlacementError,
    SiteError,
)
from lensview.parallel import byhand
from lensview.parallel.degrees import check_degree, unplanned
from lensview.parallel.group import Ranks
from lensview.parallel.weights import weight
from tests.ranks.tp_capture_pair import raises
from tests.ranks.tp_models import VOCABULARY, WIDTH


def llama(heads: int = 6) -> Any:
    """The same tiny model in every process, of uneven widths."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        intermediate_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def split_llama(out: Path) -> Any:
    from transformers import LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    place = out / "model"
    if dist.get_rank() == 0 and not place.exists():
        llama().save_pretrained(place)
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(
        place, distributed_config=DistributedConfig(tp_size=dist.get_world_size())
    )


def weights(out: Path) -> Any:
    model, alone = split_llama(out), llama()
    here = Ranks.of(model)
    assert here is not None and Ranks.of(alone) is None
    assert (here.size, here.rank) == (dist.get_world_size(), dist.get_rank())
    split = 0
    some: list[Any] = [[5, 0, 23, 5, -1], slice(3, 17, 2), slice(None, None, -1), []]
    for name, parameter in alone.named_parameters():
        whole = weight(model, name)
        assert type(whole) is Tensor and not whole.requires_grad
        assert torch.equal(whole, parameter.detach())
        assert torch.equal(weight(alone, name), parameter.detach())
        for rows in some:
            numbers = list(range(len(parameter)))[rows] if isinstance(rows, slice) else rows
            expected = parameter.detach()[numbers]
            assert torch.equal(weight(model, name, rows), expected)
            assert torch.equal(weight(alone, name, rows), expected)
        split += type(model.get_parameter(name)).__name__ == "DTensor"
    assert torch.equal(
        weight(model, "model.rotary_emb.inv_freq"), weight(alone, "model.rotary_emb.inv_freq")
    )
    with raises(SiteError, "'lm_hed.weight'", "'lm_head.weight'"):
        weight(model, "lm_hed.weight")
    with raises(InputError, f"no row {VOCABULARY}"):
        weight(model, "lm_head.weight", [3, VOCABULARY])
    offloaded = nn.Linear(3, 2, device="meta")
    with raises(InputError, "offloaded", "(2, 3)"):
        weight(offloaded, "weight")
    return split


def by_hand(out: Path) -> Any:
    """An edit in a plain hook, on the split model and on the whole one: logits and gradients."""
    model, alone = split_llama(out), llama()
    ids = torch.tensor([[5, 17, 3, 9], [8, 8, 1, 90]])
    torch.manual_seed(5)
    mix, mix_mlp = torch.randn(24, 24) / 5, torch.randn(WIDTH, WIDTH) / 5

    def run(net: Any) -> tuple[Tensor, list[Tensor], Tensor]:
        seen: list[Tensor] = []

        def edit(module: nn.Module, args: Any, value: Tensor, by: Tensor) -> Tensor:
            whole = byhand.gather(net, value)
            seen.append(whole)
            return byhand.shard(net, (whole @ by).tanh())

        layer = net.model.layers[0]
        handles = [
            layer.self_attn.q_proj.register_forward_hook(lambda m, a, v: edit(m, a, v, mix)),
            layer.mlp.act_fn.register_forward_hook(lambda m, a, v: edit(m, a, v, mix_mlp)),
        ]
        embedded = net.get_input_embeddings()(ids).detach().requires_grad_()
        logits = net(inputs_embeds=embedded).logits
        # The loss is of logits and of a gathered value, which every rank has alike.
        loss = logits.float().log_softmax(-1)[:, -1, 3].sum() + (seen[0] ** 2).sum()
        loss.backward()
        for handle in handles:
            handle.remove()
        assert embedded.grad is not None
        return logits.detach(), [s.detach() for s in seen], embedded.grad

    ours, theirs = run(model), run(alone)
    for one, other in zip([ours[0], *ours[1], ours[2]], [theirs[0], *theirs[1], theirs[2]]):  # noqa: B905
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for wrong, text in ((torch.zeros(2, 3 + dist.get_rank()), "holds"), (torch.zeros(()), "dim")):
        with raises(PlacementError, text):
            byhand.gather(model, wrong)
    with raises(PlacementError, "no dim 2"):
        byhand.shard(model, torch.zeros(2, 3), 2)


def degrees(out: Path) -> Any:
    """What `check_degree` lets through runs, and computes what one process does."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    size = dist.get_world_size()
    shapes: list[dict[str, Any]] = [
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 4},
        {"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 2, "hidden_size": 20},
        {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 4, "model_type": "qwen3"},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "model_type": "mixtral"},
    ]
    told = {}
    for i, shape in enumerate(shapes):
        kind = shape.pop("model_type", "llama")
        config = AutoConfig.for_model(
            kind,
            **{"vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": WIDTH}
            | {"num_hidden_layers": 1, "num_local_experts": 4, "pad_token_id": None}
            | shape,
        )
        name = f"{kind} {shape['num_attention_heads']}/{shape['num_key_value_heads']}"
        try:
            check_degree(config, size)
        except DegreeError as error:
            told[name] = str(error)
            continue
        torch.manual_seed(0)
        # The grouped product wants strides of 16 bytes, which uneven shards have not.
        eager = {"experts_implementation": "eager"} if kind == "mixtral" else {}
        alone = AutoModelForCausalLM.from_config(config, **eager).eval()
        place = out / f"degrees{i}"
        if dist.get_rank() == 0:
            alone.save_pretrained(place)
        dist.barrier()
        model = AutoModelForCausalLM.from_pretrained(
            place, distributed_config=DistributedConfig(tp_size=size), **eager
        )
        assert unplanned(model) is None and Ranks.of(model) is not None
        ids = torch.tensor([[5, 17, 3, 9]])
        with torch.no_grad():
            torch.testing.assert_close(model(ids).logits, alone(ids).logits, rtol=1e-4, atol=1e-5)
        for at, parameter in alone.named_parameters():
            assert torch.equal(weight(model, at), parameter.detach()), at
            assert torch.equal(weight(model, at, [1, 0]), parameter.detach()[[1, 0]]), at
        told[name] = "runs"
    return told
