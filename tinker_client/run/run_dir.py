"""Run directories: what a run was asked to do, what it measured, and where its states are.

config.json        every flag resolved, what the run starts from, what is known about the server, and its sessions: for
                   each start the time, the git commit, the command, the versions and the flags that it changed
metrics.jsonl      one object a step, `step` strictly increasing
checkpoints.jsonl  one object a saved state: step, state_path
episodes/*.jsonl   every episode
plan.jsonl         what each step trains on: train_grpo.py the task of each group, train_sft.py lines of --data
server/            the local server's database, checkpoints and log
"""

import json
import math
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from textcraft.world import TASK_FILE_SHA256
from tinker_client.errors import UserError
from tinker_client.run.flags import changed_flags, refuse_changes, resolved
from tinker_client.run.jsonl import Row, append_rows, read_rows, write_json, write_rows, writing
from tinker_client.run.locks import claim

FORMAT = 2  # of a run directory; a reader refuses what it does not know
READABLE = (1, FORMAT)  # what can be reported on; 1 has no sessions and no init_state, and cannot be resumed
OWN_NAMES = (
    "metrics.jsonl", "checkpoints.jsonl", "plan.jsonl", "episodes", "episodes.jsonl", "summary.json", "server",
    "config.json",
)  # fmt: skip
TRAINING_PATH = re.compile(r"tinker://(?P<model>[\w.:-]+)/weights/(?P<name>[\w.-]+)")


def state_name(step: int) -> str:
    """What the state after a step is called on the server."""
    return f"step_{step:06d}"


def state_step(state_path: str) -> int | None:
    """The step after which a state was saved, None for a path that no run here has named."""
    found = re.fullmatch(r"tinker://.*/weights/step_(\d+)", state_path)
    return int(found[1]) if found else None


@dataclass(frozen=True)
class SavedState:
    """A training state to start from.

    state_path: `tinker://<model>/weights/<name>`.
    run_dir: the run directory that names it, or None if the path itself was given.
    """

    state_path: str
    run_dir: Path | None


def resolve_state(source: str) -> SavedState:
    """The state that `--init` or `--checkpoint` means: the last one of a run directory, or a `tinker://` training path.

    Raises UserError for a directory without checkpoints, a sampler path and anything else.
    """
    if source.startswith("tinker://"):
        if not TRAINING_PATH.fullmatch(source):
            raise UserError(
                f"{source} is not a training state: give tinker://<model>/weights/<name> or a run directory "
                "(weights saved for a sampler cannot be loaded again)"
            )
        return SavedState(source, None)
    path = Path(source).expanduser()
    if not path.is_dir():
        raise UserError(f"{source} does not exist: give a run directory or a tinker://<model>/weights/<name> path")
    rows = _checkpoints(path)
    if not rows:
        raise UserError(f"{source} has no saved state (no row in checkpoints.jsonl): let that run save one first")
    return SavedState(rows[-1]["state_path"], path)


