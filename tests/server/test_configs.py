"""The configurations for GPU servers, held against SkyRL's own classes and parsers. No GPU is needed."""

import argparse
import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from skyrl.tinker.api import _get_parent_uv_run_args
from skyrl.tinker.config import EngineConfig, add_model

import server.__main__ as script
from server.check import problems
from tinker_client.errors import UserError

NAMES = sorted(path.stem for path in script.CONFIGS.glob("*.json"))
PLACEMENT, ENGINE = "trainer.placement", "generator.inference_engine"


def broken(**changes: Any) -> dict[str, Any]:
    """The configuration of one H200, with other keys of the backend (two underscores for a dot)."""
    content = script.read("qwen3.5-4b_h200")[1]
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return content | {"backend_config": content["backend_config"] | overrides}


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_configuration_is_accepted(name: str):
    assert problems(script.read(name)[1]) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"trainer__placement__colocate_al": True},
            r"^trainer.placement.colocate_al: .* trainer.placement.colocate_all",
        ),
        ({"trainer__polisy__record_memory": True}, r"^trainer.polisy.record_memory: .* trainer.policy\?"),
        ({"trainer__placement__colocate_all": "yes"}, r"^trainer.placement.colocate_all: .*boolean"),
        (
            {"trainer__policy__optimizer_config__adam_betas": 0.9},
            r"^trainer.policy.optimizer_config.adam_betas: .*list",
        ),
        ({"trainer__placement": {}}, r"^trainer.placement: is a section"),
        ({"trainer__strategy__megatron": True}, r"^trainer.strategy.megatron: "),
        ({"trainer__logprobs_chunk_size": 0}, "logprobs_chunk_size must be a positive integer"),  # SkyRL's own words
        ({"generator__inference_engine__num_engines": 2}, r"^trainer.placement.colocate_all: .* 1 .* 2 "),
        ({"trainer__policy__megatron_config__tensor_model_parallel_size": 2}, r"do not divide into parts of 2"),
        ({"trainer__policy__megatron_config__lora_config__merge_lora": True}, r"merge_lora: must be false"),
        ({"trainer__policy__language_model_only": False}, r"^generator.inference_engine.language_model_only: "),
        ({"generator__inference_engine__engine_init_kwargs__max_model_len": 4096}, r"max_model_len: .* 65536"),
        ({"trainer__policy__model__lora__max_cpu_loras": 1}, r"max_cpu_loras: must be at least"),
        ({"trainer__placement__colocate_all": False}, r"^gpus: is 1, .* take 2"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(changes: dict[str, Any], line: str):
    found = problems(broken(**changes))
    assert len(found) == 1
    assert "\n" not in found[0]
    assert re.search(line, found[0])


def test_a_file_of_another_form_is_named():
    assert len(problems({"model": "x", "gpus": 1, "context_length": 1})) == 1
    assert problems(broken() | {"backend_config": []}) == ["backend_config: is an object of dotted keys"]


def test_the_check_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    script.main(script.Config("qwen3.5-4b_h200", check=True))
    assert "qwen3.5-4b_h200.json" in capsys.readouterr().out
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(broken(trainer__placement__colocate_al=True)))
    with pytest.raises(UserError, match="colocate_al: PlacementConfig"):
        script.main(script.Config(str(path), check=True))
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        script.read(str(path))
    with pytest.raises(UserError, match=r"one of .*qwen3.5-4b_h200"):
        script.read("nope")
    with pytest.raises(UserError, match="install_skyrl"):
        script.main(script.Config("qwen3.5-4b_h200", skyrl=tmp_path))


def test_it_becomes_the_server_in_skyrls_folder_which_no_other_can_start_in_and_forgets_old_requests(tmp_path: Path):
    skyrl, run_dir = tmp_path / "skyrl", tmp_path / "run"
    (skyrl / "skyrl" / "tinker").mkdir(parents=True)
    run_dir.mkdir()
    with closing(sqlite3.connect(run_dir / "tinker.db")) as database, database:
        database.execute("CREATE TABLE futures (request_data TEXT)")
        database.execute("INSERT INTO futures VALUES ('a prompt')")
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text('#!/bin/sh\n[ "$1" = --version ] || { pwd; echo "$@"; echo "key=$TINKER_API_KEY"; read end; }\n')
    uv.chmod(0o755)
    environment = {**os.environ, "PATH": f"{uv.parent}:{os.environ['PATH']}", "TINKER_API_KEY": "secret"}
    command = [sys.executable, "-m", "server", "qwen3-0.6b_24gb", "--skyrl", skyrl, "--run-dir", run_dir, "--port", "1"]
    options: dict[str, Any] = {"cwd": script.REPOSITORY, "env": environment, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, stdin=subprocess.PIPE, **options) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        flags, folder, arguments, key = (running.stdout.readline().rstrip() for _ in range(4))
        second = subprocess.run(command, stderr=subprocess.STDOUT, timeout=60, check=False, **options)
        running.communicate("end\n", timeout=60)
    assert running.returncode == 0
    assert second.returncode == 2
    assert f"another process works in {run_dir}" in second.stdout.replace("\n", "")
    assert flags.endswith("--base-url http://127.0.0.1:1 --context-length 32768")
    assert (folder, key) == (str(skyrl), "key=")
    assert arguments.startswith("run --frozen --extra tinker --extra megatron -m skyrl.tinker.api --host 127.0.0.1")
    with closing(sqlite3.connect(run_dir / "tinker.db")) as database:
        assert database.execute("SELECT count(*) FROM futures").fetchone() == (0,)


def test_skyrl_takes_the_command_line(tmp_path: Path):
    content = script.read("qwen3.5-4b_8gpus")[1]
    line = script.command(Path("/bin/uv"), script.Config("qwen3.5-4b_8gpus", port=8123), tmp_path, content)
    assert _get_parent_uv_run_args(line) == list(script.UV_RUN[1:])

    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    arguments = vars(parser.parse_args(line[line.index("skyrl.tinker.api") + 1 :]))
    assert arguments["port"] == 8123
    engine = EngineConfig.model_validate({k: v for k, v in arguments.items() if k in EngineConfig.model_fields})
    assert engine.base_model == "Qwen/Qwen3.5-4B"
    assert engine.database_url == f"sqlite:///{tmp_path}/tinker.db"
    assert content["backend_config"].items() < engine.backend_config.items()
    assert problems(content | {"backend_config": engine.backend_config}) == []
