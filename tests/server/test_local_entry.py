"""What of SkyRL server.local replaces is still what it was made for, and starts what it should."""

import inspect
import sys

import pytest
import skyrl.tinker.api
import skyrl.tinker.engine
from skyrl.tinker.config import EngineConfig
from skyrl.tinker.db_models import FutureDB

from server.local import __main__ as entry
from server.local import engine
from server.local.backend import LocalBackend
from tinker_client.errors import UserError


def source(function: object) -> str:
    """Without comments, docstrings and line breaks that mean nothing."""
    return " ".join(inspect.getsource(function).split())


def test_skyrls_engine_still_asks_this_function_for_its_backend():
    replaced, ours = skyrl.tinker.engine.get_backend_classes, engine.get_backend_classes
    assert list(inspect.signature(replaced).parameters) == list(inspect.signature(ours).parameters)
    assert "backend_class, backend_config_class = get_backend_classes(config.backend, use_ray=use_ray)" in source(
        skyrl.tinker.engine.TinkerEngine.__init__
    )


def test_skyrls_loop_is_still_the_one_that_ours_replaces():
    assert source(skyrl.tinker.engine.TinkerEngine.process_pending_requests).endswith(
        "while True: self.process_pending_requests_once() # Poll every 100ms time.sleep(0.1)"
    )
    assert "TinkerEngine(config).run()" in source(skyrl.tinker.engine.main)
    assert "self.process_pending_requests()" in source(skyrl.tinker.engine.TinkerEngine.run)
    assert FutureDB.__tablename__ == "futures"
    assert [column.name for column in FutureDB.__table__.primary_key] == ["request_id"]


def test_skyrls_api_still_starts_its_engine_with_the_command_that_ours_replaces():
    replaced, ours = skyrl.tinker.api._build_uv_run_cmd_engine, entry.engine_command
    assert len(inspect.signature(replaced).parameters) == len(inspect.signature(ours).parameters)
    lifespan = source(skyrl.tinker.api.lifespan)
    assert "cmd = _build_uv_run_cmd_engine(parent_cmd, app.state.engine_config)" in lifespan
    assert "asyncio.create_subprocess_exec(*cmd)" in lifespan


def test_the_engine_hands_over_samples_one_at_a_time():
    constructor = source(skyrl.tinker.engine.TinkerEngine.__init__)
    for method in ("sample_batch_async", "prepare_for_sampling"):
        assert f'hasattr(self.backend, "{method}")' in constructor
        assert hasattr(LocalBackend, method)
    assert "await self._engine.backend.sample_batch_async(prepared)" in source(
        skyrl.tinker.engine._ContinuousSampler._run_one
    )


def test_the_engines_command_carries_every_flag():
    config = EngineConfig(base_model="some/model", backend="local", backend_config={"kept_snapshots": 2})
    command = entry.engine_command([], config)
    assert command[:3] == [sys.executable, "-m", "server.local.engine"]
    assert command[command.index("--base-model") + 1] == "some/model"
    assert command[command.index("--backend-config") + 1] == '{"kept_snapshots": 2}'


def test_another_backend_is_refused():
    with pytest.raises(UserError, match="--backend local"):
        engine.get_backend_classes("jax")
