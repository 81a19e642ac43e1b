"""What a session over ranks gives equals what one process gives."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import lensview as lv
from lensview.bridge.remote import RemoteTrace
from lensview.bridge.session import RankSession

pytestmark = pytest.mark.ranks

IDS = torch.tensor([[5, 17, 3, 9, 44, 12], [8, 8, 11, 90, 12, 33]])
Q = "model.layers.1.self_attn.q_proj"
ACT = "model.layers.1.mlp.act_fn"
LATE = "model.layers.2"


def close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, 1e-4, 1e-5)


def equal(seen: Any, expected: Any) -> None:
    assert seen.sites == expected.sites
    wrong = [site for site in expected.sites if not close(seen[site], expected[site])]
    assert wrong == []
    assert close(seen.logits, expected.logits)


def test_it_is_a_session(session: RankSession, local: lv.LocalSession) -> None:
    assert isinstance(session, lv.Session)
    assert session.title == local.title == "LlamaForCausalLM"
    assert [r.pid > 0 and r.exit is None for r in session.ranks] == [True, True]


def test_the_tree_is_that_of_the_whole_model(session: RankSession, local: lv.LocalSession) -> None:
    rows = session.tree()
    assert [replace(row, note="") for row in rows] == [replace(r, note="") for r in local.tree()]
    notes = {row.path: row.note for row in rows}
    assert notes[Q] == "colwise, weight in 2 shards of dim 0, bias in 2 shards of dim 0"
    assert notes["model.layers.0"] == ""


def test_every_value_is_whole(session: RankSession, local: lv.LocalSession) -> None:
    sites = ["**", "**:input"]
    seen = session.trace(IDS, sites)
    equal(seen, local.trace(IDS, sites))
    assert len(seen) > 80
    assert seen.placement(Q).startswith("shard of dim 2")


def test_values_between_ops(session: RankSession, local: lv.LocalSession) -> None:
    sites = ["model.layers.1.self_attn/*"]
    seen, expected = session.trace(IDS, sites), local.trace(IDS, sites)
    whole = [s for s in seen.sites if "rank-local" not in seen.placement(s)]
    assert len(whole) > 3
    assert all(close(seen[s], expected[s]) for s in whole)


def test_tensors_are_fetched_when_looked_at(session: RankSession) -> None:
    seen = session.trace(IDS)
    assert isinstance(seen, RemoteTrace)
    assert "over ranks" in repr(seen)
    assert seen.shape(ACT) == (2, 6, 37)
    assert seen.rows(ACT) == "tokens"
    held = [s for s in seen.sites if seen.record(s).__dict__["_tensor"] is not None]
    assert held == []
    value = seen[ACT]
    assert value.shape == (2, 6, 37)
    assert seen[ACT] is value


def test_prompts(session: RankSession, local: lv.LocalSession) -> None:
    prompt = "the big cat sat"
    seen, expected = session.trace(prompt, LATE), local.trace(prompt, LATE)
    equal(seen, expected)
    assert seen.tokens is not None and expected.tokens is not None
    assert seen.tokens.labels == expected.tokens.labels
    got, want = seen.top(3), expected.top(3)
    assert [(t.text, t.id) for t in got] == [(t.text, t.id) for t in want]


def test_inputs_of_every_form(session: RankSession, local: lv.LocalSession) -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    for inputs in (
        {"input_ids": IDS, "attention_mask": mask},
        (IDS, mask),
        lv.Args(IDS, attention_mask=mask),
        ["the cat", "a big red fox"],
    ):
        equal(session.trace(inputs, LATE), local.trace(inputs, LATE))
    with pytest.raises(lv.InputError, match="cannot be sent to the ranks"):
        session.trace({"input_ids": object()}, LATE)


EDITS = [
    lv.scale(Q, 3.0),
    lv.zero(ACT, lv.at(token=2)),
    lv.add("model.layers.1.mlp.gate_proj", torch.linspace(-1, 1, 37)),
    lv.put("model.layers.1.mlp.down_proj:input", 0.5, lv.at(feature=[3, 20])),
    lv.noise("model.layers.1.self_attn.k_proj", 1.0, seed=3),
    lv.project_out("model.layers.1.self_attn.v_proj", torch.linspace(-1, 1, 8)),
    lv.clamp("lm_head", -1, 1),
    lv.skip("model.layers.1", "input"),
    lv.call(Q, source="def flip(t):\n    return t.flip(-1)"),
]


@pytest.mark.parametrize("edit", EDITS, ids=[e.op for e in EDITS])
def test_interventions(session: RankSession, local: lv.LocalSession, edit: lv.Intervention) -> None:
    seen, expected = session.trace(IDS, LATE, edit), local.trace(IDS, LATE, edit)
    equal(seen, expected)
    plain = local.trace(IDS, LATE)
    assert not torch.equal(expected.logits, plain.logits)  # type: ignore[arg-type]
    got, want = seen.reports[0], expected.reports[0]
    assert (got.calls, got.changed) == (want.calls, want.changed)
    assert got.intervention is edit


def test_a_patch_from_a_remote_trace(session: RankSession, local: lv.LocalSession) -> None:
    other = IDS.flip(1)
    seen = session.trace(IDS, LATE, lv.patch(Q, session.trace(other, Q)))
    equal(seen, local.trace(IDS, LATE, lv.patch(Q, local.trace(other, Q))))


def test_extract(session: RankSession, local: lv.LocalSession) -> None:
    sites = [Q, "model.layers.*.mlp"]
    seen = session.extract(IDS, sites)
    expected = lv.extract(local.root, IDS, sites)
    assert list(seen) == list(expected)
    assert all(close(seen[s], expected[s]) for s in expected)
    last = session.extract(IDS, Q, keep=lv.at(token=-1))[Q]
    assert close(last, expected[Q][:, -1:])


def test_generate(session: RankSession, local: lv.LocalSession) -> None:
    edits = [lv.scale(Q, 3.0, lv.at(token=3))]
    sites = [Q, "model.layers.0"]
    seen = session.generate(IDS, sites, edits, max_new_tokens=4)
    expected = lv.generate(local.root, IDS, sites, edits, max_new_tokens=4)
    assert torch.equal(seen.ids, expected.ids)
    assert seen.ended == expected.ended
    assert close(seen.stack(Q), expected.stack(Q))
    assert [r.changed for r in seen.reports] == [r.changed for r in expected.reports]
    torch.manual_seed(7)
    expected = lv.generate(local.root, IDS, sites, max_new_tokens=4, do_sample=True)
    seen = session.generate(IDS, sites, max_new_tokens=4, do_sample=True, seed=7)
    assert torch.equal(seen.ids, expected.ids)


def test_pictures_and_numbers(session: RankSession, local: lv.LocalSession) -> None:
    seen, expected = session.trace(IDS), local.trace(IDS)
    edit = lv.scale(Q, 2.0)
    edited, expected_edited = session.trace(IDS, "**", edit), local.trace(IDS, "**", edit)
    for site in (Q, ACT, LATE, "lm_head"):
        tile, want = session.tile(seen, site, index=(1,)), local.tile(expected, site, index=(1,))
        got = torch.frombuffer(bytearray(tile.data), dtype=torch.float32)
        assert torch.allclose(
            got, torch.frombuffer(bytearray(want.data), dtype=torch.float32), 1e-4, 1e-5
        )
        assert (tile.window, tile.plane, tile.shape) == (want.window, want.plane, want.shape)
        stats, told = session.stats(seen, site), local.stats(expected, site)
        assert stats.mean == pytest.approx(told.mean, rel=1e-4, abs=1e-5)
        assert (stats.shape, stats.count) == (told.shape, told.count)
    gap = session.difference_tile(edited, seen, LATE)
    known = local.difference_tile(expected_edited, expected, LATE)
    got, wanted = (torch.frombuffer(bytearray(t.data), dtype=torch.float32) for t in (gap, known))
    assert torch.allclose(got, wanted, 1e-3, 1e-4) and got.abs().max() > 0
    assert float(session.value(seen, Q, (0, 2, 3))) == pytest.approx(
        float(local.value(expected, Q, (0, 2, 3))), rel=1e-4
    )


def test_traces_save_and_compare(
    session: RankSession, local: lv.LocalSession, tmp_path: Any
) -> None:
    seen = session.trace(IDS, [Q, LATE])
    seen.save(tmp_path / "run.safetensors")
    loaded = lv.load(tmp_path / "run.safetensors")
    equal(loaded, local.trace(IDS, [Q, LATE]))


def test_check(session: RankSession, local: lv.LocalSession) -> None:
    good, bad = lv.zero(Q), lv.zero("model.layers.7")
    inner = lv.call(Q, lambda t: t)
    told = session.check([good, bad, inner])
    assert told[:2] == local.check([good, bad])
    assert "cannot be sent to the ranks" in told[2]
    with pytest.raises(lv.InterventionError, match="as source text") as caught:
        session.trace(IDS, LATE, inner)
    assert caught.value.intervention is inner


def test_checks_and_statistics_come_along(session: RankSession, local: lv.LocalSession) -> None:
    seen = session.trace(IDS, [Q, LATE], check=True)
    assert isinstance(seen, RemoteTrace)
    told = {check.name: check for check in seen.checks}
    assert [name for name, check in told.items() if not check.ok] == [], told
    assert "bit for bit" in told["output"].reason and "put together" in told["ranks"].reason
    assert "_tensor" not in repr(seen) and seen.record(Q).__dict__["_tensor"] is None
    small = session.trace(IDS, [Q, LATE], keep="statistics")
    assert not len(small) and small.statistics.keys() == {Q, LATE}
    expected = local.trace(IDS, [Q]).stats(Q)
    assert small.stats(Q).shape == expected.shape
    assert small.stats(Q).rms == pytest.approx(expected.rms, rel=1e-5)
    keep = (lv.at(token=-1), torch.bfloat16)
    step = session.generate(IDS[:1], LATE, max_new_tokens=2, keep=keep).step(0)
    assert step[LATE].shape == (1, 1, 16) and step[LATE].dtype == torch.bfloat16
    assert {c.name for c in step.checks} == {"modules", "mode", "ranks", "finite"}


def test_errors_of_a_run_are_those_of_one_process(
    session: RankSession, local: lv.LocalSession
) -> None:
    wrong = lv.add(Q, torch.ones(5))
    for kind, run in {
        lv.SiteError: lambda s: s.trace(IDS, "model.layer.0"),
        lv.InterventionError: lambda s: s.trace(IDS, LATE, [lv.zero(ACT), wrong]),
        lv.InputError: lambda s: s.trace(torch.tensor([[400]]), LATE),
        lv.NotRecordedError: lambda s: s.trace(IDS, LATE)[Q],
    }.items():
        texts = []
        for one in (session, local):
            with pytest.raises(kind) as caught:
                run(one)
            assert type(caught.value) is kind
            texts.append(str(caught.value))
        assert texts[0].splitlines()[0][:60] == texts[1].splitlines()[0][:60]
        if kind is lv.InterventionError:
            assert caught.value.intervention is wrong  # type: ignore[attr-defined]
    idle = lv.zero(Q, lv.at(token=2))
    missing = lv.zero("model.layers.1@3")
    with pytest.raises(lv.IdleInterventionError) as idled:
        session.trace(IDS, LATE, [idle, missing])
    assert idled.value.intervention is missing
    assert isinstance(idled.value.trace, RemoteTrace)
    assert close(idled.value.trace[LATE], local.trace(IDS, LATE, idle)[LATE])
    with pytest.raises(lv.InterventionError, match="boom"):
        session.trace(IDS, LATE, lv.call(Q, source="def f(t):\n    raise ValueError('boom')"))
    session.ping()


def test_what_ranks_print_and_warn(session: RankSession, capfd: pytest.CaptureFixture[str]) -> None:
    talk = """
