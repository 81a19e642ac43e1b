"""Generation: what a run of several forwards saw, step by step.

Owns the answers that need all steps: joining a site's records, the text, why each row ended.
Running it is `generate.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from ..errors import NotRecordedError, SiteError
from ..traces.parts import InterventionReport
from ..traces.trace import Trace

Reason = Literal["eos", "max_new_tokens", "stopped"]


class Ending(NamedTuple):
    """Why a row of a generation ended.

    Attributes:
        reason: "eos": it wrote an end-of-sequence token; "max_new_tokens": it was as long as
            asked; "stopped": a stopping criterion or a time limit of the caller's.
        step: the step whose forward gave the row's last token.
    """

    reason: Reason
    step: int

    def __str__(self) -> str:
        return f"{self.reason} at step {self.step}"


@dataclass(frozen=True, eq=False)
class Steps:
    """All that a generation is made of; `Generation` says what each is."""

    traces: tuple[Trace, ...]
    ids: Tensor
    prompt: int
    ended: tuple[Ending, ...]
    reports: tuple[InterventionReport, ...]
    rows: str
    tokenizer: Any
    output: Any


class Generation(Sequence[Trace]):
    """What one generation saw: a sequence of traces, one per forward.

    Step 0 is the prefill, which reads the prompt; step i reads the token that step i - 1 gave
    (without a cache: the whole sequence again). The last token is given and never read.

    Attributes:
        steps: the traces, in order. ``gen.step(i)`` is one of them.
        ids: int64 (rows, prompt + new), on the CPU: what ``model.generate`` returned.
        ended: per row of `ids`, an `Ending`. Rows that end early are padded in `ids`.
        reports: one `InterventionReport` per intervention, over all steps.
        rows: what a row of the records is: "prompt", "sample" (several for each prompt) or
            "beam", whose order changes from step to step.
        output: what ``model.generate`` returned, where it was asked for more than ids, else None.
    """

    def __init__(self, parts: Steps) -> None:
        self._parts = parts
        self.steps = parts.traces
        self.ids = parts.ids
        self.ended = parts.ended
        self.reports = parts.reports
        self.rows = parts.rows
        self.output = parts.output

    def __len__(self) -> int:
        return len(self.steps)

    @overload
    def __getitem__(self, item: int) -> Trace: ...
    @overload
    def __getitem__(self, item: slice) -> Sequence[Trace]: ...
    def __getitem__(self, item: int | slice) -> Trace | Sequence[Trace]:
        return self.steps[item] if isinstance(item, slice) else self.step(item)

    def __iter__(self) -> Iterator[Trace]:
        return iter(self.steps)

    def __repr__(self) -> str:
        ends = [str(e) for e in self.ended]
        shown = ", ".join(ends[:4]) + (f" … ({len(ends)} rows)" if len(ends) > 4 else "")
        return f"Generation of {len(self)} steps: {shown}"

    def step(self, i: int) -> Trace:
        """The trace of step `i`: 0 is the prefill; negative ones count from the end.

        Raises:
            IndexError: there were fewer steps; says why it ended.
        """
        if not -len(self) <= i < len(self):
            ends = ", ".join(dict.fromkeys(str(e) for e in self.ended))
            raise IndexError(
                f"Step {i} is out of range: the generation had {len(self)} steps ({ends})."
            )
        return self.steps[i]

    def stack(self, site: str) -> Tensor:
        """The records of `site` in all steps, joined along the tokens: (rows, tokens, …).

        With a cache that is each token of the sequence once, except the last, which nothing read.

        Raises:
            SiteError: the records are not aligned to their steps' tokens, or the steps read the
                same tokens again (no cache), or rows are beams.
            NotRecordedError: a step has no record there.
        """
        if self.rows == "beam":
            raise SiteError(
                f"{site}: rows are beams, and beams change places from step to step, so joined "
                "rows would mix sequences. Read gen.step(i)[…] of each step."
            )
        for i, trace in enumerate(self.steps):
            if site not in trace:
                raise NotRecordedError(f"Step {i}: {self._why_not(trace, site)}")
            if not trace.aligned(site):
                raise SiteError(
                    f"{site}: its record at step {i}, of shape {tuple(trace[site].shape)}, does "
                    "not hold that step's tokens in dim 1, so steps cannot be joined there. Read "
                    "gen.step(i)[…] of each step."
                )
            if i and trace.meta["step"]["first"] != self._read_before(i):
                raise SiteError(
                    f"{site}: step {i} read tokens again that earlier steps had read (the run was "
                    "without a cache). Its record holds the whole sequence so far: read "
                    f"gen.step({len(self) - 1})[…]."
                )
        return torch.cat([trace[site] for trace in self.steps], 1)

    def _read_before(self, i: int) -> int:
        before = self.steps[i - 1].meta["step"]
        return int(before["first"] + before["columns"])

    def _why_not(self, trace: Trace, site: str) -> str:
        try:
            trace.record(site)
        except (NotRecordedError, SiteError) as error:
            return str(error)
        return f"{site} was not recorded."

    def text(self, row: int = 0, *, prompt: bool = False) -> str:
        """What row `row` of `ids` says, without its padding: the new part, or with the prompt.

        Raises:
            ValueError: the generation had no tokenizer, or `row` is out of range.
        """
        if self._parts.tokenizer is None:
            raise ValueError("There is no tokenizer to spell the ids in gen.ids: pass tokenizer=….")
        if not -len(self.ids) <= row < len(self.ids):
            raise ValueError(f"Row {row} is out of range: there are {len(self.ids)} rows.")
        new = self.ids[row, self._parts.prompt :][: self.ended[row].step + 1].tolist()
        before: list[int] = []
        if prompt:
            before = self.ids[row, : self._parts.prompt].tolist()
            first = self.steps[0].tokens
            if first is not None and first.ids.shape[1] == len(before) and self.rows == "prompt":
                before = first.ids[row][first.mask[row]].tolist()
        text: str = self._parts.tokenizer.decode([*before, *new])
        return text
