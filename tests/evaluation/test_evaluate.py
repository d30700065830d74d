"""evaluate.py without a server: players behind the sampling interface, resuming, budgets and refusals."""

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import evaluate
from textcraft import Episode, load_tasks
from textcraft.facts import ideal_run
from tinker_client.errors import ServerError, UserError
from tinker_client.evaluation import directory
from tinker_client.evaluation.episodes import load_evaluations
from tinker_client.evaluation.measures import measure
from tinker_client.play import players, rollout
from tinker_client.play.chat import Conversation
from tinker_client.play.environment import ENVIRONMENTS
from tinker_client.play.tasks import select_tasks
from tinker_client.run.jsonl import read_rows, write_rows

TEXTCRAFT = ENVIRONMENTS["textcraft"]
INVENTORY = "<tool>view_inventory()</tool>"


def run(path: Path, **flags: object) -> list[dict]:
    """Evaluates the player that `evaluate.oracle` is, and returns the episodes."""
    evaluate.main(evaluate.Config(run_dir=path, player="oracle", **flags))
    return read_rows(path / "episodes.jsonl")


def check_ceilings(path: Path, tasks: int, fit_75: int, **flags: object) -> None:
    rows = run(path, difficulty="hard", **flags)
    assert Counter(row["end"] for row in rows) == {"success": tasks}
    (evaluation,) = load_evaluations([str(path)])
    for budget, successes in {39: 0, 75: fit_75, 145: tasks, 150: tasks}.items():
        of = measure(evaluation, {row["task_id"] for row in rows}, budget, k=1)
        assert of.success.value == of.ceiling == pytest.approx(successes / tasks)
        assert of.failed_crafts == of.broken == 0
    summary = json.loads((path / "summary.json").read_text())
    assert summary["by_budget"]["75"]["success"]["value"] == pytest.approx(fit_75 / tasks)
    assert summary["by_depth"]["9"]["success"]["value"] == 1.0


def test_the_oracle_reaches_the_ceilings_of_some_hard_tasks(tmp_path: Path):
    tasks = select_tasks(TEXTCRAFT, "val", "hard", limit=18)
    fit = len(select_tasks(TEXTCRAFT, "val", "hard", ids={task.id for task in tasks}, fits_budget=75))
    assert 0 < fit < 18
    check_ceilings(tmp_path / "run", 18, fit, limit=18)


@pytest.mark.slow
def test_the_oracle_solves_44_of_136_hard_tasks_at_75_turns_and_all_at_150(tmp_path: Path):
    check_ceilings(tmp_path / "run", 136, 44)


class Skilled:
    """Succeeds with a known probability at each depth, in an ideal run after `pause` turns; otherwise never ends."""

    def __init__(self, skill: dict[int, float], pause: int) -> None:
        self.skill, self.pause = skill, pause
        self.succeeds: dict[int, tuple[Episode, bool]] = {}

    def __call__(self, game: Episode, rng: random.Random) -> str:
        if game.turns == 0:
            self.succeeds[id(game)] = game, rng.random() < self.skill[game.task.depth]
        if game.turns < self.pause or not self.succeeds[id(game)][1]:
            return INVENTORY
        return players.oracle(game, rng)


def test_a_player_of_known_skill_is_reported_within_the_intervals(tmp_path: Path, monkeypatch):
    skill = {2: 0.9, 3: 0.5, 4: 0.05}
    monkeypatch.setattr(evaluate, "oracle", Skilled(skill, pause=5))
    run(tmp_path / "run", depths=(2, 3, 4), limit=60, rollouts=4, max_turns=30, seed=3)
    (evaluation,) = load_evaluations([str(tmp_path / "run")])
    tasks = load_tasks("val", depths=[2, 3, 4])
    ideal_turns = {task.id: ideal_run(task).turns for task in tasks}
    for depth, probability in skill.items():
        of = measure(evaluation, {task.id for task in tasks if task.depth == depth}, 30, k=4)
        assert (of.tasks, of.episodes) == (20, 80)
        assert of.success.low < probability < of.success.high
        assert of.pass_at_k.low < 1 - (1 - probability) ** 4 < of.pass_at_k.high
        for episode in evaluation.episodes:
            if episode.depth == depth and episode.solved:
                assert episode.turns == 5 + ideal_turns[episode.task_id]
    assert measure(evaluation, {task.id for task in tasks}, 7, k=4).success.value == 0.0


