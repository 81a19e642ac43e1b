"""What every rank runs under torchrun for `test_tp_capture.py`: runs on models that are split.

Each check compares with the same model whole in this process, on every rank. The report of a rank
is one file, ``rank0.json`` and so on. A check that leaves the ranks out of step spoils those after
it, which then say so.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks import tp_capture_edits, tp_capture_failures, tp_capture_traces
from tests.ranks.tp_capture_pair import pair, report
from tests.ranks.tp_capture_sweep import sweep

Check = Callable[[Path], Any]
CHECKS: dict[str, Check] = {
    check.__name__: check
    for module in (tp_capture_edits, tp_capture_traces, tp_capture_failures)
    for check in module.CHECKS
}
SWEPT = "every edit of "
"""Before a row's name: a sweep with one kind of edit at each site."""
BLOCK = ", a block"
"""After it: of one block alone."""


def swept(name: str, out: Path) -> Any:
    part = name.endswith(BLOCK)
    return report(sweep(pair(name.removesuffix(BLOCK), out), part=part))


def main(out: Path, names: list[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    done: dict[str, Any] = {}
    for name in names:
        start = time.time()
        row = name.removeprefix(SWEPT)
        check = CHECKS.get(name) or partial(swept, row)
        try:
            done[name] = check(out)
        except Exception:
            done[name] = {"error": traceback.format_exc()}
        done[name]["seconds"] = round(time.time() - start, 1)
        (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
