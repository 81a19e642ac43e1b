"""Several groups of ranks, each with a model of its own."""

from __future__ import annotations

import os
import signal
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
    body = {"plan": plan.to_json(), "inputs": IDS, "chat": False}
    pending = team.run("trace", body, groups=(1,))
    assert team.settled(pending) is None and sorted(pending.answers) == [2, 3]
    expected = local.trace(IDS, Q, lv.scale(Q, 2.0))
    assert close(pending.result()["logits"], expected.logits)  # type: ignore[arg-type]


def test_a_rank_of_another_group_that_fails(groups: lv.RankSession) -> None:
    """Last: it ends the session."""
    pids = [r.pid for r in groups.ranks]
    os.kill(pids[3], signal.SIGKILL)
    with pytest.raises(lv.WorkerError, match="Rank 3 was killed by SIGKILL"):
        for _ in range(100):
            groups.trace(IDS, Q)
    assert gone(pids, 1)
