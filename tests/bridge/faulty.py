"""Models whose ranks fail when they are told to; ranks import this by path."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn

RAISE, EXIT, KILL, STOP, SLEEP, SPIN, OTHER, TRAIN = range(93, 101)
"""Token ids that stand first in a prompt for a fault of rank 1, in the midst of the forward."""


def load(path: str, fail: int = -1, sleep: float = 0.0) -> Any:
    """The model of `path` over all ranks, its rank 1 at fault on those prompts.

    Args:
        fail: a rank that raises instead.
        sleep: seconds that a load takes beside.
    """
    from transformers import AutoModelForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    rank = int(os.environ["RANK"])
    print("loading", path)
    time.sleep(sleep)
    if rank == fail:
        raise RuntimeError(f"no weights on rank {rank}")
    split = DistributedConfig(tp_size=torch.distributed.get_world_size())
    model = AutoModelForCausalLM.from_pretrained(path, distributed_config=split).eval()
    if rank == 1:
        model.model.embed_tokens.register_forward_pre_hook(_note)
        model.model.layers[1].register_forward_pre_hook(_act)
        _models.append(model)
    return model


_fault = [0]
_models: list[nn.Module] = []


def _note(module: nn.Module, args: Any) -> None:
    _fault[0] = int(args[0][0, 0])


def _act(module: nn.Module, args: Any) -> None:
    fault = _fault[0]
    if fault == RAISE:
        print("about to raise")
        raise KeyError("lost on rank 1")
    if fault == EXIT:
        print("about to exit", flush=True)
        os._exit(9)
    if fault == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == STOP:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == SLEEP:
        time.sleep(3600)
    if fault == SPIN:
        while True:
            pass
    if fault == TRAIN:
        _models[0].train()
    if fault == OTHER:
        raise SystemExit(3)


def not_a_model() -> str:
    """What a loader must not return."""
    return "weights"
