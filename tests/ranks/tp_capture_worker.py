"""What every rank runs under torchrun for `test_tp_capture.py`: runs on models that are split.

Each check compares with the same model whole in this process, on every rank. The report of a rank
is one file, ``rank0.json`` and so on.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks.tp_capture_pair import pair, report
from tests.ranks.tp_capture_sweep import sweep

def swept(name: str, out: Path, every: bool = False, **options: Any) -> Any:
    return report(sweep(pair(name, out, **options), every))


def main(out: Path, names: list[str]) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    done = {}
    import time
    for name in names:
        t=time.time()
        try:
            done[name] = swept(name, out)
        except Exception:
            done[name] = {"error": traceback.format_exc()}
        print(dist.get_rank(), name, f"{time.time()-t:.1f}", json.dumps(done[name],indent=1).replace("\\n","\n") if dist.get_rank()==0 else "", flush=True)
        (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(done))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
