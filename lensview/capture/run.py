"""Run: one forward under a plan becomes a Trace.

Owns the order of a run: checks, hooks, the one forward, what is made of its output. What is kept
is `recorder.py`'s, what is changed `editor.py`'s, where hooks stand `taps/`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..interventions import Intervention
from ..modules import blocks, index
from ..plan import Plan, Records
from ..regions import Frame
from ..resolve import Target, resolve
from ..taps.hooks import Point, taps
from ..taps.skips import skips
from ..traces.checks import Check
from ..traces.parts import Parts
from ..traces.reading import extracted
from ..traces.tokens import speller
from ..traces.trace import Trace
from ..watch import Watch
from ..wrappers.refusal import refuse, refuse_inputs
from ..wrappers.unwrap import eagerly, has_compiled, unwrap
from .checks import checks
from .editor import Editor
from .given import learn
from .inputs import Call, prepare
from .opsites import no_ops
from .outcome import check_mode, described, last_logits
from .plaincall import PlainCall, not_compared
from .randomness import Draws
from .recorder import Recorder, Stopped
from .spread import Spread, past_tokens, together
from .verdict import pronounce


def trace(
    model: nn.Module,
    inputs: Any,
    sites: str | Iterable[str] = "**",
    interventions: Intervention | Iterable[Intervention] = (),
    *,
    tokenizer: Any = None,
    chat: bool = False,
    keep_output: bool = False,
    keep: Any = None,
    grad: bool = False,
    stop: bool = False,
    max_bytes: int | None = None,
    records: Records = "rank0",
    check: bool = False,
    watch: Watch | None = None,
) -> Trace:
    """Run `model` once and keep what passed at `sites`.

    Without interventions the model's output is bit-identical to a plain call's. The run is under
    ``torch.no_grad()``; train or eval mode stays as it is; afterwards the model has the hooks and
    the random state that a plain call would leave, also after an error or an interrupt.

    Args:
        model: an ``nn.Module``; DataParallel, DDP and ``torch.compile`` wrappers are looked
            through.
        inputs: a string or a list of strings (with a tokenizer), a tensor, a mapping of keyword
            arguments, a tuple of positional ones, or `Args` for both at once.
        sites: what to record, by name or glob; ``"**"`` is every module's output.
        interventions: changes to apply, in this order at each site.
        tokenizer: reads strings and spells tokens; any callable tokenizer of transformers.
        chat: each string is a user's message in the tokenizer's chat template.
        keep_output: keep the model's whole output as ``trace.output``.
        keep: keep less of each value: an index as interventions take it (``lv.at(token=-1)``; an
            int keeps its dim), a floating dtype, both as ``(index, dtype)``, ``"statistics"``
            (``trace.statistics``, and no tensor), or a mapping of globs to these. Where an index
            does not fit a value that a glob found, it is in ``trace.missed``.
        grad: run in the caller's grad mode instead of ``no_grad``; `output` is kept, and after the
            caller's ``backward`` on a loss made from it, ``trace.grad(site)`` reads. Backward
            computes checkpointed parts again, which adds no calls. Records stay plain copies.
        stop: end the forward once every site was seen: a site without ``@call`` at its first
            call, each site of a glob at its own. Such a trace has no output and no logits, and
            ``trace.meta["stopped"]`` is true; a cache that the caller passed in is left filled for
            the modules that ran, and for them alone. What is never called lets the run go on.
        max_bytes: of what globs find, leave out records beyond this many bytes; they are listed
            in ``trace.missed``. Where the sites asked for by name need more, by an estimate before
            the run (see `estimate`), it is refused; one that cannot be estimated is run.
        records: on a model that transformers split over ranks, where every rank runs this same
            line, which of them keep records: "rank0" or "all". Values are whole in either case.
        check: compare the output with that of a plain call, bit for bit, by a second forward
            after the run; the first of ``trace.checks`` says what came of it. Not for runs with
            interventions, whose output is meant to differ.
        watch: follows the run and can cancel it.

    Returns:
        A `Trace`: a mapping from site to tensor, in the activation's dtype, on its device.

    Raises:
        InputError, TypeError: the inputs cannot be run.
        CaptureUnsupportedError: the model cannot be shown whole; lists every reason.
        SiteError: a site that does not exist, before the run, with near matches.
        InterventionError: an intervention that does not fit; names site, shapes and rule.
        IdleInterventionError: after the run, an intervention that met no value; it has the trace.
        LimitError: the sites asked for by name need more than `max_bytes`; lists the largest.
        RankDivergenceError: ranks of one model were asked for different runs, or one did not come.
        DegreeError: the model cannot be split over so many ranks.
        RunCancelled: `watch` was cancelled.
    """
    plan = Plan.make(
        sites,
        interventions,
        keep_output=keep_output,
        max_bytes=max_bytes,
        keep=keep,
        grad=grad,
        stop=stop,
        records=records,
    )
    if max_bytes is not None:
        from .estimate import within

        within(model, inputs, plan, tokenizer=tokenizer, chat=chat)
    return run(model, inputs, plan, tokenizer=tokenizer, chat=chat, check=check, watch=watch)


def extract(
    model: nn.Module,
    inputs: Any,
    sites: str | Iterable[str],
    interventions: Intervention | Iterable[Intervention] = (),
    *,
    tokenizer: Any = None,
    chat: bool = False,
    keep: Any = None,
    stop: bool = False,
    records: Records = "rank0",
    watch: Watch | None = None,
) -> dict[str, Tensor]:
    """The tensors at `sites`, keyed by the texts asked for; a glob's by their canonical texts.

    See `trace` for the arguments. On a rank that keeps no records the mapping is empty, and reading
    a site from it says why.

    Raises:
        SiteError: besides what `trace` raises, a site without ``@call`` that was called several
            times.
        NotRecordedError: a site that was never seen, with the reason.
    """
    asked = (sites,) if isinstance(sites, str) else tuple(sites)
    seen = trace(
        model,
        inputs,
        asked,
        interventions,
        tokenizer=tokenizer,
        chat=chat,
        keep=keep,
        stop=stop,
        records=records,
        watch=watch,
    )
    return extracted(seen, asked)


def run(
    model: nn.Module,
    inputs: Any,
    plan: Plan,
    *,
    tokenizer: Any = None,
    chat: bool = False,
    check: bool = False,
    watch: Watch | None = None,
) -> Trace:
    """One forward of `model` under `plan`; see `trace`."""
    prepared = Prepared(model, plan)
    return prepared.run(
        inputs, tokenizer=tokenizer, chat=chat, check=check, watch=watch, stacklevel=4
    )


class Prepared:
    """A plan on a model, to be run any number of times: what no input changes is looked at once.

    It is for a loop in which nobody changes the model's modules meanwhile; hooks that others
    install are met all the same.

    Raises:
        As `trace`: of the model and the plan here or at the first run, of the inputs at each.
    """

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        self.module = unwrap(model)
        self.plan = plan
        check_mode(plan)
        self.modules = index(self.module)
        self._targets: list[Target] | None = None
        self._whole = False
        self._compiled = has_compiled(self.module)

    def run(
        self,
        inputs: Any,
        *,
        tokenizer: Any = None,
        chat: bool = False,
        watch: Watch | None = None,
        labelled: bool = True,
        check: bool = False,
        stacklevel: int = 3,
    ) -> Trace:
        """One forward; see `trace`. Without `labelled` the trace's tokens have no labels."""
        module, modules, plan = self.module, self.modules, self.plan
        refuse_inputs(inputs, modules)
        call = prepare(module, inputs, tokenizer, chat=chat, labelled=labelled)
        if self._targets is None:
            refuse(modules, plan.sites)
            self._targets = resolve(plan.sites, modules)
        targets = self._targets
        spread = None if self._whole else Spread.over(module, plan.records)
        self._whole = spread is None
        editor = Editor(module, modules, plan.interventions, call.tokens, plan.grad, spread)
        frame = Frame(None if call.tokens is None else call.tokens.mask)
        recorder = Recorder(targets, plan, frame, plan.max_bytes, modules, call.tokens, spread)
        points = _points(targets, recorder, editor, module, watch)
        if spread is not None:
            spread.agree(module, plan, call, check=check)
            spread.begin(None if call.tokens is None else call.tokens.ids.shape, past_tokens(call))
        draws = Draws(module)
        beside = None
        if check and not plan.interventions:
            beside = PlainCall(module, call, draws, grad=plan.grad)
        started = time.time()
        with together(spread):
            if spread is not None:
                learn(spread, module, call, editor.skipped())
            output, stopped = _forward(module, call, points, editor, plan.grad, self._compiled)
        editor.settle()
        recorder.settle()
        if watch is not None:
            watch.check()
        drawn, ended = draws.drawn(), time.time()
        if beside is None or stopped:
            compared = not_compared(len(plan.interventions), stopped)
        else:
            with together(spread):
                compared = beside.compare(output)
            started += time.time() - ended  # the second forward is no part of the run
        missed = editor.explained(recorder.missed(), recorder.calls())
        seen = checks(module, modules, call, recorder, missed, drawn, compared, grad=plan.grad)
        result = _trace(
            module, plan, call, recorder, editor, output, tokenizer, started, missed, seen
        )
        output = None
        recorder.part()
        if stopped:
            result.meta["stopped"] = True
        pronounce(result, editor.idle(), stacklevel=stacklevel)
        return result


