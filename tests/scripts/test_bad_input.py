"""What a user can get wrong: each is one line that says what to do, and exit status 2."""

import errno
import json
import os
import runpy
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import train_grpo
import train_sft
from tinker_client.connection import connect
from tinker_client.connection.local_server import LocalServer
from tinker_client.connection.models import TINY_MODEL
from tinker_client.run import jsonl
from tinker_client.run.jsonl import write_json
from tinker_client.run.run_dir import RunDir
from tinker_client.train.demonstrations import read_demonstrations

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = "tinker://model_1a2b/weights/step_000007"


@pytest.fixture
def refused(monkeypatch, capsys) -> Callable[..., str]:
    """Runs a script in this process, which imports the libraries once for all cases; its one line on stderr."""

    def start(self, port: int) -> list[str]:
        raise AssertionError("a server was to be started")

    monkeypatch.setattr(LocalServer, "_command", start)

    def run_script(script: str, *flags: object) -> str:
        path, *more = script.split()
        monkeypatch.setattr(sys, "argv", [path, *more, *map(str, flags)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(REPOSITORY / path), run_name="__main__")
        assert ended.value.code == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ")
        assert line.count("\n") == 1
        return line

    return run_script


TOML = str(REPOSITORY / "pyproject.toml")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["train_grpo.py", "--depths", 1], "no train task is left"),
        (["train_grpo.py", "--groups", 0], "--groups 0: it is 1 or more"),
        (["train_grpo.py", "--group-size", 1], "--group-size 1"),
        (["train_grpo.py", "--lr", -1], "--lr -1.0: it is above 0"),
        (["train_grpo.py", "--max-turns", 0], "--max-turns 0: it is 1 or more"),
        (["train_grpo.py", "--keep", 0], "--keep 0: it is 1 or more"),
        (["train_grpo.py", "--retries", -1], "--retries -1: it is 0 or more"),
        (["train_grpo.py", "--clip-high", 0.9], "--clip-high 0.9: it is 1 or more"),
        (["train_grpo.py", "--max-staleness", -1], "--max-staleness -1: it is 0 or more"),
        (["train_grpo.py", "--lr", "nan"], "--lr nan: give a finite number"),
        (["train_grpo.py", "--adam-beta1", 1.5], "--adam-beta1 1.5: it is 1 or less"),
        (["train_grpo.py", "--engine", "gpu"], "--engine gpu needs a server"),
        (["train_grpo.py", "--hosted", "--engine", "jax"], "leave it out with --hosted"),
        (["train_grpo.py", "--env", "chess"], "no --env chess: there is textcraft, or module:object"),
        (["train_grpo.py", "--env", "no.such:GAME"], "cannot be imported (No module named 'no')"),
        (["evaluate.py", "--env", "tests.coin_game:GAMES"], "has no attribute 'GAMES'"),
        (["evaluate.py", "--player", "oracle", "--env", "tests.coin_game:GAME"], "leave --env out"),
        (["train_grpo.py", "--max-groups", 64], "--max-groups bounds --dynamic-sampling"),
        (["train_grpo.py", "--dynamic-sampling", "--max-groups", 3], "at least --groups"),
        (["train_grpo.py", "--init", "no/such/run"], "does not exist"),
        (["train_grpo.py", "--init", "tinker://model_1/sampler_weights/x"], "not a training state"),
        (["train_grpo.py", "--resume", "--overwrite"], "exclude each other"),
        (["evaluate.py", "--tasks", "textcraft_synth.val.99999"], "no task 'textcraft_synth.val.99999'"),
        (["evaluate.py", "--model", "no/such/folder"], "no/such/folder"),
        (["evaluate.py", "--limit", 0], "--limit 0: it is 1 or more"),
        (["evaluate.py", "--max-turns", 0], "--max-turns 0: it is 1 or more"),
        (["evaluate.py", "--temperature", -1], "--temperature -1.0: it is 0 or more"),
        (["evaluate.py", "--turns-in-flight", 0], "--turns-in-flight 0: it is 1 or more"),
        (["evaluate.py", "--difficulty", "extreme", "--fits-budget", 75], "no val task is left"),
        (["evaluate.py", "--player", "oracle", "--checkpoint", "runs/sft"], "leave --checkpoint out"),
        (["evaluate.py", "--base-url", "http://127.0.0.1:9"], "no Tinker server answers"),
        (["evaluate.py", "--base-url", "http://me:secret@127.0.0.1:9"], "a key belongs into TINKER_API_KEY"),
        (["train_sft.py", "--data", "no-such-file.jsonl"], "cannot read no-such-file.jsonl"),
        (["train_sft.py", "--data", str(REPOSITORY)], "cannot read"),
        (["train_sft.py", "--data", TOML], "pyproject.toml, line 1: not JSON"),
        (["train_sft.py", "--data", TOML, "--epochs", 0], "--epochs 0: it is 1 or more"),
        (["train_sft.py", "--data", TOML, "--lr", 0], "--lr 0.0: it is above 0"),
        (["tinker_client/__main__.py serve", "--port", 70000], "--port lies between"),
    ],
)
def test_flags_that_make_no_sense(flags: Sequence[object], message: str, refused, tmp_path: Path):
    assert message in refused(*flags, "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run" / "server").exists()


