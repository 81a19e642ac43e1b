"""Print the constraints file of the environment that runs this script.

`make pins` writes it to constraints.txt. To move to newer versions: delete the lines that may
move, `rm -rf .venv && make setup test`, then `make pins`.
"""

from __future__ import annotations

import re
from importlib.metadata import distributions

HEADER = """\
# What the tests run with: every package of the environment, at its exact version.
# Written by `make pins`, from the .venv that `make test` makes. To move to newer versions, delete
# the lines that may move, then: rm -rf .venv && make test && make pins
"""
NOT_PINNED = {"lensview", "pip", "setuptools", "wheel"}


def pins() -> list[str]:
    """`name==version` of every installed package, without local versions ("+cpu")."""
    versions = {
        re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(): found.version.split("+")[0]
        for found in distributions()
    }
    return [f"{name}=={versions[name]}" for name in sorted(versions.keys() - NOT_PINNED)]


if __name__ == "__main__":
    print(HEADER + "\n".join(pins()))
