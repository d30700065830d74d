"""What it took to train a model: the tokens with a loss of its run, and of the runs that it started from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tinker_client.run.jsonl import read_rows
from tinker_client.run.run_dir import read_config, state_step


@dataclass(frozen=True)
class RunCost:
    """One run, up to the checkpoint that was used.

    trained: tokens with a loss. sampled: tokens that the policy wrote to be trained on, 0 for supervised runs.
    """

    run_dir: Path
    steps: int
    trained: int
    sampled: int


def training_runs(source: str | None, state: str | None = None) -> list[RunCost] | None:
    """The runs that made a model, the last one first; empty for the base model.

    source: what was evaluated, as `evaluate.py --checkpoint` takes it: a run directory, followed through its --init to
    the run and the state that it started from. None if one of them is not a run directory here, so that the cost is
    not known.
    state: the path of the checkpoint that was evaluated; the run may have gone on since.
    """
    runs = list(_chain(source, state))
    return None if None in runs else [run for run in runs if run is not None]


def _chain(source: str | None, state: str | None) -> Iterator[RunCost | None]:
    seen: set[Path] = set()
    while source is not None:
        run_dir = Path(source).expanduser()
        config = None if source.startswith("tinker://") or run_dir in seen else read_config(run_dir)
        checkpoints = read_rows(run_dir / "checkpoints.jsonl") if config else []
        if config is None or not checkpoints:
            yield None
            return
        seen.add(run_dir)
        step = state_step(state or "")  # its row may be gone: a run keeps the newest ones
        yield _cost(run_dir, checkpoints[-1]["step"] if step is None else step)
        parent = config.get("init_state") or {"run_dir": config["flags"].get("init"), "state_path": None}
        source, state = parent["run_dir"] or parent["state_path"], parent["state_path"]


def _cost(run_dir: Path, last_step: int) -> RunCost:
    rows = [row for row in read_rows(run_dir / "metrics.jsonl") if row["step"] <= last_step]
    trained, sampled = (int(sum(row.get(name) or 0 for row in rows)) for name in ("tokens/trained", "tokens/action"))
    return RunCost(run_dir, len(rows), trained, sampled)
