"""The local server: it serves, keeps to itself, and ends with its script, however that ends."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tinker

from tests.conftest import RANK
from tinker_client.connection import watchdog
from tinker_client.connection.alive import answers
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.engines import REPOSITORY, TorchEngine
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.local_state import forget_requests, import_state
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import ServerError, UserError
from tinker_client.run.run_dir import SavedState

TOKENS = list(range(20, 60))


def logprobs(trainer: tinker.TrainingClient) -> list[float]:
    output = trainer.forward([datum()], "cross_entropy").result(300)
    return list(output.loss_fn_outputs[0]["logprobs"].data)


def datum() -> tinker.Datum:
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
    )


def train(trainer: tinker.TrainingClient) -> None:
    step = trainer.forward_backward([datum()], "cross_entropy")
    optimizer = trainer.optim_step(tinker.AdamParams(learning_rate=1e-2))
    step.result(300)
    optimizer.result(300)


def sample(client: tinker.SamplingClient) -> list[int]:
    params = tinker.SamplingParams(max_tokens=4, seed=0)
    reply = client.sample(tinker.ModelInput.from_ints(TOKENS), num_samples=1, sampling_params=params).result(300)
    return list(reply.sequences[0].tokens)


def test_it_listens_on_this_machine_only(backend: Backend):
    assert backend.local is not None
    listening = {
        connection.laddr.ip
        for process in psutil.Process(backend.local._process.pid).children(recursive=True)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_all_that_it_writes_lies_in_the_run_directory(backend: Backend, server_run: Path):
    assert {path.name for path in server_run.iterdir()} == {"server"}
    assert {"tinker.db", "server.log"} <= {path.name for path in (server_run / "server").iterdir()}


def test_a_state_goes_to_a_new_server_with_its_weights_and_adam_state(backend: Backend, adapter, server_run, tmp_path):
    before = logprobs(adapter)
    train(adapter)
    trained = logprobs(adapter)
    assert trained != pytest.approx(before, abs=1e-3)
    state = backend.save_state(adapter, "step_000001")
    train(adapter)
    trained_on = logprobs(adapter)

    with connect(BackendConfig(), tmp_path, init=SavedState(state, server_run)) as other:
        resumed = other.training_client_from(other.init_state_path, with_optimizer=True)
        assert logprobs(resumed) == pytest.approx(trained, abs=1e-4)
        train(resumed)
        assert logprobs(resumed) == pytest.approx(trained_on, abs=1e-3)
        copied = [path for path in (tmp_path / "server" / "checkpoints").rglob("*") if path.is_file()]
        assert copied
        assert all("step_000001" in str(path) for path in copied)
    # The copy stays when the run that it came from has deleted the state.
    assert import_state(state, tmp_path / "gone", tmp_path / "server") == RANK


def test_a_running_server_is_used_by_its_url_with_its_only_model(backend: Backend, tmp_path):
    with connect(BackendConfig(base_url=backend.server["url"] + "/"), tmp_path) as remote:
        assert remote.model == str(TINY_MODEL)
        assert remote.kind == "skyrl-gpu"
        assert remote.context_length == backend.context_length  # SkyRL does not tell it, but the folder is here
        with pytest.raises(UserError, match="no state tinker://model_0/weights/x"):
            remote.training_client_from("tinker://model_0/weights/x", with_optimizer=False)


def test_adapters_on_a_running_server_are_released_however_a_script_ends(backend: Backend, tmp_path):
    config = BackendConfig(base_url=backend.server["url"])
    with pytest.raises(ZeroDivisionError), connect(config, tmp_path) as remote:
        remote.new_training_client(rank=RANK, seed=0)
        raise ZeroDivisionError
    with connect(config, tmp_path) as remote:
        assert len(sample(remote.sampling_client(remote.new_training_client(rank=RANK, seed=0)))) == 4


def test_what_a_user_gets_wrong_about_a_running_server(backend: Backend, tmp_path, monkeypatch):
    def refused(**flags: str | None) -> str:
        with pytest.raises(UserError) as caught, connect(BackendConfig(**flags), tmp_path):
            pass
        assert "\n" not in str(caught.value)
        return str(caught.value)

    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        assert "no Tinker server answers" in refused(base_url=f"http://127.0.0.1:{nobody.getsockname()[1]}")
    assert "must look like" in refused(base_url="localhost:8000")
    assert "must look like" in refused(base_url="http://me:secret@127.0.0.1:8000")
    url = backend.server["url"]
    assert "does not know --model" in refused(base_url=url, model="Qwen/Qwen3.5-4B")
    assert "--tokenizer" in refused(base_url=url, tokenizer="nobody/nothing")
    two = tinker.types.GetServerCapabilitiesResponse.model_validate(
        {"supported_models": [{"model_name": "a"}, {"model_name": "b"}]}
    )
    monkeypatch.setattr(tinker.ServiceClient, "get_server_capabilities", lambda _: two)
    assert "choose one with --model: a, b" in refused(base_url=url)


def test_a_state_of_another_server_is_refused_before_this_one_starts(tmp_path):
    for init in (SavedState("tinker://model_0/weights/x", None), SavedState("tinker://model_0/weights/x", tmp_path)):
        with pytest.raises(UserError, match="--base-url"), connect(BackendConfig(), tmp_path / "run", init=init):
            pass


def test_a_server_that_cannot_load_its_model_ends_in_one_line_with_the_cause(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "no-such-architecture"}')
    (model / "model.safetensors").touch()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((TINY_MODEL / name).read_bytes())
    server = LocalServer(tmp_path / "server", model, TorchEngine())
    with pytest.raises(UserError, match=r"no-such-architecture.*server\.log") as caught, server:
        server.wait_until_ready()
    assert "\n" not in str(caught.value)


def test_requests_of_an_earlier_server_are_forgotten(tmp_path):
    database = tmp_path / "tinker.db"
    forget_requests(database)
    assert not database.exists()
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE futures (request_id INTEGER, status TEXT)")
        connection.execute("INSERT INTO futures VALUES (1, 'PENDING')")
    forget_requests(database)
    assert sqlite3.connect(database).execute("SELECT count(*) FROM futures").fetchone() == (0,)


SCRIPT = """
import sys
from pathlib import Path
from tinker_client.connection.engines import TorchEngine
from tinker_client.connection.local_server import LocalServer
run_dir, model = map(Path, sys.argv[1:])
with LocalServer(run_dir, model, TorchEngine()) as server:
    server.wait_until_ready()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_no_process_survives_a_killed_script(tmp_path):
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, tmp_path, TINY_MODEL],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY,
    )  # fmt: skip
    assert script.stdout.readline() == b"ready\n"
    family = psutil.Process(script.pid).children(recursive=True)
    assert any(is_engine(process) for process in family)
    script.kill()
    script.wait()
    assert_gone(family)


