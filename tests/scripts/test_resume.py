"""Runs that are killed, stopped or left by their server, against the stand-in: nothing is lost or done twice."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import train_grpo
import train_sft
from benchmarks.stand_in import StandIn
from sft_data.dataset import every_task
from sft_data.procedure import ROUNDS
from tests.standing_in import serving
from textcraft import load_tasks
from tinker_client.connection import alive
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, check_pair
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import ServerError, UserError
from tinker_client.evaluation.cost import training_runs
from tinker_client.run import jsonl, run_dir, stopping
from tinker_client.run.jsonl import read_rows, write_rows
from tinker_client.run.run_dir import read_config

REPOSITORY = Path(__file__).resolve().parents[2]
STEPS = 3


@pytest.fixture(scope="module")
def serves() -> Iterator[tuple[StandIn, str]]:
    with serving() as service:
        yield service


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.jsonl"
    write_rows(path, every_task(load_tasks("train", "easy", [2])[:6], ROUNDS[2]))
    return path


Train = Callable[..., list[str]]


@pytest.fixture(params=["sft", "grpo", "grpo ahead"])
def train(request, serves, demonstrations) -> Train:
    """Runs a script to its end and returns what its last state was trained on."""
    service, url = serves
    backend = BackendConfig(base_url=url, tokenizer=str(TINY_MODEL))

    def run(path: Path, **flags: object) -> list[str]:
        flags = {"run_dir": path, "backend": backend, "save_every": 2, **flags}
        if request.param == "sft":
            train_sft.main(train_sft.Config(data=demonstrations, batch_size=4, epochs=2, held_out=1, **flags))
        else:
            play = {"depths": (4,), "groups": 1, "group_size": 2, "max_turns": 3, "track": None}
            ahead = 0 if request.param == "grpo" else 2
            train_grpo.main(train_grpo.Config(**{"steps": STEPS + 1, **play, "max_staleness": ahead, **flags}))
        return service.states[read_rows(path / "checkpoints.jsonl")[-1]["state_path"]]

    return run


@pytest.fixture(autouse=True)
def every_episode_counts(monkeypatch) -> None:
    """Advantages for every episode, since the stand-in solves nothing."""
    monkeypatch.setattr(train_grpo, "advantages", lambda groups, kind: [[1.0, -0.5] for _ in groups])


class Killed(BaseException):
    pass


@pytest.fixture
def kill_at_write(monkeypatch) -> Callable[[int | None], list[str]]:
    """Lets the run die in its n-th write to the run directory, which is left half done; returns the files written."""

    writing = jsonl.writing

    def start(number: int | None) -> list[str]:
        written: list[str] = []

        def write(path: Path):
            if number is not None and len(written) > number:  # other threads are dead then too
                raise Killed
            return writing(path)

        def fsync(descriptor: int) -> None:
            written.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            if len(written) - 1 == number:
                size = os.fstat(descriptor).st_size
                os.truncate(descriptor, max(0, size - (0, 1, 40)[number % 3]))
                raise Killed

        monkeypatch.setattr(jsonl.os, "fsync", fsync)
        for module in (jsonl, run_dir):
            monkeypatch.setattr(module, "writing", write)
        return written

    return start


def check_whole(path: Path, steps: int) -> None:
    """Every step is there once, and so is every planned group."""
    assert [row["step"] for row in read_rows(path / "metrics.jsonl")] == list(range(1, steps + 1))
    plan = read_rows(path / "plan.jsonl")
    if "lines" in plan[0]:
        assert [row["step"] for row in plan] == list(range(1, steps + 1))
        return
    played = [row for file in sorted((path / "episodes").iterdir()) for row in read_rows(file)]
    assert [(row["step"], row["group"], row["episode"], row["task_id"]) for row in played] == [
        (row["step"], row["group"], episode, row["task_id"]) for row in plan[:steps] for episode in range(2)
    ]
    assert all(row["advantage"] in (1.0, -0.5) for row in played)


def test_a_run_killed_in_any_of_its_writes_goes_on_to_the_same_end(train: Train, kill_at_write, tmp_path: Path):
    written = kill_at_write(None)
    whole = train(tmp_path / "whole")
    steps = len(whole)
    assert steps == 4
    check_whole(tmp_path / "whole", steps)
    assert {"metrics.jsonl", "checkpoints.jsonl", "config.json.tmp"} <= set(written)
    for number in range(len(written)):
        path = tmp_path / str(number)
        files = kill_at_write(number)
        with pytest.raises(Killed):
            train(path)
        kill_at_write(None)
        assert train(path, resume=True) == whole, files
        check_whole(path, steps)


def test_ctrl_c_finishes_the_step_saves_and_goes_on(train: Train, tmp_path: Path, monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run as a shell's background job
    whole = train(tmp_path / "whole")
    for script in (train_sft, train_grpo):
        monkeypatch.setattr(script, "summary_line", interrupting(script.summary_line, at_step=1))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run")
    assert [row["step"] for row in read_rows(tmp_path / "run" / "checkpoints.jsonl")] == [1]
    assert "Ctrl-C again stops at once" in capfd.readouterr().err
    assert train(tmp_path / "run", resume=True) == whole
    check_whole(tmp_path / "run", len(whole))
    assert signal.getsignal(signal.SIGINT) is before
    train(tmp_path / "run", resume=True)
    assert "already" in capfd.readouterr().out


def interrupting(summary_line: Callable[..., str], at_step: int) -> Callable[..., str]:
    def interrupt(step: int, steps: int, metrics: dict[str, float]) -> str:
        if step == at_step:
            os.kill(os.getpid(), signal.SIGINT)
        return summary_line(step, steps, metrics)

    return interrupt


def test_a_server_that_forgot_the_model_ends_the_run_and_it_goes_on(train: Train, serves, tmp_path: Path, monkeypatch):
    service, _ = serves
    whole = train(tmp_path / "whole")
    with monkeypatch.context() as patch:
        save_state = Backend.save_state

        def save_and_restart(self, trainer, name: str) -> str:
            path = save_state(self, trainer, name)
            service.adapters.clear()
            return path

        patch.setattr(Backend, "save_state", save_and_restart)
        with pytest.raises(ServerError, match="the gradients failed with NotFoundError") as caught:
            train(tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert train(tmp_path / "run", resume=True) == whole
    check_whole(tmp_path / "run", len(whole))


def test_old_states_are_deleted_and_what_the_server_keeps_is_said(train: Train, serves, tmp_path, monkeypatch, caplog):
    service, _ = serves
    before = set(service.states)
    train(tmp_path / "run", save_every=1, keep=2)
    rows = read_rows(tmp_path / "run" / "checkpoints.jsonl")
    assert [row["step"] for row in rows] == [3, 4]
    assert set(service.states) - before == {row["state_path"] for row in rows}

    def refuse(self, state_path: str) -> None:
        raise ServerError("not allowed")

    monkeypatch.setattr(Backend, "delete_state", refuse)
    train(tmp_path / "other", save_every=1, keep=1)
    assert [row["step"] for row in read_rows(tmp_path / "other" / "checkpoints.jsonl")] == [1, 2, 3, 4]
    assert "weights/step_000001 (not allowed): delete it there" in caplog.text


def test_a_state_that_is_gone_is_a_user_error(train: Train, serves, tmp_path: Path):
    service, _ = serves
    train(tmp_path / "run")
    (checkpoints,) = [read_rows(tmp_path / "run" / "checkpoints.jsonl")]
    write_rows(tmp_path / "run" / "checkpoints.jsonl", checkpoints[:1])
    service.states.pop(checkpoints[0]["state_path"])
    with pytest.raises(UserError, match=r"the server has no state tinker://model_\d+/weights/step_000002"):
        train(tmp_path / "run", resume=True)


def grpo(serves: tuple[StandIn, str], path: Path, **flags: object) -> None:
    """A GRPO run of one group of two episodes a step."""
    backend = BackendConfig(base_url=serves[1], tokenizer=str(TINY_MODEL))
    play = {"depths": (4,), "groups": 1, "group_size": 2, "max_turns": 3, "max_staleness": 1}
    train_grpo.main(train_grpo.Config(run_dir=path, backend=backend, **{**play, **flags}))


def test_more_steps_go_on_and_other_flags_do_not(serves, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(run_dir, "_git", lambda *arguments: "0a")
    grpo(serves, tmp_path, steps=1)
    monkeypatch.setattr(run_dir, "_git", lambda *arguments: "0b")
    grpo(serves, tmp_path, steps=3, resume=True, save_every=1)
    check_whole(tmp_path, 3)
    begun, resumed = read_config(tmp_path)["sessions"]
    assert (begun["git_commit"], begun["changed_flags"]) == ("0a", {})
    assert resumed["git_commit"] == "0b"
    assert {"steps": [1, 3], "save_every": [10, 1]}.items() <= resumed["changed_flags"].items()
    with pytest.raises(UserError, match=r"was begun with --group-size 2, not 4"):
        grpo(serves, tmp_path, steps=4, resume=True, group_size=4)


def test_a_child_killed_before_its_first_save_goes_on_from_what_its_parent_was_then(
    serves, tmp_path: Path, monkeypatch
):
    service, _ = serves
    parent, child = tmp_path / "parent", {"path": tmp_path / "child", "init": str(tmp_path / "parent"), "steps": 2}
    grpo(serves, parent, steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(train_grpo, "commit", killed)
        with pytest.raises(Killed):
            grpo(serves, **child)
    grpo(serves, parent, steps=3, resume=True)
    grpo(serves, **child, resume=True)
    first = read_config(child["path"])["init_state"]["state_path"]
    assert first.endswith("/weights/step_000001")
    trained_on = service.states[read_rows(child["path"] / "checkpoints.jsonl")[-1]["state_path"]]
    assert trained_on[:-2] == service.states[first]
    assert len(trained_on) == 3
    made_by = [(cost.run_dir, cost.steps) for cost in training_runs(str(child["path"]))]
    assert made_by == [(child["path"], 2), (parent, 1)]  # and not the three steps that the parent has by now


def killed(*arguments: object, **options: object) -> None:
    raise Killed


def test_demonstrations_that_changed_are_not_gone_on_with(serves, demonstrations: Path, tmp_path: Path):
    data = tmp_path / "data.jsonl"
    rows = read_rows(demonstrations)
    write_rows(data, rows)
    backend = BackendConfig(base_url=serves[1], tokenizer=str(TINY_MODEL))
    train_sft.main(train_sft.Config(data=data, run_dir=tmp_path / "run", backend=backend, epochs=1))
    moved = data.rename(tmp_path / "moved.jsonl")
    config = train_sft.Config(data=moved, run_dir=tmp_path / "run", backend=backend, epochs=1, resume=True)
    train_sft.main(config)
    write_rows(moved, rows[1:])
    with pytest.raises(UserError, match="--data is not the file"):
        train_sft.main(config)


def test_a_silent_server_is_noticed(monkeypatch):
    monkeypatch.setattr(alive, "PULSE_EVERY_S", 0.01)
    monkeypatch.setattr(alive, "SILENCE_S", 0.3)
    with alive.Pulse("http://127.0.0.1:9") as silent, pytest.raises(ServerError, match=r"127.0.0.1:9 has not answered"):
        silent.check()
        while True:
            silent.check()
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("tinker", "skyrl", "works"),
    [
        ("0.25.0", "0.4.0", True),
        ("0.25.7", "0.4.1", True),
        ("0.38.0", "0.4.0", False),
        ("0.24.3", "0.4", False),
        ("0.38.0", "0.5.0", True),
    ],
)
def test_pairs_of_versions_that_do_not_work_say_what_to_install(tinker: str, skyrl: str, works: bool):
    if works:
        check_pair(tinker, skyrl)
    else:
        with pytest.raises(UserError, match=r"uv pip install 'tinker>=0.25,<0.26'"):
            check_pair(tinker, skyrl)


# As a script in the middle of a step; its step ends when a line comes in.
SCRIPT = """
import sys
from tinker_client.errors import ServerError, exit_on_user_error
from tinker_client.run.stopping import finishing_steps, resumable

