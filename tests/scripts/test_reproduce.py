"""reproduce.sh with a stand-in for Python, which notes what it is asked to run, and for the server."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import tyro

import evaluate
import sft_data.__main__ as demonstrations
import train_grpo
import train_sft

REPOSITORY = Path(__file__).resolve().parents[2]
# Writes down its arguments, makes what a script would leave behind, and fails once where it is told to.
STAND_IN = """#!{python}
import json, os, pathlib, sys
arguments = sys.argv[1:]
if arguments[0] == "-c":
    os.execv({python!r}, [{python!r}, *arguments])
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if os.environ.get("FAIL") in arguments:
    sys.exit(1)
if "sft_data" in arguments:
    pathlib.Path(arguments[arguments.index("--out") + 1]).touch()
if "--run-dir" in arguments:
    folder = pathlib.Path(arguments[arguments.index("--run-dir") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints.jsonl").touch()
"""


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/v1/healthz" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def run(tmp_path: Path, url: str, *arguments: str, **more: str) -> tuple[int, list[list[str]]]:
    """The exit status, and the commands that this run of the script gave to Python, the check of the server apart."""
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    python.chmod(0o755)
    log.write_text("")
    environment = {**os.environ, "PYTHON": str(python), "OUT": str(tmp_path / "out"), "URL": url, **more}
    done = subprocess.run(
        [REPOSITORY / "reproduce.sh", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    commands = [json.loads(line) for line in log.read_text().splitlines()]
    return done.returncode, [command for command in commands if command[:2] != ["-m", "server"]]


def test_every_command_is_one_that_the_scripts_take(tmp_path: Path, url: str):
    status, commands = run(tmp_path, url, "qwen3.5-4b_8gpus")
    assert status == 0
    runs = {}
    for what, *arguments in commands:
        if what == "-m":
            tyro.cli(demonstrations.Config, args=arguments[1:])
        elif arguments[0] == "report":
            report = tyro.cli(evaluate.ReportConfig, args=arguments[1:])
        else:
            script = {"train_sft.py": train_sft, "train_grpo.py": train_grpo, "evaluate.py": evaluate}[what]
            config = tyro.cli(script.Config, args=arguments)
            assert (config.backend.base_url, config.backend.model) == (url, "Qwen/Qwen3.5-4B")
            runs[config.run_dir.name] = config
    grpo, after_sft = runs["grpo"], runs["sft_grpo"]
    assert (grpo.difficulty, grpo.steps, grpo.max_staleness, grpo.init) == ("medium", 50, 4, None)
    assert (after_sft.depths, after_sft.steps, after_sft.max_staleness) == ((6,), 30, 4)
    assert after_sft.init == str(runs["sft"].run_dir)
    for model in ("sft_round1", "grpo", "sft", "sft_grpo"):
        assert runs[f"{model}-hard"].checkpoint == str(runs[model].run_dir)
    assert runs["base-medium"].checkpoint is None
    assert {name.partition("=")[0] for name in report.evaluations} == {"base", "sft_round1", "grpo", "sft", "sft_grpo"}
    assert len(report.evaluations) == 10


def test_the_small_experiment_leaves_grpo_alone_and_depth_4_to_full(tmp_path: Path, url: str):
    scripts = {"train_sft.py": train_sft, "train_grpo.py": train_grpo, "evaluate.py": evaluate}

    def runs(*stages: str) -> dict[str, object]:
        status, commands = run(tmp_path, url, "smollm2", *stages)
        assert status == 0
        configs = [
            tyro.cli(scripts[what].Config, args=args)
            for what, *args in commands
            if what in scripts and args[0] != "report"
        ]
        return {config.run_dir.name: config for config in configs}

    usual = runs()
    assert list(usual) == ["sft", "sft_grpo", "base-easy", "sft-easy", "sft_grpo-easy"]
    assert (usual["sft_grpo"].depths, usual["sft_grpo"].init) == ((3,), str(usual["sft"].run_dir))
    more = runs("--full")  # the others are done
    assert list(more) == ["grpo", "grpo-easy", *(f"{model}-depth4" for model in ("base", "grpo", "sft", "sft_grpo"))]
    assert {config.depths for name, config in more.items() if name.endswith("-depth4")} == {(4,)}
    assert {path.name for path in (tmp_path / "out" / "done").iterdir()} >= {"sft", "grpo", "evaluate-base-easy"}


def test_after_an_interruption_it_goes_on_with_the_stage_that_was_interrupted(tmp_path: Path, url: str):
    status, before = run(tmp_path, url, "qwen3.5-4b_h200", "round1", "grpo", FAIL="train_grpo.py")
    assert status != 0
    assert [command[0] for command in before] == ["-m", "train_sft.py", "train_grpo.py"]
    status, after = run(tmp_path, url, "qwen3.5-4b_h200", "round1", "grpo")
    assert status == 0
    assert after == before[2:]
    assert after[0][after[0].index("--max-staleness") + 1] == "0"  # one GPU


def test_what_is_not_there_ends_in_one_line(tmp_path: Path, url: str):
    assert run(tmp_path, url, "qwen3.5-4b_h200", "dance") == (2, [])
    assert run(tmp_path, "http://127.0.0.1:9", "qwen3.5-4b_h200", "round2") == (2, [])
    assert run(tmp_path, url)[0] != 0
