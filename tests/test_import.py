"""What `import lensview` costs, and what it does not load."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

HEAVY = (
    "transformers",
    "plotly",
    "anywidget",
    "ipywidgets",
    "IPython",
    "accelerate",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
)
PROCESSES = 9


def python(code: str) -> str:
    """Run `code` in a fresh process, with compiled modules cached as an installed package has them:
    torch's always are."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_loads_nothing_heavy() -> None:
    code = f"import sys, lensview; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(code).strip() == "[]"


def test_the_list_of_heavy_packages_is_real() -> None:
    """Each name can be imported: a misspelt one would never be found in `sys.modules`."""
    code = f"import importlib\nfor name in {HEAVY!r}: importlib.import_module(name)"
    python(code)


def test_prints_nothing() -> None:
    assert python("import lensview") == ""


def test_costs_at_most_a_tenth_of_torch() -> None:
    """`import lensview` / `import torch` <= 1.1: what lensview adds once torch is there, beside
    torch, both in the same fresh process, as the median over several processes."""
    code = (
        "import json, time\n"
        "start = time.perf_counter(); import torch\n"
        "middle = time.perf_counter(); import lensview\n"
        "end = time.perf_counter(); print(json.dumps([middle - start, end - middle]))\n"
    )
    python(code)  # fills the caches of the file system
    times = [json.loads(python(code)) for _ in range(PROCESSES)]
    ratio = statistics.median((torch + own) / torch for torch, own in times)
    assert ratio <= 1.1, times