class Fails:
    """The oracle behind a server that is gone for the episodes of one task."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def __call__(self, game: Episode, rng: random.Random) -> str:
        if game.task.id == self.task_id and game.turns == 1:
            raise ConnectionError("gone")
        return players.oracle(game, rng)


def test_broken_episodes_are_kept_apart_and_played_again(tmp_path: Path, monkeypatch):
    tasks = load_tasks("val", "easy")[:3]
    flags = {"tasks": tuple(task.id for task in tasks), "rollouts": 2}
    whole = run(tmp_path / "whole", **flags)
    monkeypatch.setattr(evaluate, "oracle", Fails(tasks[1].id))
    with pytest.raises(ServerError, match="2 episodes broke"):
        run(tmp_path / "broken", **flags, retries=0)
    rows = read_rows(tmp_path / "broken" / "episodes.jsonl")
    assert [row["end"] for row in rows] == ["success"] * 2 + ["broken"] * 2 + ["success"] * 2
    assert {row["error"] for row in rows} == {None, "ConnectionError: gone"}
    (evaluation,) = load_evaluations([str(tmp_path / "broken")])
    of = measure(evaluation, {task.id for task in tasks}, 150, k=2)
    assert (of.episodes, of.broken, of.success.value, of.success_of_all) == (4, 2, 1.0, pytest.approx(4 / 6))
    monkeypatch.setattr(evaluate, "oracle", players.oracle)
    assert run(tmp_path / "broken", **flags, resume=True) == whole


@pytest.fixture
def interrupted(monkeypatch) -> Callable[..., None]:
    """Runs an evaluation that dies in the middle of writing its second episode."""

    def start(path: Path, **flags: object) -> None:
        written = []

        def add(self, episode) -> None:
            written.append(episode)
            if len(written) == 2:
                with (path / "episodes.jsonl").open("a") as file:
                    file.write(json.dumps(episode.row())[:100])
                raise KeyboardInterrupt
            original(self, episode)

        with monkeypatch.context() as patch:
            original = directory.EvaluationRun.add
            patch.setattr(directory.EvaluationRun, "add", add)
            with pytest.raises(KeyboardInterrupt):
                run(path, **flags)

    return start


def test_an_interrupted_evaluation_goes_on_to_the_same_end(tmp_path: Path, interrupted, monkeypatch):
    monkeypatch.setattr(evaluate, "oracle", lambda game, rng: rng.choice([INVENTORY, players.oracle(game, rng)]))
    flags = {"difficulty": "easy", "limit": 4, "rollouts": 2, "max_turns": 12, "seed": 5}
    whole = run(tmp_path / "whole", **flags)
    interrupted(tmp_path / "run", **flags)
    first = read_rows(tmp_path / "run" / "episodes.jsonl")
    assert len(first) == 1
    assert first[0] in whole
    assert run(tmp_path / "run", **flags, resume=True) == whole
    monkeypatch.setattr(evaluate, "oracle_seat", None)  # nothing is left, so nobody is asked
    assert run(tmp_path / "run", **flags, resume=True) == whole
    assert (tmp_path / "run" / "summary.json").read_text() == (tmp_path / "whole" / "summary.json").read_text()


def test_an_evaluation_that_changed_is_not_gone_on_with(tmp_path: Path):
    path = tmp_path / "run"
    flags = {"difficulty": "easy", "limit": 2, "max_turns": 20}
    rows = run(path, **flags)
    with pytest.raises(UserError, match=r"was begun with --max-turns 20, not 150: give another --run-dir"):
        run(path, **flags | {"max_turns": 150}, resume=True)
    with pytest.raises(UserError, match=r"--temperature 1.0, not 0.5"):
        run(path, **flags, temperature=0.5, resume=True)
    with pytest.raises(UserError, match="already holds a run"):
        run(path, **flags)
    state = "tinker://model_1/weights/step_000002"
    with pytest.raises(UserError, match=f"evaluates the base model, not {state}: give another"):
        evaluate.main(evaluate.Config(run_dir=path, checkpoint=state, **flags, resume=True))
    assert read_rows(path / "episodes.jsonl") == rows
    assert len(run(path, **flags | {"limit": 3}, overwrite=True)) == 3
    with pytest.raises(UserError, match="--resume and --overwrite"):
        run(path, **flags | {"limit": 3}, resume=True, overwrite=True)


class Forgetful(Conversation):
    def add_observation(self, text: str) -> None:
        super().add_observation("")


def test_the_oracle_answers_only_the_exact_tokens_of_a_conversation(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(rollout, "Conversation", Forgetful)
    with pytest.raises(ServerError, match="every episode, the first one with KeyError"):
        run(tmp_path / "run", difficulty="easy", limit=1)


def test_the_posts_tasks_can_be_chosen(tmp_path: Path):
    rows = run(tmp_path / "hard", difficulty="hard", fits_budget=75, max_turns=75, limit=20)
    assert {row["end"] for row in rows} == {"success"}
    assert Counter(row["depth"] for row in rows) == {7: 16, 8: 4}
    medium = select_tasks(TEXTCRAFT, "val", "medium", limit=60)
    assert Counter(task.depth for task in medium) == {4: 20, 5: 20, 6: 20}
    assert [task.id for task in medium] == [task.id for task in select_tasks(TEXTCRAFT, "val", "medium", limit=60)]
    assert len(select_tasks(TEXTCRAFT, "val", "hard", fits_budget=75)) == 44
    rows = read_rows(tmp_path / "hard" / "episodes.jsonl")
    write_rows(tmp_path / "hard" / "episodes.jsonl", rows[:3])
    assert len(load_evaluations([str(tmp_path / "hard")])[0].episodes) == 3
