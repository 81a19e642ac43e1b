"""Attention: who looked at whom, by what one run recorded.

Owns which sites of an attention module tell its pattern, and the pattern made from them, proved
against the module's own result. The attention kernel of the model is never changed: where a fused
kernel ran (``scaled_dot_product_attention``), the pattern is computed again from what went into it;
where the model computed it itself ("eager"), it is the one that multiplied the values. Running the
model and finding attention modules are not done here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import NotRecordedError, SiteError
from ..sites import Site
from .trace import Trace

FUSED = "scaled_dot_product_attention"
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_PRODUCTS = ("matmul.1", "matmul", "bmm.1", "bmm", "baddbmm")
"""Ops that may multiply pattern and values, the likeliest first."""
_ULPS, _HALF_ULPS = 32, 4
"""How far the result may be off, in units of the dtype's precision of its largest value; of
16-bit dtypes fewer, since kernels add up in 32."""
_HALF = 1e-4
_MATRIX = 2


class AttentionUnknownError(NotRecordedError):
    """The pattern of an attention cannot be told from what was recorded; says why."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention pattern of one module in one run.

    Attributes:
        path: the attention module's site path.
        weights: (B, H, T, S) float32, on the records' device: how much query token T took from key
            token S. A row sums to 1; to less where the model has attention sinks; it is all 0 where
            the mask left nothing to look at.
        difference: the largest absolute difference between these weights times the values and what
            the module itself got from its kernel (B, H, T, D).
        largest: the largest magnitude of the latter, to judge `difference` by.
        source: how the weights were had, a sentence.
        sites: the records used.
    """

    path: str
    weights: Tensor
    difference: float
    largest: float
    source: str
    sites: tuple[str, ...]

    @property
    def heads(self) -> int:
        """How many query heads there are."""
        return int(self.weights.shape[1])

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.weights.shape))
        return f"Attention of {self.path}: {shape}; {self.source}; off by {self.difference:.3g}"


def attention_sites(path: str) -> tuple[str, ...]:
    """The sites that `attention` reads for the attention module at `path`; pass them to `trace`.

    Those of the kernel that did not run are in ``trace.missed`` afterwards.

    Raises:
        SiteError: `path` is no module's path, or a glob: arguments that are no tensors (the scale)
            are recorded only where a site is named.
    """
    site = Site.parse(path)
    if site.is_glob or site.op is not None or site.leaf:
        raise SiteError(f"{path!r} is not the path of one attention module.")
    stem, call = site.path, "" if site.call is None else f"@{site.call}"
    fused = [f"{stem}/{FUSED}:input[{name}]" for name in _ARGUMENTS]
    products = [f"{stem}/{op}{side}" for op in _PRODUCTS for side in (":input", ":input[1]", "")]
    asked = [*fused, f"{stem}/{FUSED}", f"{stem}/{FUSED}.1", f"{stem}/softmax", *products]
    return tuple(f"{text.replace(':input[1]', _second(text))}{call}" for text in asked)


def _second(text: str) -> str:
    """The name of an op's right factor."""
    name = {"matmul": "other", "bmm": "mat2", "baddbmm": "batch2"}
    op = text.rpartition("/")[2].partition(":")[0].partition(".")[0]
    return f":input[{name.get(op, 'other')}]"


def attention(trace: Trace, site: str) -> Attention:
    """The attention pattern of the module at `site`, from a trace of `attention_sites`.

    Args:
        trace: of a run that recorded ``attention_sites(site)``.
        site: the attention module's path; with ``@call`` where it was called several times.

    Returns:
        An `Attention`. Its weights times the recorded values were compared with the recorded
        result, within the precision of its dtype.

    Raises:
        AttentionUnknownError: nothing of the sites passed (another kernel), dropout was on, the
            forward ran several kernels, or the weights do not give the recorded result; says which.
        SiteError: `site` is no module's path.
    """
    sites = attention_sites(site)
    at = Site.parse(site)
    held = {_end(text): text for text in sites if text in trace}
    if FUSED in held:
        return _fused(trace, at, held, sites)
    if "softmax" in held:
        return _eager(trace, at, held)
    reason = trace.missed.get(sites[len(_ARGUMENTS)]) or trace.missed.get(f"{at.path}/softmax")
    if reason and "left out" in reason:
        raise AttentionUnknownError(f"{at.path}: {reason}")
    if reason is None:
        raise AttentionUnknownError(
            f"{at}: nothing of its attention was recorded in this run. Run again with "
            f"sites=lv.attention_sites({site!r})."
        )
    raise AttentionUnknownError(
        f"{at} ran neither {FUSED} nor a softmax of its own, so its pattern is not in sight. "
        f"{reason[:400]}"
    )


def _end(text: str) -> str:
    return text.partition("@")[0].rpartition("/")[2]


# --- the fused kernel ------------------------------------------------------------------------


