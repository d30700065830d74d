"""The local server with SkyRL's JAX backend: one place for adapters, one archive of sampling weights, and uv."""

import threading

import pytest
import tinker

from tests.conftest import RANK
from tests.connection.test_local_server import sample
from tinker_client.connection import engines
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.engines import JaxEngine
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import UserError


def test_syncing_leaves_one_archive_and_it_samples(backend: Backend, adapter: tinker.TrainingClient):
    for _ in range(3):
        client = backend.sampling_client(adapter)
        assert len(sample(client)) == 4
    folder = backend.local.checkpoints / adapter.model_id / "sampler_weights"
    assert len(list(folder.glob("*.tar.gz"))) == 1


def test_a_full_server_is_asked_until_it_has_a_place(backend: Backend, tmp_path):
    config = BackendConfig(base_url=backend.server["url"])
    with connect(config, tmp_path) as first, connect(config, tmp_path) as second:
        held = first.new_training_client(rank=RANK, seed=0)
        release = threading.Timer(3.0, first.release, [held])
        release.start()
        assert second.new_training_client(rank=RANK, seed=1).model_id != held.model_id
        release.join()


def test_a_missing_uv_ends_in_one_line(tmp_path, monkeypatch):
    broken = tmp_path / "uv"
    broken.write_text("#!/bin/sh\nexit 127\n")  # what a pyenv shim does
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engines, "REPOSITORY", tmp_path)
    with pytest.raises(UserError, match="needs uv"), LocalServer(tmp_path, TINY_MODEL, JaxEngine(RANK, TINY_MODEL)):
        pass
