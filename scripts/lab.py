"""Start JupyterLab on a notebook, say where it is, and open a browser where there is a screen.

    python scripts/lab.py notebooks/01_first_look.ipynb

Where there is no screen the URL, token included, is printed for a browser elsewhere.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST_PORT, PORTS, SECONDS_TO_START = 8888, 100, 90


def has_screen(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a browser started here would be seen by the person who typed the command."""
    if "SSH_CONNECTION" in environment or "SSH_TTY" in environment:
        return False
    if platform in ("darwin", "win32"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def free_port() -> int:
    for port in range(FIRST_PORT, FIRST_PORT + PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise SystemExit(f"demo: no free port from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}")


def start(port: int, token: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser"]
    command += [f"--ServerApp.root_dir={ROOT}", f"--ServerApp.port={port}"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0", "--log-level=WARN"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    # In the environment, where other users of the machine cannot read it.
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "JUPYTER_TOKEN": token})


def wait_until_ready(server: subprocess.Popen[bytes], port: int, token: str) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit("demo: JupyterLab ended at once; the lines above say why")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}", timeout=5):
                return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(0.2)
    server.terminate()
    raise SystemExit(f"demo: JupyterLab did not answer within {SECONDS_TO_START} s")


def announce(port: int, url: str) -> None:
    if has_screen(os.environ) and webbrowser.open(url):
        print(f"demo: opened {url}", flush=True)
    else:
        print(f"demo: no screen here. Open this in a browser:\n\n    {url}\n", flush=True)
        print(
            f"On another machine, first: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}",
            flush=True,
        )
    print("Ctrl-C ends it.", flush=True)


def main(notebook: str) -> int:
    if not (ROOT / notebook).is_file():
        raise SystemExit(f"demo: {notebook} is not in {ROOT}; is the checkout complete?")
    port, token = free_port(), secrets.token_hex(16)
    print("demo: starting JupyterLab", flush=True)
    server = start(port, token)
    # Ctrl-C reaches the server too, which asks and then ends: this waits for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    wait_until_ready(server, port, token)
    url = f"http://127.0.0.1:{port}/lab/tree/{notebook}?token={token}"
    threading.Thread(target=announce, args=(port, url), daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1]))
