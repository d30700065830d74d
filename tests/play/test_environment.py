"""Games of one's own: how they are found, and that the scripts train and evaluate on them as on TextCraft."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import evaluate
import train_grpo
from tests.coin_game import CoinEpisode
from tests.standing_in import serving
from textcraft import load_tasks
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import UserError
from tinker_client.play.environment import ENVIRONMENTS, find_environment
from tinker_client.play.tasks import select_tasks
from tinker_client.run.jsonl import read_rows


@pytest.fixture(scope="module")
def backend() -> Iterator[BackendConfig]:
    with serving(finish_share=0.5) as (_, url):
        yield BackendConfig(base_url=url, tokenizer=str(TINY_MODEL))


def test_a_game_is_found_by_its_name_or_where_it_lies():
    assert find_environment("textcraft") is ENVIRONMENTS["textcraft"]
    coin, task = find_environment("tests.coin_game:GAME"), load_tasks("train", "easy")[0]
    assert type(coin.episode(task, max_turns=2)).__name__ == CoinEpisode.__name__
    assert coin.load_tasks("train", "easy")[0] == task


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chess", "no --env chess: there is textcraft, or module:object"),
        ("json:dumps", "no game: it lacks load_tasks, episode, ideal_turns"),
        ("no.such.module:GAME", "No module named 'no'"),
        ("tests.coin_game:NONE", "has no attribute 'NONE'"),
        (":GAME", "Empty module name"),
        ("tests.coin_game:", "cannot be imported"),
    ],
)
def test_what_is_no_game_is_refused_in_one_line(name: str, message: str):
    with pytest.raises(UserError) as caught:
        find_environment(name)
    assert message in str(caught.value)
    assert f"--env {name}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tasks_of_another_game_are_chosen_by_the_same_flags():
    game = find_environment("tests.finish_game:GAME")
    assert [task.depth for task in select_tasks(game, "train", "medium", limit=3)] == [4, 5, 6]
    assert [task.id for task in select_tasks(game, "val", ids=["finish.val.5"])] == ["finish.val.5"]
    assert {task.depth for task in select_tasks(game, "val", depths=[5])} == {5}
    with pytest.raises(UserError, match=r"ids look like 'finish\.val\.0'"):
        select_tasks(game, "val", ids=["textcraft_synth.val.1"])
    with pytest.raises(UserError, match="no val task is left"):
        select_tasks(game, "val", "hard")


def test_grpo_trains_on_another_game(backend: BackendConfig, tmp_path: Path, capsys):
    play = {"env": "tests.finish_game:GAME", "groups": 3, "group_size": 4, "max_turns": 2, "max_staleness": 1}
    config = train_grpo.Config(run_dir=tmp_path / "run", backend=backend, steps=3, **play)
    train_grpo.main(config)
    rows = read_rows(config.run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert sum(row["group/mixed"] for row in rows) > 0
    assert any(row.get("tokens/trained", 0) > 0 for row in rows)
    assert {row["task_id"] for row in read_rows(config.run_dir / "plan.jsonl")[:6]} == {
        f"finish.train.{number}" for number in range(6)
    }
    episodes = [row for file in (config.run_dir / "episodes").iterdir() for row in read_rows(file)]
    assert all(
        (row["end"] == "success") == row["reward"] == ("finish" in row["turns"][-1]["reply"]) for row in episodes
    )
    assert "by depth 4:" in capsys.readouterr().out


def test_another_game_is_evaluated_and_reported_on(backend: BackendConfig, tmp_path: Path, capsys):
    path = tmp_path / "run"
    play = {"env": "tests.finish_game:GAME", "rollouts": 4, "max_turns": 2}
    evaluate.main(evaluate.Config(run_dir=path, backend=backend, **play))
    overall = json.loads((path / "summary.json").read_text())["overall"]
    assert (overall["tasks"], overall["episodes"], overall["ceiling"]) == (6, 24, None)
    solved = [row["end"] == "success" for row in read_rows(path / "episodes.jsonl")]
    assert overall["success"]["value"] == pytest.approx(sum(solved) / 24)
    evaluate.report(evaluate.ReportConfig(evaluations=(str(path),), out=tmp_path / "report"))
    assert "finish.val.0" in (tmp_path / "report" / "report.html").read_text()
    capsys.readouterr()
    evaluate.main(evaluate.Config(run_dir=tmp_path / "none", dry_run=True, **play))
    assert "24 episodes (6 tasks x 4 rollouts)" in capsys.readouterr().out