class RunDir:
    """One run's directory. Make it with `RunDir.create`.

    saved: the row of the last saved state, whose step is the last one that is final; None before the first.
    start: the state that this start of the run goes on from: the last saved one, else what `init` meant when the run
    began; None for a fresh adapter.
    """

    def __init__(self, path: Path, init: SavedState | None) -> None:
        self.path = path
        rows = _checkpoints(path)
        self.saved: Row | None = rows[-1] if rows else None
        self.start = SavedState(self.saved["state_path"], path) if self.saved else init
        steps = [row["step"] for row in self.metrics()]
        self._last_step: int | None = steps[-1] if steps else None

    @classmethod
    def create(
        cls,
        path: Path,
        config: Any,
        *,
        resume: bool = False,
        overwrite: bool = False,
        init: str | None = None,
        may_change: Collection[str] = (),
        contents: Mapping[str, str] | None = None,
    ) -> Self:
        """Make the directory and write config.json with every flag of the dataclass `config`.

        A directory that holds a run is refused unless `resume` (go on in it, from its last saved state: what came after
        that is cut off) or `overwrite` (delete what the run wrote). `init` is what the run starts from, as
        `resolve_state` reads it; overwriting that very run is refused, and a run that is resumed keeps to the state
        that it meant at first. A resumed run is refused other flags than before, but for those that `may_change` names,
        and other `contents`: hashes of files that flags name, by the flag. Raises UserError.
        """
        if resume and overwrite:
            raise UserError("--resume and --overwrite exclude each other: give one of them")
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file: give another run directory")
        before = read_config(path)
        state = init_state(before) if before is not None and resume else None
        if state is None and init is not None:
            state = resolve_state(init)
        # A draft alone is a run that was killed as it began.
        if before is None and path.exists() and any(file.name != "config.json.tmp" for file in path.iterdir()):
            raise UserError(f"{path} is not empty and not a run directory: give another one")
        if before is not None and (resume or overwrite):
            claim(path)
        if before is not None and resume:
            _check_resume(path, before, config, may_change, contents or {})
            _cut_back(path)
        elif before is not None:
            if not overwrite:
                raise UserError(f"{path} already holds a run: resume it with --resume, or replace it with --overwrite")
            if state is not None and state.run_dir is not None and state.run_dir.resolve() == path.resolve():
                raise UserError(f"--overwrite would delete the state that this run starts from in {path}")
            _delete_run(path)
            before = None
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {path} ({error.strerror}): give another run directory") from error
        claim(path)
        started_from = state and {"state_path": state.state_path, "run_dir": state.run_dir and str(state.run_dir)}
        session = _session() | {"changed_flags": changed_flags(before["flags"], config) if before else {}}
        write_json(
            path / "config.json",
            {
                "run_format": FORMAT,
                "flags": resolved(config),
                "contents": dict(contents or {}),
                "benchmark_sha256": TASK_FILE_SHA256,
                "init_state": started_from,
                "server": before["server"] if before else None,
                "sessions": [*(before.get("sessions", []) if before else []), session],
            },
        )
        return cls(path, state)

    def record_server(self, server: Mapping[str, Any]) -> None:
        """Add what is known about the server (`Backend.server`) to config.json."""
        config = json.loads((self.path / "config.json").read_text())
        write_json(self.path / "config.json", config | {"server": dict(server)})

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one row to metrics.jsonl, numbers that are not finite as null.

        `step` must be larger than that of the row before; ValueError otherwise.
        """
        if self._last_step is not None and step <= self._last_step:
            raise ValueError(f"step {step} comes after step {self._last_step}")
        finite = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        append_rows(self.path / "metrics.jsonl", [{"step": step, **finite}])
        self._last_step = step

    def log_plan(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write plan.jsonl anew, for a run whose plan is known as a whole."""
        write_rows(self.path / "plan.jsonl", rows)

    def log_checkpoint(self, step: int, state_path: str, **more: Any) -> None:
        """Append {"step", "state_path", ...} to checkpoints.jsonl, once the server has saved the state."""
        append_rows(self.path / "checkpoints.jsonl", [{"step": step, "state_path": state_path, **more}])

    def log_episodes(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append episodes to `episodes/<name>.jsonl`, for example `step_000012`."""
        with writing(self.path / "episodes"):
            (self.path / "episodes").mkdir(exist_ok=True)
        append_rows(self.path / "episodes" / f"{name}.jsonl", rows)

    def metrics(self) -> list[Row]:
        """The rows of metrics.jsonl."""
        return read_rows(self.path / "metrics.jsonl")

    def checkpoints(self) -> list[Row]:
        """The rows of checkpoints.jsonl, the newest last."""
        return _checkpoints(self.path)

    def replace_checkpoints(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Leave these rows in checkpoints.jsonl."""
        write_rows(self.path / "checkpoints.jsonl", rows)


def read_config(path: Path) -> Row | None:
    """The config.json of a run directory; None if `path` is none. Raises UserError for another version's."""
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict) or "run_format" not in config:
        return None
    if config["run_format"] not in READABLE:
        raise UserError(f"{path} was written by another version of this project: give another run directory")
    return config


def init_state(config: Row) -> SavedState | None:
    """What a run started from, as its config.json has it."""
    state = config.get("init_state")
    return SavedState(state["state_path"], Path(state["run_dir"]) if state["run_dir"] else None) if state else None


def _checkpoints(path: Path) -> list[Row]:
    """The rows of a run's checkpoints.jsonl. Raises UserError if one is no saved state."""
    rows = read_rows(path / "checkpoints.jsonl")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("step"), int) or not TRAINING_PATH.fullmatch(str(row.get("state_path"))):
            raise UserError(f"line {number} of {path / 'checkpoints.jsonl'} is no saved state: repair or delete it")
    return rows


def _check_resume(
    path: Path, before: Row, config: Any, may_change: Collection[str], contents: Mapping[str, str]
) -> None:
    """Raises UserError if the run that `path` holds cannot be resumed with these flags and files."""
    if before["run_format"] != FORMAT:
        raise UserError(f"{path} was written by an earlier version: report on it, but give another --run-dir to train")
    refuse_changes(path, before["flags"], config, may_change)
    for name, digest in contents.items():
        if before.get("contents", {}).get(name) != digest:
            raise UserError(f"--{name} is not the file that {path} was begun with: give another --run-dir")


def _cut_back(path: Path) -> None:
    """Cut off what a run wrote after its last saved state, so that it is played again and never counted twice."""
    rows = _checkpoints(path)
    last = rows[-1]["step"] if rows else 0
    metrics = read_rows(path / "metrics.jsonl")
    kept = [row for row in metrics if row["step"] <= last]
    if rows and (not kept or kept[-1]["step"] != last):
        raise UserError(f"{path / 'metrics.jsonl'} lacks step {last}, which is saved: give another --run-dir")
    if len(kept) < len(metrics):
        write_rows(path / "metrics.jsonl", kept)
    for file in (path / "episodes").glob("step_*.jsonl"):
        if int(file.stem.removeprefix("step_")) > last:
            file.unlink()


def _delete_run(path: Path) -> None:
    # config.json goes last: a kill in between leaves a directory that is still known as a run.
    for name in OWN_NAMES:
        target = path / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _session() -> Row:
    """What there is to know about this start of a script."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git("rev-parse", "HEAD"),
        "git_changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "command": shlex.join(sys.argv),
        "versions": {
            "python": platform.python_version(),
            **{package: installed(package) for package in ("tinker", "skyrl", "transformers", "platoon-textcraft")},
        },
    }


def installed(package: str) -> str | None:
    """The version of an installed package, None if it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
