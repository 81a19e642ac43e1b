"""Randomness: the state of torch's generators around a run.

Owns looking at it and putting it back; it never seeds anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Draws:
    """The generators that a model's forward may draw from, as they were when this was made."""

    def __init__(self, module: nn.Module) -> None:
        parameters = module.parameters() if torch.cuda.is_available() else ()
        devices = {p.device for p in parameters if p.device.type == "cuda"}
        self._devices = sorted(d.index for d in devices if d.index is not None)
        self._before = self._states()

    def _states(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in self._devices)]

    def drawn(self) -> bool:
        """Whether something was drawn since."""
        pairs = zip(self._before, self._states(), strict=True)
        return not all(torch.equal(a, b) for a, b in pairs)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw once more what was drawn since; afterwards the generators are as they are now."""
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._before[0])
            for device, state in zip(self._devices, self._before[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
