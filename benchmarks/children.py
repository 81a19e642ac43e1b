"""Children: figures from a process of its own, so that no way of measuring warms up another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence


def figures(module: str, arguments: Sequence[str], limit: float) -> dict[str, float] | str:
    """The JSON object in the last line that ``python -m module`` prints, or why there is none."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"not done in {limit} s"
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]:.90}"
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
