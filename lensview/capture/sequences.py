"""Sequences: how the rows of a generation grow, and what one forward reads of them.

Owns which columns exist, which of them are real tokens, and their places in the whole sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..regions import positions
from .inputs import Call


@dataclass(frozen=True, eq=False)
class Window:
    """The columns of the whole sequence that one forward reads.

    Attributes:
        first, columns: the first one's number, and how many.
        mask: bool (rows, columns), True at real tokens.
        places: int64 (rows, columns), see `Frame.positions`.
        ids: int64 (rows, columns), or None where the forward got no ids.
    """

    first: int
    columns: int
    mask: Tensor
    places: Tensor
    ids: Tensor | None


class Sequences:
    """The rows of a generation as they grow: which columns exist, and which are real tokens.

    After a row's end-of-sequence token the others go on, and it is padded: from there on its
    columns are not real, so that a row is what its own run would be.
    """

    def __init__(self, module: nn.Module, call: Call, eos: tuple[int, ...], beams: bool) -> None:
        config = getattr(module, "config", None)
        self._decoder = bool(getattr(config, "is_encoder_decoder", False))
        self._call = call
        self._eos = torch.tensor(eos, dtype=torch.int64)
        self._beams = beams
        self._real: Tensor | None = None
        self._started = 0
        self._prompts = 0
        self.prompt = 0

    @property
    def rows(self) -> str:
        """What a row of the forwards is: see `Generation.rows`."""
        if self._beams:
            return "beam"
        return "prompt" if self._real is None or len(self._real) == self._prompts else "sample"

    def read(self, given: dict[str, Any]) -> Window | None:
        """The window of a forward with these arguments; None where it reads no sequence."""
        prefix = "decoder_" if self._decoder else ""
        ids = given.get(f"{prefix}input_ids")
        read = ids if isinstance(ids, Tensor) else given.get(f"{prefix}inputs_embeds")
        if not isinstance(read, Tensor) or read.dim() < 2:
            return None
        rows, columns = read.shape[:2]
        ids = ids.detach().cpu().long() if isinstance(ids, Tensor) else None
        mask = given.get(f"{prefix}attention_mask")
        mask = mask.detach().cpu() != 0 if isinstance(mask, Tensor) and mask.dim() == 2 else None
        if self._real is None:
            self._real = self._start(rows, columns, mask)
            self._started = self._real.shape[1]
        else:
            self._real = torch.cat([self._real, self._goes_on(self._real, ids)], 1)
        real = self._real
        places = positions(real)
        return Window(
            real.shape[1] - columns, columns, real[:, -columns:], places[:, -columns:], ids
        )

    def _start(self, rows: int, columns: int, mask: Tensor | None) -> Tensor:
        tokens = self._call.tokens
        embeds = self._call.kwargs.get("inputs_embeds")
        known = columns if self._decoder or tokens is None else tokens.ids.shape[1]
        if self._decoder or (tokens is None and embeds is None):
            self.prompt = columns
        else:
            self.prompt = 0 if tokens is None else tokens.ids.shape[1]
        self._prompts = rows if tokens is None else len(tokens.ids)
        if tokens is None and isinstance(embeds, Tensor):
            self._prompts = len(embeds)
        if mask is not None and len(mask) == rows and mask.shape[1] >= columns:
            return mask
        real = torch.ones(rows, max(known, columns), dtype=torch.bool)
        if tokens is not None and not self._decoder and tokens.mask.shape[1] == real.shape[1]:
            real &= tokens.mask.repeat_interleave(rows // len(tokens.mask), 0)
        return real

    def _goes_on(self, real: Tensor, ids: Tensor | None) -> Tensor:
        """(rows, 1): whether the token that the step before gave is real for each row."""
        going = torch.ones(len(real), 1, dtype=torch.bool)
        if ids is None or self._beams or len(ids) != len(real):
            return going
        if real.shape[1] > self._started:
            going &= real[:, -1:]
        return going & ~torch.isin(ids[:, -1:], self._eos)
