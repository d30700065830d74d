"""An evaluation's directory while it is played: what is there already, what ends, and what it all says at the end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from tinker_client.errors import UserError
from tinker_client.report.episodes import Evaluation, latest_rows, load_evaluations
from tinker_client.report.measures import measure
from tinker_client.report.scope import scope
from tinker_client.rollout import EpisodeRecord
from tinker_client.run_dir import RunDir, SavedState, append_rows, read_config, write_json, write_rows

# May be others when an evaluation goes on: how the command is given, and where things are. What --checkpoint means is
# compared by the state that it leads to.
_MAY_CHANGE = frozenset(
    {"run_dir", "resume", "overwrite", "dry_run", "base_url", "loss_reduction", "turns_in_flight", "checkpoint"}
)


class EvaluationRun:
    """The directory of one evaluation. Episodes are written as they end; `finished` says which need not be played.

    Make it with `EvaluationRun.open`.
    """

    def __init__(self, run: RunDir, rows: Sequence[Mapping[str, Any]]) -> None:
        self._run = run
        self._episodes = run.path / "episodes.jsonl"
        self.finished = frozenset((row["group"], row["episode"]) for row in rows if row["end"] != "broken")

    @classmethod
    def open(cls, path: Path, config: Any, checkpoint: SavedState | None, *, resume: bool, overwrite: bool) -> Self:
        """Start an evaluation in `path`, or with `resume` go on with the one that it holds.

        config: the script's flags, a dataclass. Raises UserError if the evaluation that is gone on with had other
        flags or another state to evaluate, and as `RunDir.create` does.
        """
        before = read_config(path) if resume else None
        if before is not None:
            _refuse_changes(path, before, config, checkpoint)
        run = RunDir.create(path, config, resume=resume, overwrite=overwrite, init=checkpoint)
        run.record_server((before or {}).get("server") or {"state_path": _state(checkpoint)})
        return cls(run, latest_rows(path) if resume else [])

    def record_server(self, server: Mapping[str, Any], checkpoint: SavedState | None) -> None:
        """Add what is known about the server, and which state it plays, to config.json."""
        self._run.record_server({**server, "state_path": _state(checkpoint)})

    def add(self, episode: EpisodeRecord) -> None:
        """Write an episode that has ended; one that broke will be played again on the next resume."""
        append_rows(self._episodes, [episode.row()])

    def close(self) -> Evaluation:
        """Put the episodes in order, one row each, write summary.json and return what was played."""
        rows = sorted(latest_rows(self._run.path), key=lambda row: (row["group"], row["episode"]))
        write_rows(self._episodes, rows)
        (evaluation,) = load_evaluations([str(self._run.path)])
        write_json(self._run.path / "summary.json", summary(evaluation))
        return evaluation


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """What summary.json holds: measures of all episodes, by depth and by difficulty at the budget that was played, and
    of all episodes by budget."""
    what = scope([evaluation])
    everything = frozenset(task for tasks in what.depths for task in tasks.tasks)

    def measures(tasks: frozenset[str], budget: int = evaluation.max_turns) -> dict[str, Any]:
        return measure(evaluation, tasks, budget, what.k).to_json()

    return {
        "overall": measures(everything),
        "by_depth": {str(tasks.depths[0]): measures(tasks.tasks) for tasks in what.depths},
        "by_difficulty": {tasks.label: measures(tasks.tasks) for tasks in what.sets},
        "by_budget": {str(budget): measures(everything, budget) for budget in what.budgets},
    }


def _refuse_changes(path: Path, before: Mapping[str, Any], config: Any, checkpoint: SavedState | None) -> None:
    was, now = (_flat(flags) for flags in (before["flags"], json.loads(json.dumps(asdict(config), default=str))))
    for name in now:
        if name not in _MAY_CHANGE and was.get(name) != now[name]:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"{path} was begun with {flag} {was.get(name)}, not {now[name]}: give another --run-dir")
    state = (before.get("server") or {}).get("state_path")
    if state != _state(checkpoint):
        models = [name or "the base model" for name in (state, _state(checkpoint))]
        raise UserError(f"{path} evaluates {models[0]}, not {models[1]}: give another --run-dir or --checkpoint")


def _state(checkpoint: SavedState | None) -> str | None:
    return checkpoint.state_path if checkpoint else None


def _flat(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in flags.items() if name != "backend"}, **flags.get("backend", {})}
