"""Checks of edits on a split model: by kind, by where, and while decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lensview as lv
from tests.ranks.tp_capture_pair import (
    IDS,
    Found,
    alike,
    equal,
    linear,
    pair,
    raises,
    report,
    traced,
)

ATTENTION = "model.layers.1.self_attn"
Q = f"{ATTENTION}.q_proj"
ACT = "model.layers.1.mlp.act_fn"
LAST = "model.norm"
PADDED = {
    "input_ids": IDS,
    "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
}
SEVERAL = [
    lv.scale(Q, 3.0, lv.at(token=3)),
    lv.call(ACT, lambda t: t * 1.5),
    lv.add("model.layers.0.mlp.gate_proj", linear(48), lv.at(token=-1)),
]
LIST = ["**", "**:input"]


def times(tensor: Tensor) -> Tensor:
    return tensor * 1.25


def indices(out: Path) -> Any:
    """Every way to name a part of a value, on padded prompts, a batch of one and strings of one."""
    two, found = pair("llama", out), Found()
    parts = [
        lv.at(head=1),
        lv.at(head=[0, 3], token=2),
        lv.at(feature=[3, 20]),
        lv.at(batch=0, token=[-1, 0]),
        lv.at(batch=1),
        (..., slice(10, 30)),
        (0, 1),
    ]
    one = {"input_ids": IDS[:1]}
    for inputs in (PADDED, one):
        for turn, part in enumerate(parts):
            edits = (
                lv.zero(Q, part),
                lv.call(Q, times, part),
                lv.scale(f"{ATTENTION}.o_proj:input", 2.0, part),
                lv.noise(Q, 0.5, seed=4, index=part),
            )
            for edit in edits[turn % 2 :: 2]:
                name = f"{edit}, {len(inputs['input_ids'])} rows"
                found.runs(name, two, traced(inputs, [Q, LAST], edit))
    assert not found.refused
    return report(found)


def several(out: Path) -> Any:
    """Several edits in one run; two at one site; all records with them, on padded prompts."""
    two, found = pair("llama", out), Found()
    for edits in (
        SEVERAL,
        [lv.scale(Q, 2.0), lv.add(Q, linear(32)), lv.call(Q, torch.relu)],
        [lv.project_out(Q, linear(32)), lv.zero("model.layers.0:input", lv.at(token=1))],
        [lv.call("**.act_fn", times), lv.scale("**.o_proj", 1.5)],
    ):
        run = traced(PADDED, LIST, edits)
        found.runs(str(edits), two, run)
    assert not found.refused and not found.labelled
    return report(found)


def attention(out: Path) -> Any:
    """Attention probabilities and values between ops, on eager attention."""
    two, found = pair("llama, eager", out), Found()
    for edit in (
        lv.scale(f"{ATTENTION}/softmax", 0.5),
        lv.zero(f"{ATTENTION}/softmax", lv.at(head=3)),
        lv.call(f"{ATTENTION}/softmax", times),
        lv.put(f"{ATTENTION}/softmax", 0.2, (..., 0)),
        lv.scale(f"{ATTENTION}/matmul", 0.5),
        lv.call(f"{ATTENTION}/transpose", times),
        lv.add(f"{ATTENTION}/transpose.1", linear(8)),
        lv.scale(f"{Q}/linear", 2.0),
        lv.scale(f"{Q}/linear:input", 2.0),
        lv.call(f"{ATTENTION}.o_proj/linear:input", times),
        lv.call("lm_head/linear", times),
        lv.scale("model/add", 2),
    ):
        found.runs(str(edit), two, traced(IDS, [LAST], edit))
    for edit in (lv.scale(f"{ATTENTION}/softmax", 0.5), lv.call(f"{ATTENTION}/softmax", times)):
        name = f"{edit}, decoding"

        def run(model: Any, edit: lv.Intervention = edit) -> list[lv.Trace]:
            sites = [f"{ATTENTION}/softmax", LAST]
            return list(lv.generate(model, IDS, sites, edit, max_new_tokens=3))

        steps, true = two.both(run)
        for step, other in zip(steps, true, strict=True):
            found.traces(name, step, other)
            found.ends(name, step, other)
    return report(found)


def decoding(out: Path) -> Any:
    """Steps of generation: values, edits by absolute tokens, ids, on every rank."""
    found = Found()
    for name, load in (("llama", {}), ("llama", {"attn_implementation": "eager"}), ("qwen3", {})):
        loading: dict[str, Any] = load
        two = pair(name, out, **loading)
        for options in ({}, {"use_cache": False}, {"do_sample": True}, {"num_beams": 2}):
            edits = [*SEVERAL, lv.skip("model.layers.0.mlp", torch.zeros(1, 1, 32))]
            edits = SEVERAL if "use_cache" in options or name == "qwen3" else edits[:3]
            mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
            inputs = {"input_ids": IDS, "attention_mask": mask}

            def run(model: Any, e: Any = edits, i: Any = inputs, o: Any = options) -> Any:
                return lv.generate(model, i, ["**"], e, max_new_tokens=4, **o)

            one, other = two.both(run)
            label = f"{name} {load} {options}"
            if not torch.equal(one.ids, other.ids):
                found.wrong.append(f"{label}: {one.ids} and {other.ids}")
            told = [[(r.calls, r.changed) for r in g.reports] for g in (one, other)]
            if told[0] != told[1]:
                found.wrong.append(f"{label}: {told}")
            for step, true in zip(one, other, strict=True):
                found.traces(label, step, true)
                found.ends(label, step, true)
    return report(found)


def skips(out: Path) -> Any:
    """Given values, whole, for modules whose outputs are whole and whose are split."""
    two, found = pair("llama", out), Found()
    torch.manual_seed(5)
    draw = torch.randn
    for edit in (
        lv.skip(Q, draw(2, 6, 32)),
        lv.skip(ACT, draw(2, 6, 48)),
        lv.skip(ACT, "input"),
        lv.skip(Q, "input"),
        lv.skip(f"{ATTENTION}.o_proj", "input"),
        lv.skip(ATTENTION, ("input", None)),
        lv.skip("model.layers.1.mlp", draw(2, 6, 32)),
        lv.skip("model.layers.1.mlp", "input"),
        lv.skip("model.layers.1", "input"),
        lv.skip("model.layers.1", draw(2, 6, 32)),
        lv.skip(ATTENTION, (draw(2, 6, 32), None)),
        lv.skip("model.embed_tokens", draw(2, 6, 32)),
        lv.skip("lm_head", draw(2, 6, 101)),
        lv.skip("model.layers.1.mlp.down_proj", draw(2, 6, 32)),
    ):
        found.runs(str(edit), two, traced(IDS, LIST, edit))
    moe = pair("mixtral", out)
    for edit in (
        lv.skip("model.layers.1.mlp.experts", draw(12, 32)),
        lv.skip("model.layers.0.mlp", "input"),
    ):
        found.runs(str(edit), moe, traced(IDS, [LAST], edit))
    with raises(lv.InterventionError, "48", "24") as said:
        lv.trace(two.split, IDS, [], lv.skip(ACT, draw(2, 6, 24)))
    alike(said)
    assert not found.refused
    return report(found)


def randomness(out: Path) -> Any:
    """Functions that draw: the ranks stay in step, in dropout and in sampling afterwards."""
    two, found = pair("llama", out, attention_dropout=0.5), Found()

    def noisy(tensor: Tensor) -> Tensor:
        return tensor + 0.1 * torch.randn_like(tensor)

    def drawing(tensor: Tensor) -> Tensor:
        torch.rand(7)
        raise ValueError("after drawing")

    edits = [lv.call(Q, noisy), lv.call("model.layers.0", noisy), lv.noise(ACT, 0.5, seed=1)]
    found.runs("eval", two, lambda m: lv.trace(m, IDS, LIST, edits))
    # In training, each rank drops some of its own heads: no process alone draws so. By hand, every
    # rank draws the same noise.
    two.split.train()
    torch.manual_seed(7)
    trace = lv.trace(two.split, IDS, [LAST], lv.call("model.layers.0", noisy), records="all")
    alike(torch.get_rng_state().tolist())
    state = torch.get_rng_state()
    torch.manual_seed(7)
    handle = two.split.model.layers[0].register_forward_hook(lambda m, i, out: noisy(out))
    with torch.no_grad():
        logits = two.split(IDS).logits[:, -1]
    handle.remove()
    two.split.eval()
    assert torch.equal(state, torch.get_rng_state())
    assert trace.logits is not None and equal(trace.logits, logits)
    run = lambda m: lv.generate(m, IDS, [LAST], edits, max_new_tokens=4, do_sample=True)  # noqa: E731
    one, other = two.both(run)
    assert torch.equal(one.ids, other.ids), (one.ids, other.ids)
    alike(one.ids.tolist())
    alike(torch.get_rng_state().tolist())
    with raises(lv.InterventionError, "after drawing") as said:
        lv.trace(two.split, IDS, [], lv.call(Q, drawing))
    alike(said)
    alike(torch.get_rng_state().tolist())
    return report(found)


def half(out: Path) -> Any:
    """bfloat16: a value is what one process has, but for the order of sums."""
    two, found = pair("llama", out, dtype=torch.bfloat16), Found()
    for edits in ([], SEVERAL, [lv.call(Q, torch.relu), lv.project_out(ACT, linear(48))]):
        run = traced(IDS, LIST, edits)
        found.runs(str(edits), two, run, tolerance=0.05)
    found.wrong = [text for text in found.wrong if "reports" not in text]
    return report(found)


CHECKS = (indices, several, attention, decoding, skips, randomness, half)
