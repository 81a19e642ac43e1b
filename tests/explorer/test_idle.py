"""An explorer's run whose interventions met no value: shown, and said."""

from __future__ import annotations

import torch
from torch import nn

import lensview as lv
from lensview.explorer import Explorer

from .conftest import Page, row


def test_the_run_is_shown_with_a_note_of_the_row_that_did_nothing() -> None:
    explorer = Explorer(lv.LocalSession(nn.MultiheadAttention(8, 2, batch_first=True)))
    page = Page(explorer)
    x = torch.randn(1, 3, 8)
    explorer.run((x, x, x))
    rows = [row("out_proj", "zero", ""), row(":output", "scale", "2"), row(":output", "add", "0.5")]
    page.ask("interventions", rows=rows)
    state = page.ask("run", prompt="")
    notes = [n for n in state["notes"] if "did nothing" in n]
    assert len(notes) == 1 and "zero out_proj" in notes[0]
    assert [r["changed"] for r in state["interventions"]] == [0, 24, 24]
    assert not any(r["error"] for r in state["interventions"])
    plain = lv.extract(explorer.session.root, (x, x, x), ":output")[":output"]  # type: ignore[arg-type]
    assert torch.equal(explorer.trace[":output"], plain * 2 + 0.5)
    page.ask("interventions", rows=[row(":output", "scale", "1e39")])
    assert any("24 finite values infinite" in n for n in page.ask("run", prompt="")["notes"])
    explorer.close()
