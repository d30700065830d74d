"""Health warnings: each fires on a run that has its trouble, once, and none on a healthy run."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tinker_client.run.jsonl import read_rows
from tinker_client.run.run_dir import RunDir
from tinker_client.train.diagnostics import RULES, check, check_last

STEPS = 12


def healthy(steps: int = STEPS) -> list[dict[str, float]]:
    """A run that learns, with staleness."""
    return [
        {
            "step": step,
            "reward/mean": 0.2 + 0.05 * step,
            "group/mixed": 12 - step % 3,
            "group/reward_std": 0.4 - 0.01 * step,
            "episode/turns": 20.0,
            "episode/cut_off_replies": 0.4,
            "episode/repeated_share": 0.1,
            "policy/entropy": 0.3 - 0.01 * step,
            "policy/kl_sampler_trainer_k3": 0.0001 if step == 1 else 0.004,
            "policy/ratio_min": 0.3,
            "policy/ratio_max": 3.0,
            "staleness/max": min(step - 1, 4),
        }
        for step in range(1, steps + 1)
    ]


def with_trouble(name: str) -> list[dict[str, float]]:
    """The same run, with trouble from its middle on."""
    rows = healthy()
    for step, row in enumerate(rows, start=1):
        late = max(0, step - STEPS // 2)
        match name:
            case "no mixed groups" if late:
                row["group/mixed"] = 0
                del row["policy/kl_sampler_trainer_k3"]
            case "sampler and trainer disagree" if step == 1:
                row["policy/kl_sampler_trainer_k3"] = 0.08
            case "entropy collapse":
                row["policy/entropy"] *= 0.5**late
            case "exploding ratio or KL" if late:
                row["policy/ratio_max"] = 4000.0
            case "success rises with cut-off replies":
                row["episode/cut_off_replies"] = 0.4 + late
            case "one call over and over" if late:
                row["episode/repeated_share"] = 0.7
            case "echo trap":
                row["group/reward_std"] *= 0.5**late
                row["reward/mean"] = 0.3
    return rows


def test_a_healthy_run_is_not_warned_about():
    assert check(healthy()) == []
    assert check([]) == []


@pytest.mark.parametrize("name", RULES)
def test_each_trouble_is_found_once_where_it_begins_and_says_what_to_try(name):
    rows = with_trouble(name)
    warnings = check(rows)
    assert [warning.name for warning in warnings] == [name]
    (warning,) = warnings
    assert warning.step == 1 if "disagree" in name else warning.step > STEPS // 2
    assert warning.finding
    assert warning.advice
    # During the run the same warning comes at the same step, and is not repeated.
    assert [w for end in range(1, STEPS + 1) for w in check_last(rows[:end])] == warnings


def test_tasks_that_are_too_easy_are_told_from_too_hard_ones():
    rows = with_trouble("no mixed groups")
    assert "too easy" in check(rows)[0].advice
    for row in rows:
        row["reward/mean"] = 0.0
    assert "too hard" in check(rows)[0].advice


def test_a_trouble_that_comes_back_is_told_again():
    rows = healthy()
    for step in (3, 9):
        rows[step]["policy/ratio_max"] = 1e6
    assert [warning.step for warning in check(rows)] == [4, 10]


def test_a_solved_run_is_no_echo_trap():
    rows = with_trouble("echo trap")
    for row in rows:
        row["reward/mean"] = 0.97
    assert check(rows) == []


def health_command(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tinker_client", "health", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_reads_a_finished_run_whose_numbers_ran_away(tmp_path):
    run = RunDir(tmp_path, init=None)
    rows = healthy()
    rows[7]["policy/ratio_max"] = rows[7]["policy/kl_sampler_trainer_k3"] = math.inf  # written as null
    for row in rows:
        step = row.pop("step")
        run.log_metrics(int(step), row)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[7])["policy/ratio_max"] is None
    (warning,) = check(read_rows(tmp_path / "metrics.jsonl"))
    assert (warning.step, warning.name) == (8, "exploding ratio or KL")
    result = health_command(tmp_path)
    assert (result.returncode, result.stdout.strip()) == (0, str(warning))


def test_the_command_refuses_what_is_no_run(tmp_path):
    result = health_command(tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
