"""Stream: the random numbers of one place in one run.

Owns how a seed becomes numbers: the same on every device and in every dtype, and never from the
global random state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .sites import Site


def normal(seed: int, site: Site, step: int, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers of `shape`, float32 on the CPU.

    Each site, each call of it and each decode step has a stream of its own, so that a glob or a
    generation does not add the same pattern everywhere. The generator's seed is the first 8 bytes,
    little endian and without the top bit, of the BLAKE2b digest of ``"seed|site|call|step"``,
    where site is the canonical text without its call.
    """
    text = f"{seed}|{site.at_call(None)}|{site.call or 0}|{step}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    generator = torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32, device="cpu")