def test_directories_in_use_and_empty_ones(refused, tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    assert "not empty" in refused("evaluate.py", "--run-dir", tmp_path)
    saved = tmp_path / "saved"
    RunDir.create(saved, train_grpo.Config(run_dir=saved)).log_checkpoint(7, STATE)
    assert "already holds a run" in refused("train_grpo.py", "--run-dir", saved)
    again = ["--run-dir", saved, "--checkpoint", saved, "--overwrite"]
    assert "would delete the state" in refused("evaluate.py", *again)
    assert "holds no episodes" in refused("evaluate.py report", tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "no saved state" in refused("evaluate.py", "--checkpoint", empty, "--run-dir", tmp_path / "run")
    assert "no metrics of train_grpo.py" in refused("tinker_client/__main__.py health", empty)


def test_run_directories_that_cannot_be_written(refused, tmp_path: Path, monkeypatch):
    (tmp_path / "file").touch()
    play = ["--player", "oracle", "--difficulty", "easy", "--limit", 1]
    assert "is a file" in refused("evaluate.py", *play, "--run-dir", tmp_path / "file")
    assert "cannot write to /proc/run" in refused("evaluate.py", *play, "--run-dir", "/proc/run")  # even for root

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(jsonl.os, "fsync", full)
    assert "No space left on device" in refused("evaluate.py", *play, "--run-dir", tmp_path / "run")


def test_records_that_do_not_fit_a_resume(refused, tmp_path: Path):
    path = tmp_path / "run"
    resume = ["train_grpo.py", "--run-dir", path, "--resume"]
    run = RunDir.create(path, train_grpo.Config(run_dir=path))
    assert "was begun with --steps" not in refused(*resume, "--steps", 60, "--base-url", "http://127.0.0.1:9")
    assert "was begun with --lr 1e-05, not 0.1" in refused(*resume, "--lr", 0.1)
    (path / "plan.jsonl").write_text('{"step": 1, "group": 0, "task_id": "textcraft_synth.val.0"}\n' * 16)
    assert "leave out: give them as before" in refused(*resume)
    (path / "plan.jsonl").unlink()
    (path / "checkpoints.jsonl").write_text('{"step": 2, "state_pa\n')
    assert "line 1 of" in refused(*resume)
    (path / "checkpoints.jsonl").unlink()
    run.log_checkpoint(7, STATE)
    assert "lacks step 7" in refused(*resume)
    shutil.copytree(REPOSITORY / "results" / "smollm2" / "sft_grpo", tmp_path / "old")  # of the first format
    assert "earlier version: report on it" in refused(*resume[:-1], "--resume", "--run-dir", tmp_path / "old")
    write_json(path / "config.json", {"run_format": 999})
    assert "another version of this project" in refused(*resume)


def test_models_that_cannot_be_played_with(refused, tmp_path: Path):
    play = ["evaluate.py", "--player", "oracle", "--difficulty", "easy", "--limit", 1, "--run-dir", tmp_path / "run"]
    model = tmp_path / "model"
    model.mkdir()
    assert "no tokenizer for" in refused(*play, "--tokenizer", model)
    for file in TINY_MODEL.glob("*token*"):
        shutil.copy(file, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    for template, message in (
        ("{% for m in messages %}{{ m.content }}. {% endfor %}", "is no special token: it cannot be stopped at"),
        ("", "has no chat template"),
    ):
        write_json(model / "tokenizer_config.json", config | {"chat_template": template})
        assert message in refused(*play, "--overwrite", "--tokenizer", model)
    assert "is no model directory" in refused("evaluate.py", "--model", model, "--run-dir", tmp_path / "other")


def test_a_port_in_use_and_an_sdk_that_does_not_fit(refused, tmp_path: Path, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ["--run-dir", tmp_path / "served", "--port", port]
        assert "is taken (Address already in use)" in refused("tinker_client/__main__.py serve", *flags)
    monkeypatch.setattr(connect, "installed", {"tinker": "0.38.0", "skyrl": "0.4.0"}.get)
    line = refused("train_grpo.py", "--run-dir", tmp_path / "run")
    assert "tinker 0.38.0 does not work with SkyRL 0.4.0: run `uv pip install 'tinker>=0.25,<0.26'`" in line


def test_an_unknown_flag_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["evaluate.py", "--run-dir", "x", "--no-such-flag"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(REPOSITORY / "evaluate.py"), run_name="__main__")
    assert ended.value.code == 2


GOOD = {"role": "assistant", "content": "<tool>finish()</tool>"}
OPENING = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{}", 'no "messages"'),
        ({"messages": OPENING}, "roles must be"),
        ({"messages": [*OPENING, GOOD, GOOD]}, "roles must be"),
        ({"messages": [*OPENING, {"role": "assistant"}]}, '"content"'),
        ({"messages": [*OPENING, GOOD | {"weight": 0.5}]}, '"weight" 0.5'),
        ({"messages": [*OPENING, GOOD | {"weight": 0}]}, "no reply is trained on"),
        ({"task_id": "textcraft_synth.val.1", "messages": [*OPENING, GOOD]}, "is a val task"),
    ],
)
def test_a_bad_demonstration_is_named_by_its_line(row, message: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    text = row if isinstance(row, str) else json.dumps(row)
    path.write_text(json.dumps({"messages": [*OPENING, GOOD]}) + "\n" + text + "\n")
    with pytest.raises(train_sft.UserError, match="line 2: ") as caught:
        read_demonstrations(path)
    assert message in str(caught.value)