@pytest.mark.parametrize("end", ["SIGTERM", "its parent's end"])
def test_serve_prints_its_url_and_leaves_nothing_behind(tmp_path, end):
    command = [sys.executable, "-m", "tinker_client", "serve", "--run-dir", tmp_path, "--rank", RANK]
    if end != "SIGTERM":
        command = ["sh", "-c", '"$@" & wait', "sh", *command, "--stop-with-parent"]
    parent = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, cwd=REPOSITORY)
    url = parent.stdout.readline().decode().strip()
    assert answers(url, timeout=5)
    family = psutil.Process(parent.pid).children(recursive=True)
    assert any(is_engine(process) for process in family)
    if end == "SIGTERM":
        parent.terminate()
        assert parent.wait(30) == 0
    else:
        parent.kill()
        parent.wait()
    assert_gone(family)


def test_a_port_that_is_taken_ends_in_one_line(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = LocalServer(tmp_path, TINY_MODEL, TorchEngine(), port=port)
        with pytest.raises(UserError, match=f"port {port} .* is taken"), server:
            pass


@pytest.mark.slow
def test_a_dead_engine_is_noticed(tmp_path):
    with LocalServer(tmp_path, TINY_MODEL, TorchEngine()) as server:
        server.wait_until_ready()
        family = psutil.Process(server._process.pid).children(recursive=True)
        engine = max(family, key=lambda process: process.memory_info().rss if is_engine(process) else 0)
        engine.kill()
        deadline = time.monotonic() + 60
        with pytest.raises(ServerError, match=r"see .*server\.log"):
            while time.monotonic() < deadline:
                server.check()
                time.sleep(0.1)
    assert_gone(family)


def is_engine(process: psutil.Process) -> bool:
    return "server.local.engine" in process.cmdline()


# A tree as `uv run` makes it, of which the youngest ignores every signal that can be ignored.
STUBBORN = "trap '' TERM INT HUP; sleep 1000 & exec sleep 1000"
# Whoever runs the tests in the background of a shell hands down an ignored SIGINT, which a script in front never has.
HOLDER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
watchdog = subprocess.Popen(
    [sys.executable, sys.argv[1], "sh", "-c", sys.argv[2]], stdin=subprocess.PIPE, start_new_session=True
)
print(watchdog.pid, flush=True)
if sys.argv[3] == "exception":
    time.sleep(1)
    raise SystemExit("an error")
time.sleep(1000)
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT", "exception"])
def test_the_watchdog_ends_even_a_stubborn_tree(end):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, watchdog.__file__, STUBBORN, end],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    guard = psutil.Process(int(holder.stdout.readline()))
    deadline = time.monotonic() + 20
    while len(family := [guard, *guard.children(recursive=True)]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if end != "exception":
        os.killpg(holder.pid, signal.Signals[end])
    holder.wait(30)
    assert_gone(family)


def assert_gone(family: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(family, timeout=20)
    zombies = [process for process in alive if process.status() == psutil.STATUS_ZOMBIE]
    assert sorted(alive, key=str) == sorted(zombies, key=str)