def _forward(
    module: nn.Module,
    call: Call,
    points: list[Point],
    editor: Editor,
    grad: bool,
    compiled: bool,
) -> tuple[Any, bool]:
    """The output, and whether the forward was ended early (then there is none)."""
    between_ops = any(point.ops is not None for point in points)
    try:
        with (
            nullcontext() if grad else torch.no_grad(),
            eagerly(module, between_ops, compiled),
            taps(module, points),
            skips(editor.givers()),
        ):
            return module(*call.args, **call.kwargs), False
    except Stopped:
        return None, True


def _points(
    targets: list[Target],
    recorder: Recorder,
    editor: Editor,
    module: nn.Module,
    watch: Watch | None,
) -> list[Point]:
    points: dict[int, Point] = {}

    def at(module: nn.Module) -> Point:
        return points.setdefault(id(module), Point(module))

    for target, visitor in editor.visitors():
        at(target.module).edits[target.site.side].append(visitor)
    for target, wish in editor.wishes():
        if no_ops(target):
            continue
        ops = at(target.module).op_point()
        ops.edits[target.site.side].append(wish(ops.met))
    for skipped, _ in editor.givers():
        at(skipped)  # hooks keep PyTorch's fused paths from using its weights unasked
    for position, target in enumerate(targets):
        point, side = at(target.module), target.site.side
        if target.site.op is None:
            point.records[side].append(recorder.visitor(position))
        elif why := no_ops(target):
            recorder.refuse(position, why)
        else:
            ops = point.op_point()
            ops.records[side].append(recorder.wish(position, ops.met))
    for parent, visitor in recorder.witnesses():
        at(parent).records["output"].append(visitor)
    if watch is not None:
        follow(module, watch, at, points)
    return list(points.values())


