"""`python -m server.local` as a process of its own, with everything that it writes in one folder."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import tinker

REPOSITORY = Path(__file__).resolve().parents[2]
TINY_MODEL = REPOSITORY / "server" / "tiny_model"
READY = "Starting background engine"  # the engine's line in the log once the model is loaded


class LocalEngine:
    """A context in which the server runs; `kill` and `start` do what they say to it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def start(self) -> None:
        starts = self._starts()
        command = [
            sys.executable, "-m", "server.local", "--base-model", str(TINY_MODEL), "--port", str(self.port),
            "--database-url", f"sqlite:///{self.folder}/tinker.db", "--checkpoints-base", f"{self.folder}/checkpoints",
            "--session-timeout-sec", "-1",
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)
        while self._starts() == starts:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """Without warning, and the API alone, as the kernel does when memory runs out."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def client(self) -> tinker.ServiceClient:
        return tinker.ServiceClient(base_url=f"http://127.0.0.1:{self.port}", api_key="tml-local")

    def _starts(self) -> int:
        return self.log.read_text().count(READY) if self.log.exists() else 0
