"""Worker: what a scheduler starts on every rank, ``torchrun … -m lensview.bridge.worker``.

Owns the command line. What it starts is `tender.py`'s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from .launch import spec_of
from .tender import Asked, Tender


def main(arguments: list[str] | None = None) -> int:
    """Serve one rank of a job until it ends; the exit status."""
    parser = argparse.ArgumentParser(
        prog="torchrun … -m lensview.bridge.worker",
        description="Holds a model over the ranks of a job, for lensview.attach(FILE).",
    )
    parser.add_argument(
        "--path",
        required=True,
        help="what transformers loads, a folder or an id, or your module:function",
    )
    parser.add_argument(
        "--connection",
        required=True,
        type=Path,
        metavar="FILE",
        help="where rank 0 leaves its address and key, for you alone; in a folder that all "
        "machines of the job share",
    )
    parser.add_argument(
        "--tp", type=int, default=0, help="how many ranks hold one model together (all)"
    )
    parser.add_argument(
        "--options", default="{}", type=json.loads, help="keywords for the load, as JSON"
    )
    parser.add_argument(
        "--timeout", type=float, default=7200.0, help="of the ranks' process group, in seconds"
    )
    parser.add_argument(
        "--host", default="", help="the address of rank 0's machine at which it is to be met"
    )
    parser.add_argument(
        "--unattended",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end the job when nobody has been attached for so long (0: never)",
    )
    given = parser.parse_args(arguments)
    size = int(os.environ.get("WORLD_SIZE", "0"))
    if "RANK" not in os.environ or not size:
        parser.error("it is started by torchrun, which says which rank it is")
    tp = given.tp or size
    if tp < 1 or size % tp:
        parser.error(f"--tp {tp} does not divide the {size} ranks")
    if not isinstance(given.options, dict):
        parser.error("--options is a JSON object")
    spec = spec_of(given.path, given.options, given.timeout, tp)
    file = given.connection.expanduser().absolute()
    return Tender(Asked(file, spec, given.host, given.unattended)).run()


if __name__ == "__main__":
    sys.exit(main())
