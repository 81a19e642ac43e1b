"""DDP on two real ranks: each rank's trace, joined, is the trace of the whole batch."""

from __future__ import annotations

import pytest
import torch

import lensview as lv

from .conftest import Reports
from .worker import IDS, PARTS, SITES, edits, llama

pytestmark = pytest.mark.ranks


def parts(reports: Reports) -> list[lv.Trace]:
    return [lv.load(reports.folder / f"part{rank}.safetensors") for rank in range(len(reports))]


def test_merged_ranks_are_the_whole_batch(reports: Reports) -> None:
    """Two rows on one rank and one on the other; given in the wrong order on purpose."""
    whole = lv.trace(llama(), IDS, SITES, edits())
    merged = lv.merge_ranks(parts(reports)[::-1])
    assert merged.meta["merged"] == [2, 1]
    for site, tensor in merged.items():
        torch.testing.assert_close(tensor, whole[site], rtol=1e-5, atol=1e-6)
    assert whole.logits is not None and merged.logits is not None
    torch.testing.assert_close(merged.logits, whole.logits, rtol=1e-5, atol=1e-6)
    assert merged.tokens is not None and torch.equal(merged.tokens.ids, IDS)
    assert [t.id for t in merged.top(3, row=2)] == [t.id for t in whole.top(3, row=2)]
    told = [(r.intervention.site, r.calls, r.changed) for r in merged.reports]
    assert told == [(r.intervention.site, r.calls, r.changed) for r in whole.reports]


def test_what_has_no_batch_dim_is_missed_by_name(reports: Reports) -> None:
    whole = lv.trace(llama(), IDS, SITES, edits())
    merged = lv.merge_ranks(parts(reports))
    apart = set(whole.sites) - set(merged.sites)
    assert apart == {"model.rotary_emb"}
    assert "were not joined" in merged.missed["model.rotary_emb"]
    with pytest.raises(lv.NotRecordedError, match="dim 0 is not the batch"):
        merged["model.rotary_emb"]


def test_each_rank_saw_its_own_rows_bit_for_bit(reports: Reports) -> None:
    for rank, part in enumerate(parts(reports)):
        alone = lv.trace(llama(), IDS[PARTS[rank]], SITES, edits())
        assert alone.sites == part.sites
        for site in part:
            torch.testing.assert_close(part[site], alone[site], rtol=1e-6, atol=1e-7)
        assert (part.meta["rank"], part.meta["world_size"]) == (rank, 2)
        assert reports[rank]["ddp"]["untouched"] is True


def test_a_missing_or_doubled_rank_is_refused(reports: Reports) -> None:
    first, second = parts(reports)
    with pytest.raises(lv.TraceMergeError, match="ranks 0, 0"):
        lv.merge_ranks([first, first])
    alone = lv.trace(llama(), IDS[:1], SITES, edits())
    with pytest.raises(lv.TraceMergeError, match="ranks 1, none"):
        lv.merge_ranks([second, alone])
