"""reproduce.sh and quickstart.sh with a stand-in for Python and the server, which notes what it is asked to run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import tyro

import evaluate
import sft_data.__main__ as demonstrations
import train_grpo
import train_sft
from tinker_client.evaluation.episodes import load_evaluations

REPOSITORY = Path(__file__).resolve().parents[2]
# Writes down its arguments, makes what a script would leave behind, fails or hangs where it is told to, and as a server
# answers its health check.
STAND_IN = """#!{python}
import http.server, json, os, pathlib, sys, time, urllib.request
arguments = sys.argv[1:]
if arguments[0] == "-c":
    os.execv({python!r}, [{python!r}, *arguments])
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if "serve" in arguments and "serve" != os.environ.get("FAIL"):
    class Healthy(http.server.BaseHTTPRequestHandler):
        do_GET = lambda self: (self.send_response(200), self.end_headers())
    port = int(arguments[arguments.index("--port") + 1])
    with http.server.HTTPServer(("127.0.0.1", port), Healthy) as server:
        print("http://127.0.0.1:%d" % port, flush=True)
        server.serve_forever()
if os.environ.get("FAIL") in arguments:
    sys.exit(1)
if "sft_data" in arguments:
    pathlib.Path(arguments[arguments.index("--out") + 1]).touch()
