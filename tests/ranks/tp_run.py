"""Runs of the exam of layouts: torchrun around `tp_worker.py`, and the ranks' reports.

A model that leaves its ranks out of step ends the process group: names are run in groups of a few,
and those after such a model are run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.ranks.torchrun import start

TOGETHER = 12
OUT_OF_STEP = ("Timed out waiting", "pair closure", "Connection closed")

Table = dict[str, dict[str, Any]]
"""By name, rank 0's report, or ``{"error": …}``."""


def run(names: Iterable[str], folder: Path, ranks: int = 2, ops: bool = False) -> Table:
    """The table of all `names`; files go to `folder`."""
    waiting, table, number = list(names), Table(), 0
    while waiting:
        group, waiting = waiting[:TOGETHER], waiting[TOGETHER:]
        number += 1
        done = _group(group, folder / str(number), ranks, ops)
        for position, name in enumerate(group):
            table[name] = done.get(name, {"error": "the ranks ended before it"})
            if name not in done or any(t in table[name].get("error", "") for t in OUT_OF_STEP):
                waiting = group[position + 1 :] + waiting
                break
    return table


def _group(names: list[str], folder: Path, ranks: int, ops: bool) -> Table:
    folder.mkdir(parents=True)
    extra = {"LENSVIEW_EXAM_OPS": "1"} if ops else {}
    start("tp_worker.py", folder, *names, ranks=ranks, timeout=900, env=extra)
    report = folder / "rank0.json"
    found: Table = json.loads(report.read_text("utf-8")) if report.exists() else {}
    return found


def text(table: Table) -> str:
    """The table as Markdown, one row a model type."""
    lines = [
        "| model type | whole | labelled | refused | wrong | same output when sharded |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, row in table.items():
        if "error" in row:
            lines.append(f"| {name} | | | | | does not run: {row['error'].splitlines()[0][:90]} |")
            continue
        same = "yes" if row["same_output"] else f"no: first {row['wrong'][:1]}"
        counts = row["right"], sum(row["labelled"].values()), len(row["missing"])
        cells = " | ".join(map(str, (*counts, len(row["wrong"]), same)))
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)
