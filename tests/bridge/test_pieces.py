"""What one rank holds of a value, and what is told of each rank."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import lensview as lv
from lensview.bridge.session import RankSession
from lensview.explorer.bodies import RanksReply
from lensview.explorer.protocol import TileParams
from lensview.explorer.ranks import one_rank, ranks_reply
from lensview.explorer.replies import tile_reply, value_text
from lensview.parallel import placements

pytestmark = pytest.mark.ranks

IDS = torch.tensor([[5, 17, 3, 9, 44, 12], [8, 8, 11, 90, 12, 33]])
ACT = "model.layers.1.mlp.act_fn"
LATE = "model.layers.2"
# A function that runs on every rank, with what that rank holds.
OWN = """
def own(t):
    print("holds", tuple(t.shape), float(t.double().sum()))
    return t
"""


def cells(tile: object) -> torch.Tensor:
    data = torch.frombuffer(bytearray(tile.data), dtype=torch.float32)  # type: ignore[attr-defined]
    return data.reshape(tile.rows, tile.columns)  # type: ignore[attr-defined]


def test_pieces_are_what_ranks_hold(
    session: RankSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each rank prints the shape and the sum of what it has; 37 features lie as 19 and 18."""
    seen = session.trace(IDS, ACT, lv.call(ACT, source=OWN, ranks="all"))
    told = capfd.readouterr().err.splitlines()
    start = 0
    for rank, size in enumerate((19, 18)):
        piece = session.piece(seen, ACT, rank)
        assert torch.equal(piece, seen[ACT][..., start : start + size])
        start += size
        (line,) = [t for t in told if t.startswith(f"[rank {rank}] holds (2, 6, {size}) ")]
        assert float(line.rsplit(" ", 1)[1]) == pytest.approx(float(piece.double().sum()), rel=1e-6)
        tile = session.tile(seen, ACT, index=(1,), rank=rank)
        assert torch.equal(cells(tile), piece[1])
        assert session.stats(seen, ACT, rank=rank).mean == pytest.approx(float(piece.mean()))
        text = session.value(seen, ACT, (0, 2, 3), rank=rank)
        assert torch.tensor(float(text)) == piece[0, 2, 3]
    other = session.trace(IDS, ACT, lv.scale(ACT, 3.0))
    gap = session.difference_tile(other, seen, ACT, index=(0,), rank=1)
    assert torch.equal(cells(gap), (other[ACT] - seen[ACT])[0, :, 19:])


def test_what_has_no_pieces_is_refused(session: RankSession) -> None:
    seen = session.trace(IDS, [ACT, LATE])
    with pytest.raises(lv.PlacementError, match="does not lie in pieces: whole"):
        session.tile(seen, LATE, rank=0)
    with pytest.raises(lv.PlacementError, match="no rank 2: the model lies over 2"):
        session.piece(seen, ACT, 2)
    kept = session.trace(IDS, ACT, keep={ACT: lv.at(feature=[0, 1])})
    with pytest.raises(lv.PlacementError, match="of it was kept"):
        session.piece(kept, ACT, 0)


def test_a_placement_is_read_from_its_words() -> None:
    for lies in (
        placements.Whole(),
        placements.Shard(2, 37),
        placements.Packed(2, 48, 2),
        placements.Scaled(3),
        placements.Local("nothing tells"),
    ):
        assert placements.read(str(lies)) == lies
    assert placements.read("shard of dim 2 (37) over 2 ranks, colwise") == placements.Shard(2, 37)
    assert placements.read("") is None


def test_what_is_told_of_each_rank(session: RankSession) -> None:
    session.ping()
    idle = session.states()
    assert [(s.rank, s.group, s.state, s.host) for s in idle] == [
        (0, 0, "idle", ""),
        (1, 0, "idle", ""),
    ]
    assert all(s.memory > 50 << 20 and s.gpu_memory == 0 for s in idle)
    slow = "def slow(t):\n    import time\n    print('slow')\n    time.sleep(0.6)\n    return t"
    run = threading.Thread(
        target=lambda: session.trace(IDS, LATE, lv.call(LATE, source=slow, ranks="all"))
    )
    run.start()
    seen = []
    while run.is_alive():
        seen.append(session.states())
        time.sleep(0.05)
    run.join()
    busy = [s for s in seen if s[1].state == "running"]
    assert busy and {s[1].doing for s in busy} == {"trace"}
    since = [s[1].since for s in busy]
    assert since == sorted(since)
    assert session.states()[1].state == "idle" and session.states()[1].line == "slow"


def test_the_explorer_tells_of_ranks_and_shows_pieces(
    session: RankSession, local: lv.LocalSession
) -> None:
    explorer = lv.explore(session)
    try:
        explorer.run(IDS)
        latest = explorer._open().latest
        assert ranks_reply(local, latest.trace, ACT) == RanksReply([], 0, "")
        told = ranks_reply(session, latest.trace, ACT)
        assert [(r.rank, r.state) for r in told.rows] == [(0, "idle"), (1, "idle")]
        assert told.pieces == 2 and told.lies.startswith("shard of dim 2 (37) over 2 ranks")
        whole = ranks_reply(session, latest.trace, LATE)
        assert (whole.pieces, whole.lies.partition(" ")[0]) == (0, "whole")
        assert ranks_reply(session, None, ACT).pieces == 0
        wanted = TileParams(ACT, "latest", None, 64, 64, [0], rank=1)
        reply, data = tile_reply(one_rank(session, 1), latest, wanted)
        assert (reply.rows, reply.columns, reply.shape) == (6, 18, [2, 6, 18])
        assert reply.note.startswith("rank 1's piece alone")
        got = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(6, 18)
        expected = local.trace(IDS, ACT)[ACT][0, :, 19:]
        assert torch.allclose(got, expected, 1e-4, 1e-5)
        text = value_text(one_rank(session, 1), latest, ACT, "latest", (0, 2, 3))
        assert torch.tensor(float(text)) == got[2, 3]
        with pytest.raises(lv.LensError, match="in one process"):
            one_rank(local, 0)
    finally:
        explorer.close()
