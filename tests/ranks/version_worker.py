"""What every rank runs under torchrun to see whether this version of transformers is taken.

What a capture said, or the largest difference from the same model in one process, is one file of
JSON a rank, ``rank0.json`` and so on. Nothing is imported that an old transformers lacks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import lensview as lv

IDS = torch.tensor([[5, 17, 3, 9]])
SITE = "model.layers.0.self_attn.q_proj"


def captured(place: Path) -> dict[str, Any]:
    """How a value that is split was captured."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    whole: Any = LlamaForCausalLM(config)
    whole.eval()
    if dist.get_rank() == 0:
        whole.save_pretrained(place)
    dist.barrier()
    split = DistributedConfig(tp_size=dist.get_world_size())
    model = LlamaForCausalLM.from_pretrained(place, distributed_config=split).eval()
    expected: list[torch.Tensor] = []
    handle = whole.get_submodule(SITE).register_forward_hook(lambda _m, _a, y: expected.append(y))
    with torch.no_grad():
        whole(IDS)
    handle.remove()
    try:
        trace = lv.trace(model, IDS, [SITE], records="all")
    except lv.CaptureUnsupportedError as error:
        return {"refused": str(error)}
    return {"apart": float((trace[SITE] - expected[0]).abs().max())}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    told = captured(Path(sys.argv[1]) / "model")
    (Path(sys.argv[1]) / f"rank{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()
