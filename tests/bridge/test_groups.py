"""Several groups of ranks, each with a model of its own."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lensview as lv

from .test_failures import gone
from .test_session import _processor_seconds

pytestmark = [pytest.mark.ranks, pytest.mark.full]

IDS = torch.tensor([[5, 17, 3, 9], [8, 8, 11, 90]])
Q = "model.layers.1.self_attn.q_proj"


@pytest.fixture(scope="module")
def groups(folder: Path) -> Iterator[lv.RankSession]:
    env = {"OMP_NUM_THREADS": "1"}
    with lv.launch(folder, tp=2, dp=2, device="cpu", env=env, quiet=True) as session:
        yield session


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-5)


def test_the_first_group_runs_and_the_others_sleep(
    groups: lv.RankSession, local: lv.LocalSession
) -> None:
    assert groups.groups == ((0, 1), (2, 3))
    assert groups.summary.endswith("2 groups of 2 ranks")
    groups.ping()
    before = [_processor_seconds(r.pid) for r in groups.ranks]
    seen, expected = groups.trace(IDS), local.trace(IDS)
    assert [s for s in expected.sites if not close(seen[s], expected[s])] == []
    assert seen.placement(Q).startswith("shard of dim 2")
    made = groups.generate(IDS, Q, max_new_tokens=12)
    assert torch.equal(made.ids, lv.generate(local.root, IDS, Q, max_new_tokens=12).ids)
    after = [_processor_seconds(r.pid) for r in groups.ranks]
    spent = [a - b for a, b in zip(after, before, strict=True)]
    assert max(spent[2:]) < min(spent[:2]) / 3


def test_each_group_can_run_by_itself(groups: lv.RankSession, local: lv.LocalSession) -> None:
    """The same command, given to the second group alone, gives the same values."""
    team = groups._team
    plan = lv.Plan.make(Q, lv.scale(Q, 2.0))
    body = {"plan": plan.to_json(), "inputs": IDS, "chat": False, "check": False}
    pending = team.run("trace", body, groups=(1,))
    assert team.settled(pending) is None and sorted(pending.answers) == [2, 3]
    expected = local.trace(IDS, Q, lv.scale(Q, 2.0))
    assert close(pending.result()["logits"], expected.logits)  # type: ignore[arg-type]


TEXTS = [f"the {a} {b} sat" for a in ("big", "red") for b in "cat dog fox mat".split()]


def test_a_dataset_is_spread_over_the_groups(
    groups: lv.RankSession, local: lv.LocalSession, tmp_path: Path
) -> None:
    """Each item once, equal to its own run; a second call runs nothing."""
    told: list[tuple[int, int, str]] = []
    watch = lv.Watch(lambda *args: told.append(args))
    path = tmp_path / "acts"
    data = groups.extract_dataset(TEXTS, [Q, "lm_head"], path, batch_size=2, watch=watch)
    assert len(data) == len(TEXTS)
    expected = [local.trace(text, [Q, "lm_head"]) for text in TEXTS]
    for i, one in enumerate(expected):
        for site in (Q, "lm_head"):
            assert close(torch.as_tensor(data[i][site]), one[site][0])
    # Each group's first rank has written a share of its own.
    assert {file.name[:6] for file in path.rglob("r*.jsonl")} == {"r00000", "r00001"}
    assert told == [] or told[-1][1] == len(TEXTS)
    again = groups.extract_dataset(TEXTS, [Q, "lm_head"], path, batch_size=2)
    assert len(again) == len(TEXTS)


def test_an_extraction_that_is_refused_or_cancelled(groups: lv.RankSession, tmp_path: Path) -> None:
    with pytest.raises(lv.SiteError):
        groups.extract_dataset(TEXTS, "model.layer.0", tmp_path / "none")
    with pytest.raises(lv.InputError, match="not a collection"):
        groups.extract_dataset({"a": 1}, Q, tmp_path / "none")
    watch = lv.Watch()
    threading.Timer(1.0, watch.cancel).start()
    slow = lv.call(Q, source="def f(t):\n    import time\n    time.sleep(0.3)\n    return t")
    with pytest.raises(lv.RunCancelled):
        groups.extract_dataset(TEXTS * 20, Q, tmp_path / "some", slow, batch_size=1, watch=watch)
    groups.ping()


def test_a_rank_of_another_group_that_fails(groups: lv.RankSession) -> None:
    """Last: it ends the session."""
    pids = [r.pid for r in groups.ranks]
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(lv.WorkerError, match="Rank 3 was killed by SIGKILL"):
        for _ in range(100):
            groups.trace(IDS, Q)
    assert gone(pids, 1)
