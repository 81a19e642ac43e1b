"""`make demo` without a screen: the printed URL works, and ending the command ends the server."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "lab.py"
SCREEN = {"DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION", "SSH_TTY"}


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":10", "SSH_CONNECTION": "a b c d"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_TTY": "/dev/pts/1"}, "darwin", False),
    ],
)
def test_has_screen(environment: dict[str, str], platform: str, expected: bool) -> None:
    assert runpy.run_path(str(SCRIPT))["has_screen"](environment, platform) is expected


def test_prints_a_url_that_works(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in SCREEN}
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        environment[name] = str(tmp_path / name)
    command = [sys.executable, str(SCRIPT), "notebooks/01_first_look.ipynb"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            printed = ""
            while "Ctrl-C" not in printed:
                line = process.stdout.readline()
                assert line, f"ended without a URL: {printed}"
                printed += line
            found = re.search(
                r"^ +(http://127\.0\.0\.1:(\d+)/lab/tree/(\S+)\?token=(\w+))$", printed, re.M
            )
            assert found, printed
            url, port, notebook, token = found.groups()
            assert f"ssh -L {port}:" in printed
            with urllib.request.urlopen(url, timeout=30) as page:
                assert b"JupyterLab" in page.read()
            contents = f"http://127.0.0.1:{port}/api/contents/{notebook}?token={token}"
            with urllib.request.urlopen(contents, timeout=30) as answer:
                assert b'"type": "notebook"' in answer.read()
        finally:
            process.terminate()
            process.wait(30)
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api", timeout=5)


def test_a_notebook_that_is_not_there() -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "notebooks/none.ipynb"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "notebooks/none.ipynb is not in" in run.stderr
