"""What needs SkyRL's JAX backend: `./test.sh -m jax` installs it and runs these."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import RANK
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect

collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.jax)


@pytest.fixture(scope="session")
def server_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of the session's JAX server."""
    return tmp_path_factory.mktemp("jax_server_run")


@pytest.fixture(scope="session")
def backend(server_run: Path) -> Iterator[Backend]:
    """The session's JAX server, sized for LoRA rank 8. It holds one adapter at a time: see `adapter`."""
    with connect(BackendConfig(engine="jax"), server_run, rank=RANK) as connected:
        yield connected
