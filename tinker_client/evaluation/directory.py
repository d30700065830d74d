"""An evaluation's directory while it is played: what is there already, what ends, and what it all says at the end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tinker_client.errors import UserError
from tinker_client.evaluation.episodes import Evaluation, latest_rows, load_evaluations
from tinker_client.evaluation.measures import measure
from tinker_client.evaluation.scope import scope
from tinker_client.play.records import EpisodeRecord
from tinker_client.run.flags import changed_flags
from tinker_client.run.jsonl import append_rows, write_json, write_rows
from tinker_client.run.run_dir import RunDir, SavedState, init_state, read_config, resolve_state

# What --checkpoint means is compared by the state that it leads to.
_MAY_CHANGE = frozenset({"checkpoint"})


class EvaluationRun:
    """The directory of one evaluation. Episodes are written as they end; `finished` says which need not be played.

    Make it with `EvaluationRun.open`.
    """

    def __init__(self, run: RunDir, rows: Sequence[Mapping[str, Any]]) -> None:
        self._run = run
        self._episodes = run.path / "episodes.jsonl"
        self.checkpoint = run.start
        self.finished = frozenset((row["group"], row["episode"]) for row in rows if row["end"] != "broken")

    @classmethod
    def open(cls, path: Path, config: Any, checkpoint: str | None, *, resume: bool, overwrite: bool) -> Self:
        """Start an evaluation in `path`, or resume the one that it holds.

        config: the script's flags, a dataclass. checkpoint: what to evaluate, as `resolve_state` reads it; a resumed
        evaluation keeps to the state that it meant at first. Raises UserError if the evaluation that is resumed had
        other flags or is of another state, and as `RunDir.create` does.
        """
        before = read_config(path) if resume else None
        if before is not None and "checkpoint" in changed_flags(before["flags"], config):
            played, asked = init_state(before), resolve_state(checkpoint) if checkpoint else None
            if _state_path(played) != _state_path(asked):
                was, now = (state.state_path if state else "the base model" for state in (played, asked))
                raise UserError(f"{path} evaluates {was}, not {now}: give another --run-dir or --checkpoint")
        run = RunDir.create(path, config, resume=resume, overwrite=overwrite, init=checkpoint, may_change=_MAY_CHANGE)
        return cls(run, latest_rows(path) if resume else [])

    def record_server(self, server: Mapping[str, Any]) -> None:
        """Add what is known about the server, and which state it plays, to config.json."""
        self._run.record_server({**server, "state_path": _state_path(self.checkpoint)})

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


def _state_path(state: SavedState | None) -> str | None:
    return state.state_path if state else None
