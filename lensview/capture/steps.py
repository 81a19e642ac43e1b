"""Steps: where one forward of a generation begins and ends, and what it holds of the sequence.

Owns the recorder of the step in progress and the traces of the steps that are done. Where a step's
tokens stand is `sequences.py`'s; the loop that runs the forwards is transformers' own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ..modules import index
from ..plan import Plan
from ..regions import Frame
from ..resolve import Target
from ..taps.hooks import UNCHANGED, Visitor
from ..taps.ops import OpsMet, OpWish
from ..tensors.labels import token_labels
from ..traces.checks import Check
from ..traces.parts import Parts
from ..traces.tokens import Tokens, speller
from ..traces.trace import Trace
from .checks import bypassed, ranks, standing
from .editor import Editor
from .inputs import Call
from .outcome import described, last_logits
from .recorder import Recorder
from .sequences import Sequences, Window
from .spread import Spread


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
        spread: Spread | None = None,
    ) -> None:
        self._spread = spread
        self.module = module
        self.plan = plan
        self.targets = targets
        self.sequences = sequences
        self.restart: Callable[[], None] = lambda: None
        self.told: Callable[[int], None] = lambda done: None
        self._modules = index(module)
        self._editor = editor
        self._call = call
        self._tokenizer = tokenizer
        self._recorder: Recorder | None = None
        self._visitors: list[Visitor] = []
        self._window: Window | None = None
        self._tokens: Tokens | None = None
        self._held = 0
        self._handled = sys.exc_info()[1]
        self._started = 0.0
        self._traces: list[Trace] = []
        self._standing: list[Check] | None = None
        self._ops: dict[int, OpsMet] = {}
        self._wishes: dict[int, OpWish] = {}
        self._at_ops: dict[tuple[int, str, int], Visitor] = {}
        self._refused: dict[int, str] = {}

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

    def op_edits(self) -> Iterator[tuple[Target, Callable[[OpsMet], OpWish]]]:
        """Every intervention's target between ops, with what its ops are told in all steps."""

        def in_steps(make: Callable[[OpsMet], OpWish], ops: OpsMet) -> OpWish:
            wish = make(ops)
            return OpWish(wish.takes, lambda name, k: self._within(wish.visitor(name, k)))

        for target, make in self._editor.wishes():
            yield target, partial(in_steps, make)

    def recording_ops(self, position: int, ops: OpsMet) -> OpWish:
        """What records the ops that the target at `position` means, for all steps: ops are asked
        once for their visitors, which pass each value to the recorder of its step."""
        self._ops[position] = ops

        def visitor(name: str, k: int) -> Visitor:
            def visit(call: int, value: Any) -> Any:
                self._open()
                key = (position, name, k)
                if key not in self._at_ops:
                    self._at_ops[key] = self._wishes[position].visitor(name, k)
                return self._at_ops[key](call, value)

            return visit

        return OpWish(self.targets[position].site.takes_op, visitor)

    def refuse(self, position: int, reason: str) -> None:
        """Nothing will be recorded for the target at `position`, in no step."""
        self._refused[position] = reason

    def entered(self, call: int, value: Any) -> Any:
        """The root's forward begins."""
        recorder = self._open()
        self._window = self.sequences.read(value)
        self._tokens = self._spelt(self._window)
        if self._spread is not None:
            window = self._window
            shape = None if window is None else window.mask.shape
            self._spread.begin(shape, 0 if window is None else window.first)
        frame = Frame()
        if self._window is not None:
            frame = Frame(self._window.mask, positions=self._window.places)
        # `keep=` counts in the step itself, and a row that has ended keeps its padding's values.
        mask = frame.mask
        recorder.frame = Frame(None if mask is None else mask | ~mask.any(1, keepdim=True))
        recorder.aligned = True
        self._editor.see(replace(frame, step=len(self._traces)))
        return UNCHANGED

    def left(self, call: int, output: Any) -> Any:
        """The root's forward ends, and with it the step, unless it ends by an error: what all ranks
        do at the end of a step is then not to be done by this one."""
        if sys.exc_info()[1] is not self._handled:
            return UNCHANGED
        recorder = self._open()
        self._editor.settle()
        recorder.settle()
        recorder.part()
        self._held += recorder.held
        self._traces.append(self._trace(recorder, output))
        self._recorder = None
        for ops in self._ops.values():
            ops.calls, ops.texts = 0, {}
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
            self._recorder = Recorder(
                self.targets, self.plan, frame, left, self._modules, spread=self._spread
            )
            self._recorder.aligned = False
            self._visitors = [self._recorder.visitor(i) for i in range(len(self.targets))]
            self._wishes = {i: self._recorder.wish(i, ops) for i, ops in self._ops.items()}
            self._at_ops = {}
            for position, reason in self._refused.items():
                self._recorder.refuse(position, reason)
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
                statistics=recorder.statistics(),
                missed=recorder.missed(),
                calls=recorder.calls(),
                asked=recorder.asked(),
                reports=self._editor.reports(),
                tokens=self._tokens,
                logits=last_logits(self.module, output, self._tokens),
                meta={
                    **described(self.module, self._started),
                    **recorder.kept_where(),
                    "step": step,
                },
                spell=speller(self._tokenizer),
                checks=self._checks(recorder),
            )
        )

    def _checks(self, recorder: Recorder) -> tuple[Check, ...]:
        """What is known of a step: the mode and the modules are looked at once for all."""
        if self._standing is None:
            self._standing = standing(self.module, self._modules, grad=False)
        mode, called = self._standing
        return (bypassed(called, recorder.missed()), mode, ranks(self.module, recorder))

    def finished(self, new: int) -> list[Trace]:
        """The traces of the steps that gave `new` tokens.

        Where reading the end of a sequence would wait for the device, transformers runs one forward
        too many and undoes it; that is no step.
        """
        extra = len(self._traces) == new + 1 and self.sequences.rows != "beam"
        return self._traces[:new] if extra else self._traces