with exit_on_user_error(), resumable():
    try:
        with finishing_steps() as asked_to_stop:
            print("ready", flush=True)
            if sys.stdin.readline() == "break\\n":
                raise ServerError("the server [bold]stopped")
            print("asked" if asked_to_stop() else "not asked", flush=True)
            if asked_to_stop():
                raise KeyboardInterrupt
    finally:
        print("cleaned up", flush=True)
"""


@pytest.fixture
def script() -> Iterator[subprocess.Popen[str]]:
    # Whoever runs the tests in the background of a shell hands down an ignored SIGINT, as to a background job.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    command = [sys.executable, "-c", SCRIPT, "--run-dir", "runs/a b", "--overwrite"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPOSITORY, **pipes) as process:
        signal.signal(signal.SIGINT, before)
        assert process.stdout.readline() == "ready\n"
        yield process


COMMAND = "-c --run-dir 'runs/a b' --resume\n"


def test_one_interrupt_lets_the_step_end(script):
    script.send_signal(signal.SIGINT)
    assert "finishing this step" in script.stderr.readline()
    stdout, stderr = script.communicate("go on\n", timeout=60)
    assert (stdout, script.returncode) == ("asked\ncleaned up\n", stopping.EXIT_INTERRUPTED)
    assert stderr.startswith("stopped. Resume with: ")
    assert stderr.endswith(COMMAND)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_and_a_termination_stop_at_once_and_clean_up(script, number):
    if number == signal.SIGINT:
        script.send_signal(signal.SIGINT)
        script.stderr.readline()
    script.send_signal(number)
    stdout, stderr = script.communicate(timeout=60)
    assert (stdout, script.returncode) == ("cleaned up\n", 128 + number)
    assert stderr.endswith(COMMAND)


def test_a_server_error_is_one_line_with_the_command_and_status_3(script):
    stdout, stderr = script.communicate("break\n", timeout=60)
    assert (stdout, script.returncode) == ("cleaned up\n", 3)
    assert stderr.startswith("error: the server [bold]stopped. Resume with: ")
    assert stderr.endswith(COMMAND)
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "number"),
    [("evaluate.py", signal.SIGINT), ("evaluate.py", signal.SIGTERM), ("train_grpo.py", signal.SIGTERM)],
)
def test_scripts_in_the_middle_of_sampling_stop_at_once_and_say_how_to_go_on(name: str, number: int, tmp_path: Path):
    with serving(turn_s=1000.0) as (service, url):
        flags = ["--run-dir", str(tmp_path), "--base-url", url, "--tokenizer", str(TINY_MODEL)]
        command = [sys.executable, name, *flags]
        with subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
            while service.slots._value == service.config.slots:  # no turn is in flight yet
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert stderr.startswith("stopped. Resume with: ")
    assert stderr.endswith(f" {name} {' '.join(flags)} --resume\n")
    assert stderr.count("\n") == 1
