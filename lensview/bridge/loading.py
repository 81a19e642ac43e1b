"""Loading: a model on every rank, and its tokenizer.

Owns the process group and what a user may name: a path or an id that transformers loads, or a
function of their own. It is run by each rank; nothing here knows the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import LensError

Say = Callable[[str], None]


def load(spec: Mapping[str, Any], say: Say) -> tuple[nn.Module, Any]:
    """The model and its tokenizer (or None) that `spec` names (see `launch`).

    Raises:
        LensError: the loader returned something else than a model.
    """
    say("joining the others")
    device = _join(int(spec["timeout"]), int(spec["tp"]))
    if spec["loader"]:
        say(f"calling {spec['loader']}")
        loaded = named(spec["loader"])(**spec["options"])
        model, tokenizer = loaded if isinstance(loaded, tuple) else (loaded, None)
        if not isinstance(model, nn.Module):
            raise LensError(
                f"{spec['loader']} returned a {type(model).__name__}; it is to return a model (a "
                "torch nn.Module), or a model and its tokenizer."
            )
        return model, tokenizer
    return _pretrained(spec, device, say)


def _join(timeout: int, tp: int) -> torch.device:
    """Make the group of the `tp` ranks that hold one model; the device of this one."""
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=timeout)
    number, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    # To each group it is the world: nothing that a library says to all goes further. What a group
    # before has left in the launcher's store, which outlives a restart, is not met either.
    store, *_ = next(rendezvous("env://", timeout=limit))
    name = f"lensview/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number // tp}"
    store = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    where: dict[str, Any] = {
        "timeout": limit,
        "store": store,
        "rank": number % tp,
        "world_size": tp,
    }
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(number % tp), str(tp)
    # One for each rank of this machine, or none for any: the ranks of a group have one backend.
    here = int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, **where)
        return device
    dist.init_process_group("gloo", **where)
    return torch.device("cpu")


def named(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names."""
    module, _, function = name.partition(":")
    found: Any = import_module(module)
    for part in function.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _pretrained(spec: Mapping[str, Any], device: torch.device, say: Say) -> tuple[nn.Module, Any]:
    say("importing transformers")
    import transformers
    from transformers.utils import logging

    logging.disable_progress_bar()
    options = dict(spec["options"])
    world = torch.distributed.get_world_size()
    if world > 1:
        from transformers.distributed.configuration_utils import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=world)
    path = spec["path"]
    say(f"reading the weights of {path}")
    model = _class_of(path, options).from_pretrained(path, **options)
    if world == 1:
        model = model.to(device)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    except Exception:  # there is none, in one of many ways; prompts then are token ids
        tokenizer = None
    return model.eval(), tokenizer


def _class_of(path: str, options: Mapping[str, Any]) -> Any:
    """The class that the checkpoint says it is of, where transformers has it."""
    import transformers

    known = {n: v for n, v in options.items() if n in ("revision", "trust_remote_code", "token")}
    config = transformers.AutoConfig.from_pretrained(path, **known)
    name = (getattr(config, "architectures", None) or [""])[0]
    return getattr(transformers, name, None) or transformers.AutoModelForCausalLM


def keep_tokenizer(tokenizer: Any, folder: Path) -> bool:
    """Leave a tokenizer where the kernel reads it; whether that was possible."""
    try:
        tokenizer.save_pretrained(str(folder))
    except Exception:  # one of the user's own, of any class
        return False
    return True
