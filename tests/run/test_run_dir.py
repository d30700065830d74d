"""Run directories: who may write where, and what survives a kill."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tinker_client.errors import UserError, exit_on_user_error
from tinker_client.run import run_dir
from tinker_client.run.jsonl import append_rows, read_rows, write_json
from tinker_client.run.locks import claimed
from tinker_client.run.run_dir import RunDir, SavedState, read_config, resolve_state

REPOSITORY = Path(__file__).resolve().parents[2]
STATE = "tinker://model_1a2b/weights/step_000007"


@dataclass
class Nested:
    base_url: str | None = None


@dataclass
class Config:
    run_dir: Path = Path("runs/x")
    lr: float = 1e-4
    depths: tuple[int, ...] = (2, 3)
    backend: Nested = field(default_factory=Nested)


def test_config_json_holds_every_flag_and_the_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret-of-mine")
    run = RunDir.create(tmp_path / "run", Config(lr=3e-4))
    run.record_server({"kind": "local", "model": "tiny"})
    text = (run.path / "config.json").read_text()
    config = json.loads(text)
    assert config["flags"] == {"run_dir": "runs/x", "lr": 3e-4, "depths": [2, 3], "backend": {"base_url": None}}
    assert config["server"]["model"] == "tiny"
    (session,) = config["sessions"]
    assert session.keys() == {"started", "git_commit", "git_changed", "command", "versions", "changed_flags"}
    assert session["versions"].keys() == {"python", "tinker", "skyrl", "transformers", "platoon-textcraft"}
    assert session["changed_flags"] == {}
    assert config["init_state"] is None
    assert "secret" not in text


def test_a_directory_with_a_run_is_refused_unless_told(tmp_path):
    path = tmp_path / "run"
    RunDir.create(path, Config()).log_metrics(1, {"loss": 1.0})
    with pytest.raises(UserError, match="--overwrite"):
        RunDir.create(path, Config())
    assert len(read_rows(path / "metrics.jsonl")) == 1


def test_overwriting_deletes_what_the_run_wrote_and_nothing_else(tmp_path):
    path = tmp_path / "run"
    run = RunDir.create(path, Config())
    run.log_metrics(1, {"loss": 1.0})
    run.log_checkpoint(1, STATE)
    run.log_episodes("step_000001", [{"task_id": "a"}])
    (path / "server" / "checkpoints").mkdir(parents=True)
    (path / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "keep").write_text("mine")
    (path / "server" / "link").symlink_to(elsewhere)
    RunDir.create(path, Config(), overwrite=True)
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "notes.txt"]
    assert (elsewhere / "keep").exists()


@pytest.mark.parametrize("flags", [{}, {"overwrite": True}, {"resume": True}])
def test_a_directory_that_is_no_run_is_never_touched(tmp_path, flags):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UserError, match="not a run directory"):
        RunDir.create(tmp_path, Config(), **flags)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "qwen3"}'


def test_a_run_is_not_overwritten_by_the_run_that_starts_from_it(tmp_path):
    run = RunDir.create(tmp_path / "sft", Config())
    run.log_checkpoint(7, STATE)
    with pytest.raises(UserError, match="starts from"):
        RunDir.create(tmp_path / "sft", Config(), overwrite=True, init=str(tmp_path / "sft"))
    assert run.checkpoints() == [{"step": 7, "state_path": STATE}]


def test_steps_increase_also_across_a_resume(tmp_path):
    run = RunDir.create(tmp_path, Config())
    run.log_metrics(3, {"loss": float("nan"), "reward/mean": 1})
    with pytest.raises(ValueError, match="step 3"):
        run.log_metrics(3, {})
    run.log_checkpoint(3, STATE)
    with pytest.raises(ValueError, match="step 2"):
        RunDir.create(tmp_path, Config(), resume=True).log_metrics(2, {})
    assert read_rows(tmp_path / "metrics.jsonl") == [{"step": 3, "loss": None, "reward/mean": 1.0}]


def written(run: RunDir) -> tuple[list[int], list[str]]:
    return [row["step"] for row in run.metrics()], sorted(file.name for file in (run.path / "episodes").iterdir())


def test_a_run_goes_on_after_its_last_saved_state_and_what_came_later_is_gone(tmp_path):
    run = RunDir.create(tmp_path, Config())
    assert run.saved is None
    run.record_server({"model": "tiny"})
    for step in (1, 2, 3):
        run.log_episodes(f"step_{step:06d}", [{"task_id": "a"}])
        run.log_metrics(step, {"loss": 1.0})
        if step == 2:
            run.log_checkpoint(2, STATE, epoch=1)
    run.log_episodes("step_000004", [{"task_id": "a"}])
    with (tmp_path / "checkpoints.jsonl").open("a") as file:
        file.write('{"step": 3, "state_path": "tink')  # killed while it wrote
    again = RunDir.create(tmp_path, Config(), resume=True)
    assert again.saved == {"step": 2, "state_path": STATE, "epoch": 1}
    assert again.start == SavedState(STATE, tmp_path)
    assert written(again) == ([1, 2], ["step_000001.jsonl", "step_000002.jsonl"])
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["server"] == {"model": "tiny"}
    begun, resumed = (session["started"] for session in config["sessions"])
    assert begun <= resumed


def test_a_run_without_a_saved_state_begins_anew(tmp_path):
    run = RunDir.create(tmp_path, Config())
    run.log_episodes("step_000001", [{"task_id": "a"}])
    run.log_metrics(1, {"loss": 1.0})
    again = RunDir.create(tmp_path, Config(), resume=True)
    assert (again.saved, again.start) == (None, None)
    assert written(again) == ([], [])


@pytest.fixture
def commit(monkeypatch) -> Callable[[str], None]:
    """Makes the code be of another commit."""

    def check_out(name: str) -> None:
        monkeypatch.setattr(run_dir, "_git", lambda *arguments: name if arguments[0] == "rev-parse" else "")

    check_out("0a")
    return check_out


def sessions(path: Path) -> list[tuple[str, dict]]:
    """The commit and the changed flags of each start."""
    return [(session["git_commit"], session["changed_flags"]) for session in read_config(path)["sessions"]]


def test_a_run_that_was_resumed_is_told_from_one_that_was_not(tmp_path, commit):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for path in (whole, killed):
        RunDir.create(path, Config())
    RunDir.create(killed, Config(), resume=True)  # the start before has no end, as after SIGKILL
    assert sessions(whole) == [("0a", {})]
    assert sessions(killed) == [("0a", {}), ("0a", {})]


def test_each_start_has_its_commit_its_command_and_the_flags_that_it_changed(tmp_path, commit, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--run-dir", "runs/a b"])
    RunDir.create(tmp_path, Config())
    commit("0b")
    monkeypatch.setattr(sys, "argv", ["train.py", "--resume", "--lr", "0.5"])
    RunDir.create(tmp_path, Config(lr=0.5, backend=Nested("http://h")), resume=True, may_change=("lr",))
    RunDir.create(tmp_path, Config(lr=0.5, backend=Nested("http://h")), resume=True)
    changed = {"lr": [1e-4, 0.5], "base_url": [None, "http://h"]}
    assert sessions(tmp_path) == [("0a", {}), ("0b", changed), ("0b", {})]
    config = read_config(tmp_path)
    assert (config["flags"]["lr"], config["flags"]["backend"]) == (0.5, {"base_url": "http://h"})
    commands = [session["command"] for session in config["sessions"]]
    assert commands == ["train.py --run-dir 'runs/a b'", *["train.py --resume --lr 0.5"] * 2]
    assert all(session["versions"] == config["sessions"][0]["versions"] for session in config["sessions"])


def test_a_start_that_is_refused_leaves_no_session(tmp_path, commit):
    RunDir.create(tmp_path, Config())
    commit("0b")
    for flags in ({"resume": True}, {}):
        with pytest.raises(UserError):
            RunDir.create(tmp_path, Config(lr=0.5), **flags)
    assert sessions(tmp_path) == [("0a", {})]
    RunDir.create(tmp_path, Config(lr=0.5), overwrite=True)
    assert sessions(tmp_path) == [("0b", {})]


def test_a_child_resumed_before_its_first_save_starts_from_what_its_parent_was(tmp_path):
    parent, child = tmp_path / "parent", tmp_path / "child"
    run = RunDir.create(parent, Config())
    run.log_checkpoint(7, STATE)
    begun = RunDir.create(child, Config(), init=str(parent))
    assert begun.start == SavedState(STATE, parent)
    run.log_checkpoint(9, STATE.replace("7", "9"))  # the parent goes on
    resumed = RunDir.create(child, Config(), init=str(parent), resume=True)
    assert resumed.start == SavedState(STATE, parent)
    shutil.rmtree(parent)  # what is recorded needs no parent
    assert RunDir.create(child, Config(), init=str(parent), resume=True).start == SavedState(STATE, parent)
    own = STATE.replace("1a2b", "3c4d").replace("7", "1")
    resumed.log_metrics(1, {})
    resumed.log_checkpoint(1, own)
    assert RunDir.create(child, Config(), init=str(parent), resume=True).start == SavedState(own, child)
    config = read_config(child)
    assert config["init_state"] == {"state_path": STATE, "run_dir": str(parent)}
    assert len(config["sessions"]) == 4


def test_a_run_of_the_first_format_is_read_but_not_gone_on_with(tmp_path):
    write_json(tmp_path / "config.json", {"run_format": 1, "flags": {"lr": 1e-4}, "server": None, "started": "now"})
    assert read_config(tmp_path)["flags"] == {"lr": 1e-4}
    with pytest.raises(UserError, match="was written by an earlier version: report on it, but give another") as caught:
        RunDir.create(tmp_path, Config(), resume=True)
    assert "\n" not in str(caught.value)
    RunDir.create(tmp_path, Config(), overwrite=True)
    assert read_config(tmp_path)["run_format"] == 2


def test_other_flags_or_other_contents_are_not_gone_on_with(tmp_path):
    def resumed(contents: str = "abc", may_change: tuple[str, ...] = (), **flags: object) -> RunDir:
        config = Config(**flags)
        return RunDir.create(tmp_path, config, resume=True, contents={"data": contents}, may_change=may_change)

    resumed()
    with pytest.raises(UserError, match=r"was begun with --lr 0.0001, not 0.5: give another --run-dir"):
        resumed(lr=0.5)
    with pytest.raises(UserError, match=r"--depths \[2, 3\], not \[4\]"):
        resumed(depths=(4,))
    with pytest.raises(UserError, match="--data is not the file"):
        resumed(contents="abd")
    resumed(lr=0.5, may_change=("lr",), backend=Nested(base_url="http://127.0.0.1:1"), run_dir=Path("runs/y"))
    with pytest.raises(UserError, match=r"was begun with --lr 0.5, not 0.0001"):
        resumed()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("checkpoints.jsonl", '{"step": 2, "state_pa\n', "line 1 of .* is not a JSON object"),
        ("checkpoints.jsonl", '{"step": 2}\n', "line 1 of .* is no saved state"),
        ("checkpoints.jsonl", json.dumps({"step": "2", "state_path": STATE}) + "\n", "is no saved state"),
        ("checkpoints.jsonl", '{"step": 2, "state_path": "/etc/passwd"}\n', "is no saved state"),
        ("checkpoints.jsonl", json.dumps({"step": 2, "state_path": STATE}) + "\n", "lacks step 2"),
        ("metrics.jsonl", "[1]\n", "line 1 of .* is not a JSON object"),
    ],
)
def test_a_damaged_record_is_one_line_and_nothing_is_cut(tmp_path, name, content, message):
    RunDir.create(tmp_path, Config()).log_metrics(1, {"loss": 1.0})
    (tmp_path / name).write_text(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UserError, match=message) as caught:
        RunDir.create(tmp_path, Config(), resume=True)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


HOLDER = """
import sys
from pathlib import Path
from tinker_client.run.locks import claim
claim(Path(sys.argv[1]))
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_run_in_use_is_left_alone_until_its_process_is_gone(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    write_json(path / "config.json", {"run_format": run_dir.FORMAT, "flags": {}})  # `create` would claim it
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"claimed\n"
        for flags in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(UserError, match="another process works in"):
                RunDir.create(path, Config(), **flags)
        with pytest.raises(UserError, match="another process"), claimed(path, wait_s=0.2):
            pass
        holder.kill()
        with claimed(path, wait_s=20):
            pass
    RunDir.create(path, Config(), overwrite=True)


def test_a_file_that_cannot_be_written_is_a_user_error(tmp_path):
    run = RunDir.create(tmp_path, Config())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # as a disk that is full
    try:
        with pytest.raises(UserError, match=r"cannot write .*metrics.jsonl \(File too large\)") as caught:
            for step in range(1, 100):
                run.log_metrics(step, {"loss": 1.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(caught.value)
    assert run.metrics() == read_rows(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("torn", [b'{"step": 2, "st', b"\xff" * 10_000, b"x"])
def test_a_torn_last_line_is_left_out_and_repaired_by_the_next_row(tmp_path, torn):
    path = tmp_path / "rows.jsonl"
    append_rows(path, [{"step": 1}])
    with path.open("ab") as file:
        file.write(torn)
    assert read_rows(path) == [{"step": 1}]
    append_rows(path, [{"step": 2, "text": "a\u2028b"}])
    assert read_rows(path) == [{"step": 1}, {"step": 2, "text": "a\u2028b"}]


def test_a_file_that_is_one_torn_line_starts_again(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"{" * 9000)
    assert read_rows(path) == []
    append_rows(path, [{"step": 1}])
    assert read_rows(path) == [{"step": 1}]


def test_a_broken_line_in_the_middle_is_reported_with_its_number(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        read_rows(path)


def test_write_json_leaves_no_draft_and_keeps_the_old_content_if_the_value_is_bad(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"n": 1})
    with pytest.raises(TypeError):
        write_json(path, {"n": object()})
    assert json.loads(path.read_text()) == {"n": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["summary.json"]


def test_a_state_is_the_last_whole_row_of_a_run_or_the_path_itself(tmp_path):
    run = RunDir.create(tmp_path, Config())
    run.log_checkpoint(5, STATE.replace("7", "5"))
    run.log_checkpoint(7, STATE)
    with (tmp_path / "checkpoints.jsonl").open("a") as file:
        file.write('{"step": 9, "state_pa')
    assert resolve_state(str(tmp_path)) == SavedState(STATE, tmp_path)
    assert resolve_state(STATE) == SavedState(STATE, None)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("tinker://model_1/sampler_weights/step_1", "not a training state"),
        ("tinker://model_1/step_1", "not a training state"),
        ("tinker://model_1/weights/../../etc", "not a training state"),
        ("/no/such/directory", "does not exist"),
    ],
)
def test_what_is_no_state_is_refused_in_one_line(source, line):
    with pytest.raises(UserError, match=line) as caught:
        resolve_state(source)
    assert "\n" not in str(caught.value)


def test_a_run_without_a_saved_state_is_refused(tmp_path):
    RunDir.create(tmp_path, Config())
    with pytest.raises(UserError, match="no saved state"):
        resolve_state(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_a_user_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write"):
        RunDir.create(tmp_path / "run", Config())


def test_a_run_of_another_format_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"run_format": 999}')
    with pytest.raises(UserError, match="another version"):
        RunDir.create(tmp_path, Config(), overwrite=True)


def test_a_user_error_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as ended, exit_on_user_error():
        raise UserError("no task left in [train]:\n widen --depths")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: no task left in [train]: widen --depths\n"
