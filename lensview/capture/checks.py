"""Checks: can a run be believed?

Owns what is looked at and the reason given for each: the output beside a plain call's, modules that
were compiled, fused, bypassed or hooked by others, padding and positions, the mode, random numbers,
and whether ranks agree. Whether values are finite is asked of the records, when somebody asks
(`traces/checks.py`). Nothing here changes a run; only the comparison with a plain call runs the
model again, and only where `check=True` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..modules import original
from ..taps.fused import asks_for_modes
from ..traces.checks import Check
from ..traces.tokens import Tokens
from ..wrappers.fragments import fragment
from ..wrappers.notes import hooks
from ..wrappers.unwrap import is_compiled
from .inputs import Call
from .recorder import Recorder

_SHOWN = 3


def standing(module: nn.Module, modules: Mapping[str, nn.Module], grad: bool) -> list[Check]:
    """What is so before a run and stays so: the mode, and how modules will be called.

    Args:
        modules: the model's modules by site path.
        grad: whether the run is in a grad mode, where PyTorch takes no fused paths.
    """
    return [_mode(module, modules), _modules(modules, grad)]


def checks(
    module: nn.Module,
    modules: Mapping[str, nn.Module],
    call: Call,
    recorder: Recorder,
    missed: Mapping[str, str],
    drawn: bool,
    output: Check,
    *,
    grad: bool,
) -> tuple[Check, ...]:
    """All that is known at the end of a run, besides what its records tell."""
    mode, called = standing(module, modules, grad)
    return (
        output,
        bypassed(called, missed),
        padding(module, call),
        mode,
        _random(drawn),
        ranks(module, recorder),
    )


# --- the mode and random numbers --------------------------------------------------------------


def _mode(module: nn.Module, modules: Mapping[str, nn.Module]) -> Check:
    drawing = [p for p, m in modules.items() if m.training and "Dropout" in type(m).__name__]
    if module.training:
        more = f"; {len(drawing)} dropout layers draw random numbers" if drawing else ""
        return Check("mode", False, f"the model is in train mode{more}: call model.eval().")
    if drawing:
        return Check(
            "mode",
            False,
            f"the model is in eval mode, but {_some(drawing)} in train mode, drawing random "
            "numbers.",
        )
    return Check("mode", True, "the model is in eval mode.")


def _random(drawn: bool) -> Check:
    if not drawn:
        return Check("random", True, "the forward drew no random numbers.")
    return Check(
        "random",
        False,
        "the forward drew random numbers, so another run gives other values: call "
        "torch.manual_seed(…) right before each.",
    )


# --- how modules were called ------------------------------------------------------------------


def _modules(modules: Mapping[str, nn.Module], grad: bool) -> Check:
    told = []
    compiled = [p for p, m in modules.items() if is_compiled(m) or _holds_compiled(m)]
    if compiled:
        told.append(
            f"{_some(compiled)} compiled, and captured eagerly: a compiled call may round otherwise"
        )
    fast = torch.backends.mha.get_fastpath_enabled() and not grad
    fused = [p for p, m in modules.items() if fast and not m.training and asks_for_modes(m)]
    if fused:
        told.append(
            f"{_some(fused)} of a kind that PyTorch runs as one fused kernel unless somebody looks "
            "inside: a plain call's values may differ in the last bits"
        )
    foreign = [f.where for f in hooks(modules) if f.level == "warning"]
    if foreign:
        told.append(
            f"{_some(list(dict.fromkeys(foreign)))} hooked by others: records are taken after "
            "their hooks"
        )
    if told:
        return Check("modules", False, f"{'; '.join(told)}.")
    return Check("modules", True, "no module is compiled, fused or hooked by others.")


def _holds_compiled(module: nn.Module) -> bool:
    return any(c is not None and original(c) is not c for c in module._modules.values())


def bypassed(called: Check, missed: Mapping[str, str]) -> Check:
    """The check of modules, with those that a run found to be bypassed."""
    around = [site for site, why in missed.items() if "Likely bypassed" in why]
    if not around:
        return called
    told = f"{_some(around)} never called: what they compute is computed around them."
    return Check("modules", False, told if called.ok else f"{called.reason} {told}")


def _some(paths: Sequence[str]) -> str:
    """Up to three of them, and a verb."""
    named = ", ".join(path or "the model itself" for path in paths[:_SHOWN])
    more = len(paths) - _SHOWN
    return f"{named}{f' and {more} more' if more > 0 else ''} {'is' if len(paths) == 1 else 'are'}"


# --- padding and positions --------------------------------------------------------------------


def padding(module: nn.Module, call: Call) -> Check:
    """Whether every row's values are those of a run on its own, as far as masks and positions of
    the call tell."""
    tokens, given = call.tokens, call.kwargs
    if tokens is None:
        return Check("padding", None, "the inputs are no token ids, so padding cannot be told.")
    mask = given.get("attention_mask")
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return Check(
            "padding",
            None,
            "the attention mask is no matrix of (batch, tokens): padding cannot be told from it.",
        )
    if mask is None and (rows := _looks_padded(module, tokens)):
        return Check(
            "padding",
            False,
            f"no attention mask was given, but {_rows(rows, 'begins or ends', 'begin or end')} in "
            "pad tokens: the model attended to them. Give attention_mask.",
        )
    return _positions(tokens, given.get("position_ids"))


def _looks_padded(module: nn.Module, tokens: Tokens) -> list[int]:
    """Rows that begin or end in the config's pad token, where others do not."""
    pad = getattr(getattr(module, "config", None), "pad_token_id", None)
    if not isinstance(pad, int) or len(tokens.ids) < 2:
        return []
    ends = (tokens.ids[:, 0] == pad) | (tokens.ids[:, -1] == pad)
    rows: list[int] = ends.nonzero().flatten().tolist()
    return rows if len(rows) < len(tokens.ids) else []


