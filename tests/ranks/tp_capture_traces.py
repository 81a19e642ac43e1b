"""Checks of what a run on a split model gives: gradients, files, parts of values, by hand."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import lensview as lv
from tests.ranks.tp_capture_edits import ACT, ATTENTION, LAST, LIST, PADDED, Q, times
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

LAYER = "model.layers.1"


def gradients(out: Path) -> Any:
    """At whole and split sites, through every kind of edit, for a loss that each rank computes."""
    found = Found()
    sites = [LAYER, Q, ACT, f"{ATTENTION}.o_proj:input", "model.embed_tokens", "lm_head"]
    edits = [
        lv.scale(f"{ATTENTION}.k_proj", 2.0),
        lv.call("model.layers.0.mlp.up_proj", torch.square),
        lv.add("model.layers.0.mlp.gate_proj", linear(48)),
        lv.project_out(f"{ATTENTION}.v_proj", linear(16)),
        lv.call("model.layers.0", times),
        lv.skip(f"{LAYER}.mlp.act_fn", "input"),
        lv.noise("model.layers.0.self_attn.q_proj", 0.1, seed=2),
    ]
    two = pair("llama", out)
    for some in ([], edits, *([edit] for edit in edits)):

        def run(model: Any, some: Any = some) -> Any:
            trace = lv.trace(model, IDS, sites, some, grad=True, records="all")
            trace.output.logits.float().pow(2).sum().backward()
            return trace

        one, other = two.both(run)
        for site in sites:
            if equal(one.grad(site), other.grad(site), 1e-4):
                found.right += 1
            else:
                found.wrong.append(f"gradient at {site} with {some}")
        found.traces(str(some), one, other, 1e-4)
    return report(found)


def files(out: Path) -> Any:
    """Saved by all ranks, and loaded; patched from one kind of model into the other."""
    two, found = pair("llama", out), Found()
    rank = dist.get_rank()
    edits = [lv.scale("model.embed_tokens", 1.5), lv.scale(Q, 2.0), lv.add(ACT, linear(48))]
    split = lv.trace(two.split, PADDED, LIST, edits)
    whole = lv.trace(two.whole, PADDED, LIST, edits)
    split.save(out / "split.safetensors")
    if rank == 0:
        whole.save(out / "whole.safetensors")
    dist.barrier()
    loaded = lv.load(out / "split.safetensors")
    assert loaded.sites == whole.sites, set(loaded.sites) ^ set(whole.sites)
    wrong = [site for site in whole.sites if not equal(loaded[site], whole[site])]
    assert not wrong, wrong
    assert loaded.placement(Q) and "shard" in loaded.placement(Q)
    assert [r.changed for r in loaded.reports] == [r.changed for r in whole.reports]
    for name in ("split", "whole"):
        source = lv.load(out / f"{name}.safetensors")
        for site in (Q, ACT, LAYER, f"{ATTENTION}.o_proj:input"):
            for part in (None, lv.at(token=2), lv.at(batch=1, token=-1)):
                edit = lv.patch(site, source, part)
                label = f"{edit} from the {name} one"
                found.runs(label, two, traced(PADDED, [LAST], edit))
            edit = lv.mean(site, source)
            found.runs(f"{edit}", two, traced(PADDED, [LAST], edit))
        edit = lv.skip(f"{LAYER}.mlp", source)
        found.runs(f"{edit}", two, traced(PADDED, [LAST], edit))
    assert not found.refused
    return report(found)


def parts(out: Path) -> Any:
    """Less of each value, a limit of bytes, an early end, and records on every rank."""
    two, found = pair("llama", out), Found()
    keeps = [
        lv.at(token=-1),
        lv.at(head=1),
        lv.at(feature=[1, 20]),
        lv.at(batch=0, token=[0, 2], feature=3),
        torch.bfloat16,
        {Q: (..., slice(3, 20)), "**.act_fn": torch.float64},
    ]
    for keep in keeps:
        for records in ("rank0", "all"):
            run = traced(PADDED, LIST, keep=keep, records=records)
            found.runs(f"keep {keep}", two, run, 0.01 if keep is torch.bfloat16 else 1e-5)
    for limit in (0, 3000, 20000):
        one, other = two.both(traced(IDS, "**", max_bytes=limit, records="all"))
        assert sum(one[site].nbytes for site in one.sites) <= limit
        assert len(one) + len(one.missed) == len(other) + len(other.missed)
        assert all(equal(one[site], other[site]) for site in one.sites)
        alike(one.sites)
    run = traced(IDS, [Q, LAYER], lv.scale(Q, 2.0), stop=True)
    found.runs("stop", two, run)
    got = lv.extract(two.split, IDS, [Q, "**.act_fn"], records="all")
    true = lv.extract(two.whole, IDS, [Q, "**.act_fn"])
    assert got.keys() == true.keys() and all(equal(got[s], true[s]) for s in true)
    held = lv.extract(two.split, IDS, [Q])
    if dist.get_rank():
        with raises(lv.NotRecordedError, "records='all'"):
            held[Q]
    with raises(lv.InterventionError, "keep", Q) as said:
        lv.trace(two.split, IDS, [Q], keep=lv.at(feature=[99]))
    alike(said)
    with raises(lv.InterventionError, "keep", Q) as said:
        lv.generate(two.split, IDS, [Q], keep=lv.at(feature=[99]), max_new_tokens=2)
    alike(said)
    for label, value in got.items():
        assert type(value) is Tensor, label
    return report(found)


def by_hand(out: Path) -> Any:
    """Code that every rank runs: lv.gather, lv.shard, a head on a hidden state, a weight."""
    two, found = pair("llama", out), Found()
    reached: list[tuple[int, ...]] = []

    def edit(model: Any) -> lv.Intervention:
        def mixed(value: Tensor) -> Tensor:
            whole = lv.gather(model, value)
            reached.append(tuple(whole.shape))
            return lv.shard(model, whole.flip(-1) * 2)

        return lv.call(Q, mixed, ranks="all")

    found.runs("ranks='all'", two, lambda m: lv.trace(m, IDS, LIST, edit(m)))
    assert set(reached) == {(2, 6, 32)}
    one, _ = two.both(lambda m: lv.trace(m, IDS, [LAYER], records="all")[LAYER])
    lens, true = two.both(lambda m: m.lm_head(m.model.norm(one)))
    assert equal(lens, true)
    for name, value in two.whole.named_parameters():
        assert equal(lv.weight(two.split, name), value.detach()), name
        assert equal(lv.weight(two.split, name, rows=[0, -1]), value.detach()[[0, -1]]), name
    # A layer by itself.
    layer, alone = two.both(lambda m: lv.trace(m.model.layers[1].mlp, one, ["**"], records="all"))
    found.traces("a part", layer, alone)
    return report(found)


def told(out: Path) -> Any:
    """Estimates, findings, and what stands in a trace."""
    two = pair("llama", out)
    for sites in ([Q, LAYER], "**"):
        guess, true = two.both(partial(lv.estimate, inputs=IDS, sites=sites))
        assert guess.sites == true.sites and guess.total == true.total, (str(guess), str(true))
    with raises(lv.LimitError, Q) as said:
        lv.trace(two.split, IDS, [Q, "lm_head"], max_bytes=1000)
    alike(said)
    text = str(lv.findings(two.split))
    alike(text)
    assert not lv.findings(two.split).refused, text
    trace = lv.trace(two.split, IDS, [Q, LAYER, f"{ATTENTION}.o_proj"], records="all")
    size = dist.get_world_size()
    assert trace.placement(Q) == f"shard of dim 2 (32) over {size} ranks, colwise"
    assert trace.placement(LAYER) == f"whole over {size} ranks"
    return {"findings": text}


def trusted(out: Path) -> Any:
    """Whether a run can be believed: the ranks' plain call, and ranks that do not have the same."""
    two, rank = pair("llama", out), dist.get_rank()
    trace = lv.trace(two.split, IDS, [Q, LAYER, "model.norm"], records="all", check=True)
    said = {check.name: check for check in trace.checks}
    assert [name for name, check in said.items() if not check.ok] == [], said
    assert "bit for bit" in said["output"].reason and "put together" in said["ranks"].reason
    with raises(lv.RankDivergenceError, "check"):
        lv.trace(two.split, IDS, [LAYER], check=rank == 0)
    told = lv.trace(two.split, IDS, [Q, LAYER], records="all", keep="statistics")
    for site in (Q, LAYER):
        mine, alone = told.stats(site), lv.trace(two.whole, IDS, site).stats(site)
        assert mine.shape == alone.shape and mine.rms and alone.rms, site
        assert abs(mine.rms - alone.rms) < 1e-5 * alone.rms, site
    assert not len(told) and not told.missed, told
    other = pair("llama", out)
    if rank:
        other.split.model.norm.weight.data.mul_(1.5)
    apart = lv.trace(other.split, IDS, [LAYER, "model.norm"], records="all")
    (ranks,) = (check for check in apart.checks if check.name == "ranks")
    assert ranks.ok is False and "at 1 of the values" in ranks.reason, ranks
    assert "most at model.norm (0." in ranks.reason, ranks
    alike(ranks.reason)
    return {}


CHECKS = (gradients, files, parts, by_hand, told, trusted)
