"""Jobs as a scheduler starts them: torchrun agents with one rendezvous, each as if on a machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lensview as lv

ROOT = Path(__file__).parents[2]
START_SECONDS = 90.0


class Job:
    """A job over one or several agents of this machine.

    Attributes:
        file: its connection file.
        agents: the agents' processes.
    """

    def __init__(
        self, folder: Path, model: str, *more: str, nodes: int = 1, ranks: int = 1, again: int = 0
    ) -> None:
        self.file = folder / "job.json"
        self._logs = [folder / f"agent{i}.log" for i in range(nodes)]
        port = _free_port()
        command = [
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"),
            *(f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", f"--rdzv-id={port}"),
            *(f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"),
            *(f"--max-restarts={again}", "--monitor-interval=0.2", "-m", "lensview.bridge.worker"),
            *("--path", model, "--connection", str(self.file), *more),
        ]
        paths = [str(ROOT), str(Path(__file__).parent)]
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        # The first holds the rendezvous; without it the others would end too.
        hosts = [[f"--rdzv-conf=is_host={int(i == 0)}"] for i in range(nodes)]
        self.agents = [
            _start([*command[:3], *host, *command[3:]], log, variables)
            for host, log in zip(hosts, self._logs, strict=True)
        ]

    def attach(self, **options: Any) -> lv.AttachedSession:
        """Attach, once the job has written its file."""
        end = time.monotonic() + START_SECONDS
        while not self.file.exists():
            assert time.monotonic() < end and self.running(), self.log()
            time.sleep(0.1)
        return lv.attach(self.file, **{"quiet": True, **options})

    def running(self) -> bool:
        """Whether every agent runs."""
        return all(agent.poll() is None for agent in self.agents)

    def codes(self, within: float) -> Sequence[int]:
        """The agents' exit statuses, once they have ended."""
        end = time.monotonic() + within
        return [agent.wait(max(0.1, end - time.monotonic())) for agent in self.agents]

    def log(self) -> str:
        """What the agents wrote."""
        return "\n".join(log.read_text("utf-8", "replace") for log in self._logs if log.exists())

    def end(self) -> None:
        """End every agent, and with it its ranks."""
        for agent in self.agents:
            if agent.poll() is None:
                agent.send_signal(signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.wait(15)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def _start(command: list[str], log: Path, env: Any) -> subprocess.Popen[bytes]:
    with open(log, "wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=env)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