def talk(t):
    import os, sys, warnings
    print('hello from', os.environ['RANK'])
    sys.stderr.write('no end of line')
    os.write(1, b'\\xff bytes')
    warnings.warn(f"careful, {os.environ['RANK']}")
    return t * 2
"""
    with pytest.warns(UserWarning, match=r"\[rank 1\] careful, 1"):
        session.trace(IDS, LATE, lv.call(ACT, source=talk, ranks="all"))
    told = capfd.readouterr()
    assert told.out == ""
    assert "[rank 0] hello from 0\n" in told.err and "[rank 1] hello from 1\n" in told.err
    assert "no end of line" in told.err and "\\xff bytes" in told.err


def test_rank_0_lets_go_of_what_is_let_go_of_here(session: RankSession) -> None:
    seen = session.trace(IDS)
    number = seen.number  # type: ignore[attr-defined]
    assert session._read("fetch", {"trace": number, "sites": [Q]})[Q].shape == (2, 6, 16)
    del seen
    gc.collect()
    with pytest.raises(lv.LensError, match="do not hold this trace"):
        session._read("fetch", {"trace": number, "sites": [Q]})


def test_an_idle_session_costs_nothing(session: RankSession) -> None:
    session.ping()
    begun = [_processor_seconds(r.pid) for r in session.ranks]
    time.sleep(3)
    spent = [_processor_seconds(r.pid) - b for r, b in zip(session.ranks, begun, strict=True)]
    # What is left is gloo's own: its threads wake a hundred times a second.
    assert max(spent) <= 0.12


def _processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


SLOW = "def slow(t):\n    import time\n    time.sleep(0.3)\n    return t"


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.5, 0.9])
def test_a_cancel_stops_all_ranks_alike(session: RankSession, delay: float) -> None:
    watch = lv.Watch()
    threading.Timer(delay, watch.cancel).start()
    begun = time.monotonic()
    slow = [lv.call(f"model.layers.{i}.mlp", source=SLOW) for i in range(3)]
    with pytest.raises(lv.RunCancelled):
        session.generate(IDS, LATE, slow, max_new_tokens=20, watch=watch)
    assert time.monotonic() - begun < delay + 5
    assert session.trace(IDS, LATE).logits is not None


def test_progress(session: RankSession) -> None:
    told: list[tuple[int, int, str]] = []
    watch = lv.Watch(lambda *args: told.append(args))
    slow = [lv.call(f"model.layers.{i}.mlp", source=SLOW) for i in range(3)]
    session.trace(IDS, LATE, slow, watch=watch)
    assert told and {total for _, total, _ in told} == {3}
    assert "layer" in told[0][2]


def test_looking_goes_on_beside_a_run(session: RankSession) -> None:
    seen = session.trace(IDS)
    slow = [lv.call(f"model.layers.{i}.mlp", source=SLOW) for i in range(3)]
    running = threading.Thread(target=lambda: session.generate(IDS, LATE, slow, max_new_tokens=3))
    running.start()
    time.sleep(0.5)
    begun = time.monotonic()
    session.tile(seen, Q)
    took = time.monotonic() - begun
    assert running.is_alive() and took < 1.0
    running.join()


def test_an_explorer_over_ranks(session: RankSession, local: lv.LocalSession) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explorer = lv.explore(session)
        try:
            seen = explorer.run("the big cat sat")
            assert seen is not None
            explorer.selected = ACT
            explorer.interventions = (lv.scale(ACT, 2.0),)
            explorer.run()
            assert explorer.trace is not None
            expected = local.trace("the big cat sat", LATE, lv.scale(ACT, 2.0))
            assert [t.id for t in explorer.trace.top(5)] == [t.id for t in expected.top(5)]
            assert explorer.trace is not explorer.baseline
        finally:
            explorer.close()


def test_an_explorer_pulls_pictures_not_tensors(session: RankSession) -> None:
    """The tree's shapes, tiles, numbers and differences of an explorer fetch no record."""
    from lensview.explorer.outputs import outputs_page, sizes_page
    from lensview.explorer.overlays import Overlays
    from lensview.explorer.protocol import TileParams
    from lensview.explorer.replies import tile_reply, value_text

    explorer = lv.explore(session)
    try:
        explorer.run(IDS)
        explorer.interventions = (lv.scale(Q, 2.0),)
        explorer.run()
        runs = explorer._open()
        rows = session.tree()
        page = outputs_page(rows, runs.latest, 0, len(rows))
        assert "2 x 6 x 37" in page.shapes
        for which in ("latest", "baseline", "difference"):
            wanted = TileParams(LATE, which, None, 64, 64, [0])
            reply, cells = tile_reply(session, runs.latest, wanted)
            assert len(cells) == reply.rows * reply.columns * 4
        turned = TileParams(LATE, "latest", None, 64, 64, [0], 2, 1, 90.0)
        reply, cells = tile_reply(session, runs.latest, turned)
        sizes = sizes_page(session, rows, runs.latest, Overlays(), 0, len(rows), seconds=60)
        text = value_text(session, runs.latest, LATE, "difference", (0, 2, 3))
        for seen in (explorer.trace, explorer.baseline):
            held = [s for s in seen.sites if seen.record(s).__dict__["_tensor"] is not None]
            assert held == []
        change = float(text.split()[0])
        both = explorer.trace[LATE][0, 2, 3].item() - explorer.baseline[LATE][0, 2, 3].item()
        assert change == both
        late = explorer.trace[LATE]
        assert cells == late[0].T.contiguous().numpy().tobytes() and reply.reach is not None
        at = [row.path for row in rows].index(LATE)
        assert sizes.rms[at] == pytest.approx(float(late.double().pow(2).mean().sqrt()))
        gap = (late.double() - explorer.baseline[LATE].double()).pow(2).mean().sqrt()
        assert sizes.changes[at] == pytest.approx(float(gap), rel=1e-5)
    finally:
        explorer.close()
