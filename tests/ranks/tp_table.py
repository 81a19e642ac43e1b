"""Prints how whole the values of sharded models are, by model type.

``python -m tests.ranks.tp_table`` runs every type that can be split (about ten minutes);
``python -m tests.ranks.tp_table llama mixtral --ops`` runs these, values between ops too.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.ranks.tp_models import CASES, planned
from tests.ranks.tp_run import run, text


def main(arguments: list[str]) -> None:
    names = [a for a in arguments if not a.startswith("-")] or [*planned(), *CASES]
    with tempfile.TemporaryDirectory() as folder:
        table = run(names, Path(folder), ops="--ops" in arguments)
    print(text(table))


if __name__ == "__main__":
    main(sys.argv[1:])
