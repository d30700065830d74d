"""The stand-in service of the benchmarks, on a thread of the tests, so that they can look into it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from benchmarks.stand_in import Config, StandIn
from tinker_client.connection.alive import answers
from tinker_client.connection.local_server import _free_port


@contextmanager
def serving(**times: float) -> Iterator[tuple[StandIn, str]]:
    """A service that takes no time unless told, and its URL."""
    defaults = {"turn_s": 0.0, "forward_backward_s": 0.0, "optim_step_s": 0.0, "save_s": 0.0, "finish_share": 0.3}
    service, port = StandIn(Config(**{**defaults, **times})), _free_port(0)
    server = uvicorn.Server(
        uvicorn.Config(service.app(), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    while not answers(url, timeout=1.0):
        assert thread.is_alive()
        time.sleep(0.02)
    yield service, url
    server.should_exit = True
    thread.join()
