"""A SkyRL Tinker server on this machine's CPU, for as long as a script runs."""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from tinker_client.connection.alive import Liveness, answers
from tinker_client.connection.engines import REPOSITORY, LocalEngine
from tinker_client.connection.local_state import forget_requests
from tinker_client.errors import ServerError, UserError
from tinker_client.run.locks import claimed

START_SECONDS = 300.0
STOP_SECONDS = 15.0
# The engine's log line between loading the model and its first request. The API answers its health check long before.
ENGINE_READY = b"Starting background engine"


class LocalServer(Liveness):
    """A server on a free port of 127.0.0.1, with all that it writes inside `directory`.

    Entering starts the process, `wait_until_ready` waits until it has loaded the model, leaving stops it. If the script
    dies instead, its watchdog stops it. A directory that an earlier server wrote is taken up again, with its states.
    port: 0 for any that is free. session_timeout_s: how long adapters outlive a script that has died; -1: for ever.
    Raises UserError on entering if the engine is not installed.
    """

    def __init__(
        self,
        directory: Path,
        model_dir: Path,
        engine: LocalEngine,
        *,
        port: int = 0,
        session_timeout_s: int = -1,
    ) -> None:
        self.directory = directory.resolve()
        self.model_dir = model_dir.resolve()
        self.engine = engine
        self.log = self.directory / "server.log"
        self.database = self.directory / "tinker.db"
        self.checkpoints = self.directory / "checkpoints"
        self._port = port
        self._session_timeout_s = session_timeout_s
        self.base_url = ""

    def __enter__(self) -> Self:
        self.engine.command([])  # what is missing is said before anything is written
        self.directory.mkdir(parents=True, exist_ok=True)
        # The server of a script that was killed a moment ago may still be ending; its watchdog ends last.
        with claimed(self.directory, STOP_SECONDS) as claim:
            forget_requests(self.database)
            self._delete_sampler_weights()
            self._log_start = self.log.stat().st_size if self.log.exists() else 0
            port = _free_port(self._port)
            self.base_url = f"http://127.0.0.1:{port}"
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, Path(__file__).with_name("watchdog.py"), *self._command(port)],
                    cwd=REPOSITORY,
                    env=self.engine.environment(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[claim],
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        forget_requests(self.database)
        self._delete_sampler_weights()

    def wait_until_ready(self) -> None:
        """Show a progress line until the server has loaded the model. Raises UserError if it does not come up."""
        deadline = time.monotonic() + START_SECONDS
        console = Console(stderr=True)
        with console.status(f"Starting the local server (log: {self.log})"):
            while not (ENGINE_READY in self._log_of_this_start() and answers(self.base_url, timeout=1.0)):
                try:
                    self.check()
                except ServerError as error:
                    raise UserError(str(error)) from error
                if time.monotonic() > deadline:
                    raise UserError(f"the local server is not ready after {START_SECONDS:.0f} s: see {self.log}")
                time.sleep(0.1)

    def check(self) -> None:
        """Raises ServerError if the server has ended; the SDK would wait for it for ever."""
        if self._process.poll() is not None:
            cause = _last_error(self._log_of_this_start())
            raise ServerError(f"the local server stopped ({cause}): see {self.log}")

    def delete_old_sampler_weights(self, model_id: str) -> None:
        """Delete what earlier calls for a sampling client wrote for this adapter.

        SkyRL's JAX backend writes an archive at every sync, reads it back at most once, and an older one must not be
        used: it would overwrite the weights in training.
        """
        shutil.rmtree(self.checkpoints / model_id / "sampler_weights", ignore_errors=True)

    def _delete_sampler_weights(self) -> None:
        # They cannot be sampled from after a restart: the server has forgotten the adapter they belong to.
        for folder in self.checkpoints.glob("*/sampler_weights"):
            shutil.rmtree(folder, ignore_errors=True)

    def _command(self, port: int) -> list[str | Path]:
        return self.engine.command(
            [
                "--host", "127.0.0.1",
                "--port", str(port),
                "--base-model", self.model_dir,
                "--backend-config", json.dumps(self.engine.settings),
                "--database-url", f"sqlite:///{self.database}",
                "--checkpoints-base", self.checkpoints,
                "--session-timeout-sec", str(self._session_timeout_s),
                "--session-cleanup-interval-sec", "10",
            ]
        )  # fmt: skip

    def _log_of_this_start(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


def _free_port(wanted: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just closed is free
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise UserError(f"port {wanted} of 127.0.0.1 is taken ({error.strerror}): choose another") from error
        return int(probe.getsockname()[1])


def _last_error(log: bytes) -> str:
    lines = [line.strip() for line in re.sub(r"\x1b\[[\d;]*m", "", log.decode(errors="replace")).splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception|Interrupt)\b|error:", line)]
    if errors:
        return errors[-1][:300]
    return f"killed, or out of memory? Its log ends with: {(lines or ['nothing'])[-1][:300]}"
