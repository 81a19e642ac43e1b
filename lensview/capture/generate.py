"""Generate: transformers' own decoding loop, looked at step by step.

Owns one run of ``model.generate`` with taps on for all of it: each forward of the model is a step
with a recorder, counts and tokens of its own. It decodes nothing itself; what a step holds of the
sequence is `steps.py`'s, the result `generation.py`'s.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureUnsupportedError, InputError, LensWarning
from ..interventions import Intervention
from ..modules import blocks, index
from ..plan import Plan, Records
from ..resolve import resolve
from ..taps.hooks import Point, taps
from ..taps.skips import skips
from ..traces.parts import InterventionReport
from ..watch import Watch
from ..wrappers.refusal import refuse
from ..wrappers.unwrap import eagerly, unwrap
from .decoding import check, eos_ids, has_beams, samples
from .editor import Editor
from .generation import Ending, Generation, Reason, Steps
from .given import learn
from .inputs import prepare
from .opsites import no_ops
from .sequences import Sequences
from .spread import Spread, together
from .steps import Stepper
from .verdict import warn_of_overflow


def generate(
    model: nn.Module,
    inputs: Any,
    sites: str | Iterable[str] = "**",
    interventions: Intervention | Iterable[Intervention] = (),
    *,
    max_new_tokens: int = 20,
    tokenizer: Any = None,
    chat: bool = False,
    keep: Any = None,
    max_bytes: int | None = None,
    records: Records = "rank0",
    watch: Watch | None = None,
    **generate_kwargs: Any,
) -> Generation:
    """Generate tokens and keep what passed at `sites` in every step.

    ``model.generate`` of transformers runs, greedily unless `generate_kwargs` say otherwise, and
    gives the very ids that it gives without lensview; random numbers are drawn alike. Each forward
    is a step: calls count from 0 in each. What passes before the first forward (an encoder)
    belongs to step 0.

    Interventions with ``lv.at(token=p)`` count real tokens of the whole sequence, prompt included,
    with or without a cache: a step that does not hold token p passes it over, and a p that never
    comes is warned of, as any intervention that did nothing. Without a cache every step computes
    token p again and is edited again. Negative ones count from the sequence's end so far:
    ``lv.at(token=-1)`` is the prompt's last token and then every new one; there cache and no cache
    differ, as a cache remembers the earlier edits. A torch-style index means the step's own tensor
    and must be in range in every step.

    Args:
        inputs: as in `trace`. Strings are padded on the left, so that rows equal their own runs.
        sites, interventions, tokenizer, chat: as in `trace`; values between ops included.
        keep: as in `trace`; tokens count in each step's own, so ``lv.at(token=-1)`` is one a step.
        max_new_tokens: at most so many; a row that wrote an end-of-sequence token ends earlier,
            see `Generation.ended`.
        max_bytes: as in `trace`, over all steps together; sites asked for by name are kept.
        records: as in `trace`. Sampling needs one seed on all ranks, which is looked after.
        watch: progress counts steps; a cancel stops at the next module boundary.
        generate_kwargs: go to ``model.generate``: ``do_sample``, ``use_cache``, ``num_beams``, ….
            With beams, or with several sequences per prompt, rows of records are those of the
            forwards: (batch times beams), labelled so in ``meta["step"]`` of each trace.

    Returns:
        A `Generation`: a sequence of traces. Where the model computes logits for the last token
        alone at the prefill, ``lm_head`` has one position there.

    Raises:
        InputError: besides what `trace` raises, a model without ``generate``, or an option under
            which forwards are not steps (assisted decoding, guidance, chunked prefill, …).
    """
    plan = Plan.make(sites, interventions, keep=keep, max_bytes=max_bytes, records=records)
    module = unwrap(model)
    check(module, generate_kwargs, max_new_tokens)
    call = prepare(module, inputs, tokenizer, chat=chat, left=True)
    if len(call.args) > 1:
        raise InputError(
            f"generate() takes one positional input, not {len(call.args)}: name the others, "
            "lv.Args(ids, attention_mask=…)."
        )
    modules = index(module)
    refuse(modules)
    targets = resolve(plan.sites, modules)
    spread = Spread.over(module, plan.records)
    editor = Editor(module, modules, plan.interventions, None, spread=spread)
    options = {"do_sample": False, **generate_kwargs}
    if "generation_config" in generate_kwargs and "do_sample" not in generate_kwargs:
        del options["do_sample"]
    eos = eos_ids(module, options)
    sequences = Sequences(module, call, eos, has_beams(module, options))
    stepper = Stepper(module, plan, targets, editor, call, tokenizer, sequences, spread)
    points = _points(stepper, module, watch, max_new_tokens)
    if spread is not None:
        told = {**options, "max_new_tokens": max_new_tokens, "do_sample": samples(module, options)}
        spread.agree(module, plan, call, **told)
        spread.begin(None if call.tokens is None else call.tokens.ids.shape)
        with together(spread):
            learn(spread, module, call, editor.skipped())
    with (
        together(spread),
        torch.no_grad(),
        eagerly(module, any(point.ops is not None for point in points)),
        taps(module, points) as restart,
        skips(editor.givers()),
    ):
        stepper.restart = restart
        output = module.generate(  # type: ignore[operator]
            *call.args, **call.kwargs, **options, max_new_tokens=max_new_tokens
        )
    if watch is not None:
        watch.check()
    result = _result(stepper, output, eos, max_new_tokens, tokenizer)
    warn_of_overflow(result.reports, stacklevel=2)
    _warn_of_idle(result.reports)
    return result


def _points(
    stepper: Stepper, module: nn.Module, watch: Watch | None, max_new_tokens: int
) -> list[Point]:
    points: dict[int, Point] = {}

    def at(module: nn.Module) -> Point:
        return points.setdefault(id(module), Point(module))

    # The root's own come first at its start and last at its end.
    at(module).edits["input"].append(stepper.entered)
    for target, visitor in stepper.edits():
        at(target.module).edits[target.site.side].append(visitor)
    for target, wish in stepper.op_edits():
        if not no_ops(target):
            ops = at(target.module).op_point()
            ops.edits[target.site.side].append(wish(ops.met))
    for position, target in enumerate(stepper.targets):
        point, side = at(target.module), target.site.side
        if target.site.op is None:
            point.records[side].append(stepper.recording(position))
        elif why := no_ops(target):
            stepper.refuse(position, why)
        else:
            ops = point.op_point()
            ops.records[side].append(stepper.recording_ops(position, ops.met))
    at(module).records["output"].append(stepper.left)
    if watch is not None:
        _follow(module, watch, at, stepper, max_new_tokens)
        for point in points.values():
            point.passed = watch.check
    return list(points.values())


def _follow(
    module: nn.Module,
    watch: Watch,
    at: Callable[[nn.Module], Point],
    stepper: Stepper,
    total: int,
) -> None:
    for block in blocks(module):
        at(block)

    def told(done: int) -> None:
        watch.progress(min(done, total), total, f"step {done} of at most {total}")

    stepper.told = told


def _result(
    stepper: Stepper,
    output: Any,
    eos: tuple[int, ...],
    max_new_tokens: int,
    tokenizer: Any,
) -> Generation:
    sequences = output if isinstance(output, Tensor) else output.sequences
    ids = sequences.detach().cpu().long()
    prompt, beams = stepper.sequences.prompt, stepper.sequences.rows == "beam"
    new = ids[:, prompt:]
    steps = stepper.finished(new.shape[1])
    if len(steps) != new.shape[1] and not beams:
        raise CaptureUnsupportedError(
            f"generate() gave {new.shape[1]} new tokens in {len(steps)} forwards of the "
            f"{type(stepper.module).__name__}: its decoding is not one forward per token, so the "
            "values cannot be told apart by step. Nothing of it is shown."
        )
    ended = tuple(_ending(row, eos, max_new_tokens) for row in new)
    for i, step in enumerate(steps):
        told = {str(row): str(e) for row, e in enumerate(ended) if e.step == i}
        step.meta["step"]["ended"] = told
    return Generation(
        Steps(
            traces=tuple(steps),
            ids=ids,
            prompt=prompt,
            ended=ended,
            reports=_summed(stepper.plan, [step.reports for step in steps]),
            rows=stepper.sequences.rows,
            tokenizer=tokenizer,
            output=None if isinstance(output, Tensor) else output,
        )
    )


def _ending(new: Tensor, eos: tuple[int, ...], max_new_tokens: int) -> Ending:
    for step, token in enumerate(new.tolist()):
        if token in eos:
            return Ending("eos", step)
    reason: Reason = "max_new_tokens" if len(new) >= max_new_tokens else "stopped"
    return Ending(reason, len(new) - 1)


def _summed(
    plan: Plan, steps: list[tuple[InterventionReport, ...]]
) -> tuple[InterventionReport, ...]:
    return tuple(
        InterventionReport(
            edit,
            sum(step[i].calls for step in steps),
            sum(step[i].changed for step in steps),
            sum(step[i].overflowed for step in steps),
        )
        for i, edit in enumerate(plan.interventions)
    )


def _warn_of_idle(reports: tuple[InterventionReport, ...]) -> None:
    idle = [r for r in reports if not r.calls]
    if idle:
        lines = "\n  ".join(str(r.intervention) for r in idle)
        warnings.warn(
            f"{len(idle)} intervention(s) did nothing, because no step of this generation held "
            f"their site or token:\n  {lines}",
            LensWarning,
            stacklevel=3,
        )