def _fused(trace: Trace, at: Site, held: dict[str, str], sites: tuple[str, ...]) -> Attention:
    if f"{FUSED}.1" in held:
        raise AttentionUnknownError(
            f"{at.path} ran {FUSED} more than once in one forward: there is no one pattern. "
            f"Record {at.path}/{FUSED}:input[query] and its neighbours by their occurrence."
        )
    given = {name: _given(trace, sites[i]) for i, name in enumerate(_ARGUMENTS)}
    missing = [n for n in ("query", "key", "value") if not isinstance(given[n], Tensor)]
    if missing:
        raise AttentionUnknownError(
            f"{at.path}: {', '.join(missing)} of {FUSED} were not recorded. Run again with "
            f"sites=lv.attention_sites({str(at)!r})."
        )
    if given["dropout_p"]:
        raise AttentionUnknownError(
            f"{at.path} ran with dropout {given['dropout_p']} on its attention: which weights it "
            "dropped is not known outside the kernel. Call model.eval() and run again."
        )
    weights = fused_weights(given)
    result = trace[held[FUSED]]
    again = weights @ _per_head(given["value"].float(), weights.shape[-3])
    used = tuple(text for text in sites[: len(_ARGUMENTS) + 1] if text in trace)
    said = f"computed again from what went into {FUSED}"
    return _proved(at, weights, again, result, said, used)


def _given(trace: Trace, site: str) -> Any:
    if site in trace:
        return trace[site]
    try:
        return trace.value(site)
    except NotRecordedError as error:
        if trace.missed.get(site, "").startswith("left out"):
            raise AttentionUnknownError(str(error)) from error
        return None  # not passed: the default


def fused_weights(given: dict[str, Any]) -> Tensor:
    """softmax(q k^T scale + mask) of the arguments of PyTorch's function, (…, H, T, S) float32.

    As its documentation defines it: the mask is added, or where it is bool, False is minus
    infinity; a causal mask begins at the top left; heads of keys serve groups of query heads.
    """
    query, key = given["query"].float(), given["key"].float()
    key = _per_head(key, query.shape[-3]) if query.dim() > _MATRIX else key
    scale = given["scale"] if given["scale"] is not None else 1 / math.sqrt(query.shape[-1])
    scores = query @ key.transpose(-1, -2) * scale
    mask = given["attn_mask"]
    if given["is_causal"]:
        shape = scores.shape[-2:]
        causal = torch.ones(shape, dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~causal, -math.inf)
    if isinstance(mask, Tensor):
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if hidden else scores + mask.float()
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores, -1).masked_fill(nothing, 0.0)


def _per_head(shared: Tensor, heads: int) -> Tensor:
    """Keys or values with one entry for each query head."""
    groups = heads // max(shared.shape[-3], 1)
    return shared if groups == 1 else shared.repeat_interleave(groups, -3)


# --- the model's own softmax -----------------------------------------------------------------


def _eager(trace: Trace, at: Site, held: dict[str, str]) -> Attention:
    probabilities = trace[held["softmax"]]
    for op in _PRODUCTS:
        first, second = (f"{op}:input", f"{op}{_second(f'/{op}')}")
        if op not in held or first not in held or second not in held:
            continue
        left, right, result = (trace[held[name]] for name in (first, second, op))
        part = _same_weights(left, probabilities)
        if part is None:
            continue
        again = left.float() @ right.float()
        weights = _four(left, probabilities).float()
        said = f"those that the forward's own {op} multiplied the values by, after its softmax"
        if part < probabilities.shape[-1]:
            said += f"; {probabilities.shape[-1] - part} further column went to attention sinks"
        used = tuple(held[name] for name in ("softmax", first, second, op))
        return _proved(at, weights, again, result, said, used)
    raise AttentionUnknownError(
        f"{at.path} has a softmax, but nothing shows that it is the attention's: no product of it "
        "with values was recorded (in train mode dropout stands between). Read the ops with "
        f"lv.source(model, {at.path!r}, inputs)."
    )


def _same_weights(left: Tensor, probabilities: Tensor) -> int | None:
    """How many columns of the softmax the left factor holds, where it is those columns."""
    columns = int(left.shape[-1])
    if columns > probabilities.shape[-1] or left.numel() == 0:
        return None
    cut = probabilities[..., :columns]
    if left.numel() != cut.numel():
        return None
    return columns if torch.equal(left.reshape(cut.shape), cut.to(left.dtype)) else None


def _four(left: Tensor, probabilities: Tensor) -> Tensor:
    """The weights by batch and head, which some models multiply as one dim."""
    return left.reshape(*probabilities.shape[:-1], left.shape[-1])


# --- the proof -------------------------------------------------------------------------------


def _proved(
    at: Site, weights: Tensor, again: Tensor, result: Tensor, said: str, used: tuple[str, ...]
) -> Attention:
    if again.shape != result.shape:
        raise AttentionUnknownError(
            f"{at.path}: the weights give {tuple(again.shape)} where the module got "
            f"{tuple(result.shape)}; they are not its pattern."
        )
    gap = (again - result.float()).abs()
    both = torch.isfinite(again) | torch.isfinite(result.float())
    difference = float(torch.where(both, gap, torch.zeros_like(gap)).max()) if gap.numel() else 0.0
    largest = float(result.float().abs().nan_to_num().max()) if gap.numel() else 0.0
    precision = torch.finfo(result.dtype).eps
    allowed = (_ULPS if precision < _HALF else _HALF_ULPS) * precision * max(largest, 1e-6)
    if not difference <= allowed:
        raise AttentionUnknownError(
            f"{at.path}: the weights times the values differ by {difference:.3g} from what the "
            f"module got (largest value {largest:.3g}; {allowed:.3g} is allowed), so they are not "
            "its pattern. The kernel did something besides softmax(q k^T scale + mask)."
        )
    while weights.dim() < 4:
        weights = weights.unsqueeze(0)
    return Attention(at.path, weights, difference, largest, said, used)
