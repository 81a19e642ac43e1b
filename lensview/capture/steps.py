"""Steps: where one forward of a generation begins and ends, and what it holds of the sequence.

Owns the recorder of the step in progress, its tokens with their places in the whole sequence, and
the traces of the steps that are done. The loop that runs the forwards is transformers' own
(`generate.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..plan import Plan
from ..regions import Frame, positions
from ..resolve import Target
from ..taps.hooks import UNCHANGED, Visitor
from ..tensors.labels import token_labels
from ..traces.parts import Parts
from ..traces.tokens import Tokens, speller
from ..traces.trace import Trace
from .editor import Editor
from .inputs import Call
from .outcome import described, last_logits
from .recorder import Recorder


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


class Stepper:
    """Follows a generation: visitors that live through all of it, each step with its own record."""

    def __init__(
        self,
        module: nn.Module,
        plan: Plan,
        targets: list[Target],
        editor: Editor,
        call: Call,
        tokenizer: Any,
        sequences: Sequences,
    ) -> None:
        self.module = module
        self.plan = plan
        self.targets = targets
        self.sequences = sequences
        self.restart: Callable[[], None] = lambda: None
        self.told: Callable[[int], None] = lambda done: None
        self._editor = editor
        self._call = call
        self._tokenizer = tokenizer
        self._recorder: Recorder | None = None
        self._visitors: list[Visitor] = []
        self._window: Window | None = None
        self._tokens: Tokens | None = None
        self._held = 0
        self._started = 0.0
        self._traces: list[Trace] = []

    # --- visitors ------------------------------------------------------------------------------

    def edits(self) -> Iterator[tuple[Target, Visitor]]:
        """Every intervention's target, with a visitor for all steps."""
        for target, visitor in self._editor.visitors():
            yield target, self._within(visitor)

    def _within(self, visitor: Visitor) -> Visitor:
        def visit(call: int, value: Any) -> Any:
            self._open()
            return visitor(call, value)

        return visit

    def recording(self, position: int) -> Visitor:
        """The visitor that records for the target at `position`, for all steps."""

        def visit(call: int, value: Any) -> Any:
            self._open()
            return self._visitors[position](call, value)

        return visit

    def entered(self, call: int, value: Any) -> Any:
        """The root's forward begins."""
        recorder = self._open()
        self._window = self.sequences.read(value)
        self._tokens = self._spelt(self._window)
        frame = Frame()
        if self._window is not None:
            frame = Frame(self._window.mask, None, self._window.places)
        # `keep=` counts in the step itself, and a row that has ended keeps its padding's values.
        mask = frame.mask
        recorder.frame = Frame(None if mask is None else mask | ~mask.any(1, keepdim=True))
        recorder.aligned = True
        self._editor.see(frame)
        return UNCHANGED

    def left(self, call: int, output: Any) -> Any:
        """The root's forward ends, and with it the step."""
        recorder = self._open()
        self._held += recorder.held
        self._traces.append(self._trace(recorder, output))
        self._recorder = None
        self.restart()
        self.told(len(self._traces))
        return UNCHANGED

    # --- steps ---------------------------------------------------------------------------------

    def _open(self) -> Recorder:
        """The recorder of the step in progress; a value that passes between forwards, as an
        encoder's does before the first, belongs to the step that follows."""
        if self._recorder is None:
            tokens = self._call.tokens
            frame = Frame(None if tokens is None else tokens.mask)
            limit = self.plan.max_bytes
            left = None if limit is None else max(limit - self._held, 0)
            self._recorder = Recorder(self.targets, self.plan, frame, left)
            self._recorder.aligned = False
            self._visitors = [self._recorder.visitor(i) for i in range(len(self.targets))]
            self._editor.restart()
            self._editor.see(frame)
            self._started = time.time()
        return self._recorder

    def _spelt(self, window: Window | None) -> Tokens | None:
        if window is None or window.ids is None:
            return None
        rows = [row[keep].tolist() for row, keep in zip(window.ids, window.mask, strict=True)]
        labels = [token_labels(self._tokenizer, row) for row in rows]
        return Tokens(window.ids, window.mask, labels)

    def _trace(self, recorder: Recorder, output: Any) -> Trace:
        window = self._window
        step = {
            "index": len(self._traces),
            "first": 0 if window is None else window.first,
            "columns": 0 if window is None else window.columns,
            "rows": self.sequences.rows,
        }
        return Trace(
            Parts(
                plan=self.plan,
                records=recorder.records(),
                missed=recorder.missed(),
                calls=recorder.calls(),
                asked=recorder.asked(),
                reports=self._editor.reports(),
                tokens=self._tokens,
                logits=last_logits(self.module, output, self._tokens),
                meta={**described(self.module, self._started), "step": step},
                spell=speller(self._tokenizer),
            )
        )

    def finished(self, new: int) -> list[Trace]:
        """The traces of the steps that gave `new` tokens.

        Where reading the end of a sequence would wait for the device, transformers runs one forward
        too many and undoes it; that is no step.
        """
        extra = len(self._traces) == new + 1 and self.sequences.rows != "beam"
        return self._traces[:new] if extra else self._traces
