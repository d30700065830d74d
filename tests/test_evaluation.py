"""Statistics of evaluations, against independent computations."""

import math

import numpy as np
import pytest
from scipy import stats

from tinker_client.evaluation import paired_difference, success_interval, summarize, summarize_by_depth


def row(task: int, end: str, kinds: str = "info craft finish", depth: int = 2) -> dict:
    turns = [{"kind": kind, "cut_off": kind == "invalid"} for kind in kinds.split()]
    return {"task_id": f"t{task}", "depth": depth, "end": end, "action_tokens": 10 * len(turns), "turns": turns}


@pytest.mark.parametrize(("solved", "n"), [(0, 12), (1, 12), (7, 72), (12, 12)])
def test_one_rollout_a_task_gives_wilsons_interval(solved: int, n: int):
    interval = success_interval([[i < solved] for i in range(n)])
    want = stats.binomtest(solved, n).proportion_ci(method="wilson")
    assert interval.value == solved / n
    assert (interval.low, interval.high) == pytest.approx((want.low, want.high))


def test_rollouts_that_always_agree_count_as_one():
    agreeing = success_interval([[i < 7] * 4 for i in range(20)])
    single = success_interval([[i < 7] for i in range(20)])
    assert (agreeing.low, agreeing.high) == pytest.approx((single.low, single.high), abs=1e-2)
    assert success_interval([[False] * 4] * 20).high == pytest.approx(success_interval([[False]] * 20).high)


def test_rollouts_without_likeness_count_one_by_one():
    alike = success_interval([[True, False]] * 20)
    independent = success_interval([[i % 2 == 0] for i in range(40)])
    assert (alike.low, alike.high) == pytest.approx((independent.low, independent.high))


@pytest.mark.parametrize("rate", [0.14, 0.5])
def test_the_interval_covers_the_rate_of_tasks_of_unequal_difficulty(rate: float):
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        of_task = rng.beta(rate * 2, (1 - rate) * 2, size=44)
        interval = success_interval([list(rng.random(4) < p) for p in of_task])
        covered += interval.low <= rate <= interval.high
    assert covered / 300 >= 0.92


def test_no_episode_gives_no_rate_and_the_whole_range():
    interval = success_interval([])
    assert math.isnan(interval.value)
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_summary_counts_per_episode_and_keeps_broken_ones_apart():
    rows = [
        row(0, "success", "info failed_craft craft finish"),
        row(1, "out_of_turns", "invalid invalid failed_craft info"),
        row(2, "broken", "info"),
    ]
    summary = summarize(rows)
    assert (summary.tasks, summary.episodes, summary.broken) == (2, 2, 1)
    assert summary.success.value == 0.5
    assert (summary.turns, summary.failed_crafts, summary.invalid_turns) == (4.0, 1.0, 1.0)
    assert (summary.cut_off_replies, summary.action_tokens) == (1.0, 40.0)
    assert list(summarize_by_depth([*rows, row(3, "success", depth=3)])) == [2, 3]


def test_paired_difference_is_over_common_tasks_and_never_certain():
    base = [row(i, "out_of_turns") for i in range(30)]
    better = [row(i, "success" if i < 15 else "out_of_turns") for i in range(29)]
    difference = paired_difference(base, better)
    assert difference.value == pytest.approx(15 / 29)
    assert 0 < difference.low < difference.value < difference.high < 1
    same = paired_difference(base, base)
    assert same.value == 0.0
    assert same.low < 0 < same.high
    # Agresti and Min (2005): half a pair added to each cell of the table of 15 better, 0 worse, 14 equal tasks.
    b, c, n = 15.5, 0.5, 31
    error = math.sqrt(b + c - (b - c) ** 2 / n) / n
    reach = stats.t.ppf(0.975, n - 1) * error
    assert (difference.low, difference.high) == pytest.approx(((b - c) / n - reach, (b - c) / n + reach))