if "--run-dir" in arguments:
    folder = pathlib.Path(arguments[arguments.index("--run-dir") + 1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints.jsonl").touch()
if os.environ.get("HANG") in arguments:
    try:
        pathlib.Path({log!r}).with_name("hangs").touch()
        time.sleep(60)
    except KeyboardInterrupt:  # as the scripts do, once the server has saved the state
        time.sleep(0.3)
        urllib.request.urlopen(arguments[arguments.index("--base-url") + 1])
        sys.exit(130)
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


@dataclass(frozen=True)
class Outcome:
    """status: of the exit. commands: what this run gave to Python, those of servers apart."""

    status: int
    commands: list[list[str]]
    servers: list[list[str]]
    output: str


def start(tmp_path: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    """A script of the repository, with the stand-in for Python, a log of its commands, and `out` for its results."""
    log, python = tmp_path / "log", tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    python.chmod(0o755)
    log.write_text("")
    return subprocess.Popen(
        [REPOSITORY / command[0], *command[1:]],
        env={**os.environ, "PYTHON": str(python), "OUT": str(tmp_path / "out"), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(tmp_path: Path, *command: str, **environment: str) -> Outcome:
    script = start(tmp_path, *command, **environment)
    output, _ = script.communicate(timeout=60)
    commands = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    servers = [command for command in commands if command[:2] in (["-m", "server"], ["-m", "tinker_client"])]
    return Outcome(script.returncode, [command for command in commands if command not in servers], servers, output)


def test_every_command_is_one_that_the_scripts_take(tmp_path: Path, url: str):
    done = run(tmp_path, "reproduce.sh", "qwen3.5-4b_8gpus", URL=url)
    assert done.status == 0
    runs = {}
    for what, *arguments in done.commands:
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
        done = run(tmp_path, "reproduce.sh", "smollm2", *stages, URL=url)
        assert done.status == 0
        configs = [
            tyro.cli(scripts[what].Config, args=args)
            for what, *args in done.commands
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


def test_the_committed_results_of_the_small_experiment_can_be_reported_again(tmp_path: Path):
    out = tmp_path / "out"
    shutil.copytree(REPOSITORY / "results" / "smollm2", out)
    done = run(tmp_path, "reproduce.sh", "smollm2", "report")
    assert done.status == 0
    (report,) = [command[2:] for command in done.commands if command[:2] == ["evaluate.py", "report"]]
    evaluations = load_evaluations(tyro.cli(evaluate.ReportConfig, args=report).evaluations)
    assert sorted(len(evaluation.episodes) for evaluation in evaluations) == [8, 8, 8, 24, 24, 24]


def test_after_an_interruption_it_goes_on_with_the_stage_that_was_interrupted(tmp_path: Path, url: str):
    command = ("reproduce.sh", "qwen3.5-4b_h200", "round1", "grpo")
    before = run(tmp_path, *command, URL=url, FAIL="train_grpo.py")
    assert before.status == 1
    assert [arguments[0] for arguments in before.commands] == ["-m", "train_sft.py", "train_grpo.py"]
    after = run(tmp_path, *command, URL=url)
    assert after.status == 0
    assert after.commands == before.commands[2:]
    (grpo,) = after.commands
    assert grpo[grpo.index("--max-staleness") + 1] == "0"  # one GPU


def test_the_quickstart_trains_and_evaluates_four_models_and_shows_each_command_table_and_time(tmp_path: Path):
    done = run(tmp_path, "quickstart.sh")
    assert done.status == 0
    (server,) = done.servers
    assert server[:5] == ["-m", "tinker_client", "serve", "--model", "tiny"]
    scripts = {"train_sft.py": train_sft, "train_grpo.py": train_grpo, "evaluate.py": evaluate}
    *commands, report = done.commands
    runs = [tyro.cli(scripts[what].Config, args=args) for what, *args in commands if what in scripts]
    assert [config.run_dir.name for config in runs] == [
        *("base-easy", "grpo", "grpo-easy", "sft", "sft-easy", "sft_grpo", "sft_grpo-easy")
    ]
    assert {config.backend.engine for config in runs} == {"torch"}
    for command in commands:
        assert f"+ {tmp_path / 'python'} {' '.join(command)}\n" in done.output
    assert report[:2] == ["evaluate.py", "report"]
    seconds = done.output.partition("Seconds of each step")[2].splitlines()[1:]
    assert [line.split()[1] for line in seconds] == [
        *("evaluate-base-easy", "evaluate-grpo-easy", "evaluate-sft-easy", "evaluate-sft_grpo-easy", "grpo"),
        *("server", "sft", "sft-depth2", "sft-depth3", "sft_grpo", "all"),
    ]
    assert "done before" not in done.output


def test_the_quickstart_goes_on_where_it_stopped_and_once_done_prints_its_results_again(tmp_path: Path):
    first = run(tmp_path, "quickstart.sh", FAIL="train_sft.py")
    assert first.status == 1
    assert first.commands[-1][0] == "train_sft.py"
    assert first.output.splitlines()[-1].startswith("sft stopped")
    second = run(tmp_path, "quickstart.sh")
    assert second.status == 0
    assert second.commands[0][0] == "train_sft.py"
    assert "== grpo: done before" in second.output
    assert "== sft: done before" not in second.output
    third = run(tmp_path, "quickstart.sh")
    assert third.status == 0
    assert third.commands == second.commands[-1:]  # the report
    assert f"for a new run delete {tmp_path / 'out'}, or set OUT to another folder" in third.output
    assert not third.servers  # nothing left to start one for


def test_ctrl_c_ends_the_stage_and_then_the_server(tmp_path: Path):
    script = start(tmp_path, "quickstart.sh", HANG="train_grpo.py")
    while not (tmp_path / "hangs").exists():
        assert script.poll() is None
        time.sleep(0.05)
    os.killpg(script.pid, signal.SIGINT)  # as the terminal does, to all that it started
    script.communicate(timeout=30)
    assert script.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.killpg(script.pid, 0)
    assert run(tmp_path, "quickstart.sh", "grpo").commands[0][0] == "train_grpo.py"


def test_what_is_not_there_ends_in_one_line(tmp_path: Path, url: str):
    def last_line(*command: str, **environment: str) -> str:
        done = run(tmp_path, "reproduce.sh", *command, **environment)
        assert (done.status, done.commands) == (2, [])
        return done.output.splitlines()[-1]

    assert "no stage dance" in last_line("qwen3.5-4b_h200", "dance", URL=url)
    assert "no config dance" in last_line("dance", URL=url)
    assert "no server answers at" in last_line("qwen3.5-4b_h200", "round2", URL="http://127.0.0.1:9")
    assert "server.log" in last_line("tiny", FAIL="serve")
    assert run(tmp_path, "reproduce.sh").status != 0