def _positions(tokens: Tokens, positions: Any) -> Check:
    mask = tokens.mask.long()
    steps = mask[:, 1:] - mask[:, :-1]
    holes = ((steps == 1).sum(1) + mask[:, 0] > 1).nonzero().flatten().tolist()
    if holes:
        return Check("padding", None, f"{_rows(holes)} with masked tokens in the middle.")
    if positions is not None:
        return _given_positions(tokens, positions)
    left = (mask[:, 0] == 0).nonzero().flatten().tolist()
    if left:
        return Check(
            "padding",
            False,
            f"{_rows(left)} padded on the left without position_ids: unless this model counts "
            "positions by the mask or relatively, they differ from runs of their own.",
        )
    if bool(tokens.mask.all()):
        return Check("padding", True, "no row is padded.")
    return Check(
        "padding", True, "rows are padded on the right and masked: each equals a run of its own."
    )


def _given_positions(tokens: Tokens, positions: Any) -> Check:
    told = "position_ids are not (batch, tokens), so they cannot be told to fit."
    if not isinstance(positions, Tensor) or positions.shape[-1:] != tokens.ids.shape[1:]:
        return Check("padding", None, told)
    if positions.dim() != 2 or len(positions) not in (1, len(tokens.ids)):
        return Check("padding", None, told)
    held = positions.detach().cpu().long().expand_as(tokens.ids)
    real = (p[m] for p, m in zip(held, tokens.mask, strict=True))
    wrong = [i for i, p in enumerate(real) if bool((p.diff() != 1).any())]
    if wrong:
        return Check("padding", False, f"{_rows(wrong)} with positions that do not rise by one.")
    first = [int(p[m][0]) for p, m in zip(held, tokens.mask, strict=True) if bool(m.any())]
    if len(set(first)) > 1:
        return Check(
            "padding", False, "the rows' first tokens have different positions, by position_ids."
        )
    return Check("padding", True, "every row's real tokens have consecutive positions.")


def _rows(rows: Sequence[int], one: str = "is", several: str = "are") -> str:
    """Up to three rows by number, and a verb."""
    named = ", ".join(map(str, rows[:_SHOWN])) + (" …" if len(rows) > _SHOWN else "")
    return f"row {named} {one}" if len(rows) == 1 else f"rows {named} {several}"


# --- ranks ------------------------------------------------------------------------------------


def ranks(module: nn.Module, recorder: Recorder) -> Check:
    """Whether what is shown is the whole model's, and the same on its ranks."""
    if part := fragment(module):
        return Check("ranks", False, part)
    if not recorder.over_ranks:
        return Check("ranks", True, "the model is whole in one process.")
    apart, alone = recorder.disagreeing(), recorder.rank_local()
    if apart:
        site, gap = max(apart.items(), key=lambda item: item[1])
        told = f"the ranks differ at {len(apart)} of the values that all have, most at {site}"
        return Check("ranks", False, f"{told} ({gap:.2g} of its size).")
    if alone:
        return Check("ranks", False, f"{_some(alone)} one rank's own, of which no whole is known.")
    return Check(
        "ranks", True, "values were put together; what every rank has whole is the same on all."
    )
