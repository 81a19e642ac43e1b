"""A real JupyterLab or Notebook 7 for the browser tests, with nothing of the user's in it.

Owns one server process: its folders, its token, its start and its end.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 90
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
# The worst case for what is saved in a notebook; some hosts have it on.
SAVE_STATE = {"saveState": True}


class Server:
    """One running server; `close` ends it and its kernels.

    Args:
        folder: an empty folder for everything that it reads and writes.
        app: "lab" or "notebook".
    """

    def __init__(self, folder: Path, app: str = "lab") -> None:
        self.app = app
        self.root = folder / "root"
        self.token = secrets.token_hex(16)
        self.port = _free_port()
        self._log = (folder / "server.log").open("wb")
        self.log_path = folder / "server.log"
        self._process = subprocess.Popen(
            self._command(),
            env=self._environment(folder),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The server's address, without a token."""
        return f"http://127.0.0.1:{self.port}"

    def page_url(self, name: str) -> str:
        """Where a notebook of the root folder opens."""
        if self.app == "lab":
            return f"{self.url}/doc/tree/{name}?reset&token={self.token}"
        return f"{self.url}/notebooks/{name}?token={self.token}"

    def api(self, path: str, method: str = "GET") -> Any:
        """One call of the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}/api/{path}",
            method=method,
            headers={"Authorization": f"token {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def end_sessions(self) -> None:
        """Shut down every kernel that notebooks have started."""
        for session in self.api("sessions"):
            self.api(f"sessions/{session['id']}", "DELETE")

    def close(self) -> None:
        """End the server, and with it its kernels."""
        try:
            if self._process.poll() is None:
                self.end_sessions()
        except (OSError, urllib.error.URLError):
            pass  # it is on its way out already
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(20)
        self._log.close()

    def _command(self) -> list[str]:
        title = "LabApp" if self.app == "lab" else "JupyterNotebookApp"
        return [
            sys.executable,
            *("-m", "jupyter", self.app, "--no-browser", "--allow-root"),
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}",
            f"--ServerApp.root_dir={self.root}",
            f"--{title}.expose_app_in_browser=True",
        ]

    def _environment(self, folder: Path) -> dict[str, str]:
        self.root.mkdir(parents=True)
        settings = folder / "settings"
        for plugin, content in (
            ("@jupyterlab/apputils-extension/notification", QUIET),
            ("@jupyter-widgets/jupyterlab-manager/plugin", SAVE_STATE),
        ):
            file = settings / f"{plugin}.jupyterlab-settings"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content))
        own = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        python_path = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            **{name: str(folder / value) for name, value in own.items()},
            "JUPYTERLAB_SETTINGS_DIR": str(settings),
            "PYTHONPATH": os.pathsep.join(p for p in python_path if p),
        }

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.api("status")
                return
            except (OSError, urllib.error.URLError) as error:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(
                        f"jupyter {self.app} did not start:\n{self.log_path.read_text()[-4000:]}"
                    ) from error
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