def follow(module: nn.Module, watch: Watch, at: Any, points: dict[int, Point]) -> None:
    """Ask the cancel flag at every tapped module, and tell progress at the model's blocks."""
    steps = blocks(module)
    passed = 0

    def step() -> None:
        nonlocal passed
        passed += 1
        watch.progress(min(passed, len(steps)), len(steps), f"layer {passed} of {len(steps)}")

    for point in points.values():
        point.passed = watch.check
    for block in steps:
        at(block).passed = step


def _trace(
    module: nn.Module,
    plan: Plan,
    call: Call,
    recorder: Recorder,
    editor: Editor,
    output: Any,
    tokenizer: Any,
    started: float,
    missed: Mapping[str, str],
    seen: tuple[Check, ...],
) -> Trace:
    return Trace(
        Parts(
            plan=plan,
            records=recorder.records(),
            statistics=recorder.statistics(),
            missed=missed,
            plain=recorder.plain(),
            aliases=recorder.aliases(),
            calls=recorder.calls(),
            asked=recorder.asked(),
            reports=editor.reports(),
            tokens=call.tokens,
            logits=last_logits(
                module, output, call.tokens, call.kwargs.get("decoder_attention_mask")
            ),
            output=output if plan.keep_output or plan.grad else None,
            meta=described(module, started) | recorder.kept_where(),
            spell=speller(tokenizer),
            checks=seen,
        )
    )
