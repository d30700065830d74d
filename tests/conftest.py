"""One real local server on the tiny model, for every test that needs one."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may reach for the network

from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker

from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect

RANK = 8


MARKERS = {"slow": "takes minutes", "jax": "needs SkyRL's JAX backend"}


def pytest_configure(config: pytest.Config) -> None:
    for marker, why in MARKERS.items():
        config.addinivalue_line("markers", f"{marker}: {why}; run with `./test.sh -m {marker}`")


@pytest.hookimpl(trylast=True)  # once tests/jax has marked its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.markexpr:
        for item in items:
            for marker in MARKERS.keys() & item.keywords:
                item.add_marker(pytest.mark.skip(reason=f"{MARKERS[marker]}: run with `./test.sh -m {marker}`"))


@pytest.fixture(scope="session")
def server_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the session's server."""
    return tmp_path_factory.mktemp("server_run")


@pytest.fixture(scope="session")
def backend(server_run: Path) -> Iterator[Backend]:
    """The session's server, with our own engine."""
    with connect(BackendConfig(), server_run, rank=RANK) as connected:
        yield connected


@pytest.fixture
def adapter(backend: Backend) -> Iterator[tinker.TrainingClient]:
    """A fresh adapter of rank 8 on the session's server, forgotten after the test."""
    client = backend.new_training_client(rank=RANK, seed=0)
    yield client
    backend.release(client)
