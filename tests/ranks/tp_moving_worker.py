"""What every rank runs under torchrun for `test_tp_moving.py`: the moving of values between ranks.

Each check asserts on its own rank; the report of a rank is a JSON file, and ends with the first
check that failed there.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks.tp_moving_groups import (
    agreement_check,
    many_rounds,
    meshes,
    part_of_the_world,
    split_inside,
)
from tests.ranks.tp_moving_models import by_hand, degrees, weights
from tests.ranks.tp_moving_values import (
    bounded,
    edit_gradients,
    edits,
    errors,
    flush,
    gradients,
    interrupted,
    nothing_to_move,
)

CHECKS: tuple[Callable[[Path], Any], ...] = (
    flush,
    nothing_to_move,
    bounded,
    gradients,
    edits,
    edit_gradients,
    errors,
    interrupted,
    part_of_the_world,
    meshes,
    split_inside,
    agreement_check,
    many_rounds,
    weights,
    by_hand,
    degrees,
)


def main(out: Path, *only: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    report = {}
    for check in [c for c in CHECKS if not only or c.__name__ in only]:
        try:
            report[check.__name__] = {"said": check(out)}
        except Exception:
            # The ranks may be out of step now: what follows would wait for nothing.
            report[check.__name__] = {"error": traceback.format_exc()}
            break
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(report))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
