"""Rates, pass@k and differences, against independent computations."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from benchmarks.coverage import DIFFERENCES, ROLLOUTS, Config, differences, rates
from tinker_client.evaluation.statistics import (
    Outcomes,
    mean_difference,
    paired_difference,
    pass_at_k,
    success_rate,
)


def outcomes(successes: list[int], episodes: int = 1) -> list[Outcomes]:
    return [Outcomes(episodes, solved) for solved in successes]


@pytest.mark.parametrize(("solved", "n"), [(0, 12), (1, 12), (7, 72), (12, 12), (1, 1), (0, 1)])
def test_one_rollout_a_task_gives_wilsons_interval(solved: int, n: int):
    want = stats.binomtest(solved, n).proportion_ci(method="wilson")
    tasks = [Outcomes(1, int(i < solved)) for i in range(n)]
    for interval in (success_rate(tasks), pass_at_k(tasks, 1)):
        assert interval.value == solved / n
        assert (interval.low, interval.high) == pytest.approx((want.low, want.high))


def test_rollouts_that_always_agree_count_as_one_per_task():
    n = 40
    agreeing = success_rate([Outcomes(4, 4 * (i < 14)) for i in range(n)])
    # Korn and Graubard (1998): n tasks, and the variance between them is known with n - 1 degrees of freedom.
    effective = n * (stats.t.ppf(0.975, 4 * n - 1) / stats.t.ppf(0.975, n - 1)) ** 2
    z, p = stats.norm.ppf(0.975), 14 / n
    center, reach = p + z * z / (2 * effective), z * math.sqrt(p * (1 - p) / effective + (z / (2 * effective)) ** 2)
    want = [(center + side * reach) / (1 + z * z / effective) for side in (-1, 1)]
    assert [agreeing.low, agreeing.high] == pytest.approx(want)


@pytest.mark.parametrize("successes", [0, 4])
def test_nothing_or_everything_solved_leaves_room_for_both(successes: int):
    interval = success_rate([Outcomes(4, successes)] * 44)
    single = stats.binomtest(successes // 4 * 44, 44).proportion_ci(method="wilson")
    assert interval.value == successes / 4
    assert interval.high - interval.low == pytest.approx(single.high - single.low, rel=0.1)
    assert interval.low == pytest.approx(0.0) if successes == 0 else 0.9 < interval.low < 0.95
    assert interval.high == pytest.approx(1.0) if successes == 4 else 0.05 < interval.high < 0.1


def test_rollouts_without_likeness_are_worth_more_than_tasks():
    mixed, single = success_rate([Outcomes(4, 2)] * 44), success_rate([Outcomes(1, i % 2) for i in range(44)])
    assert mixed.value == single.value == 0.5
    assert mixed.high - mixed.low < 0.6 * (single.high - single.low)


def test_tasks_with_more_episodes_weigh_more_in_the_rate_but_not_in_pass_at_k():
    tasks = [Outcomes(4, 4), Outcomes(2, 0), Outcomes(2, 1)]
    assert success_rate(tasks).value == 5 / 8
    assert pass_at_k(tasks, 2).value == pytest.approx((1 + 0 + 1) / 3)


def test_a_task_with_most_of_the_episodes_is_one_task():
    for successes in (0, 50, 90, 100):
        interval = success_rate([Outcomes(100, successes)] + [Outcomes(1, int(i < 5)) for i in range(9)])
        assert interval.high - interval.low > 0.5
    alike = success_rate([Outcomes(100, 100 * (i % 2)) for i in range(10)])
    assert alike.high - alike.low > 0.5


def test_one_task_and_no_task_say_nearly_nothing():
    one = success_rate([Outcomes(4, 1)])
    assert one.value == 0.25
    assert one.high - one.low > 0.6
    for nothing in (success_rate([]), pass_at_k([], 4), pass_at_k([Outcomes(3, 1)], 4)):
        assert math.isnan(nothing.value)
        assert (nothing.low, nothing.high) == (0.0, 1.0)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6])
def test_pass_at_k_counts_the_subsets_that_hold_a_success(k: int):
    tasks = [Outcomes(6, c) for c in range(7)]
    subsets = [
        np.mean([any(chosen) for chosen in combinations([i < task.successes for i in range(6)], k)]) for task in tasks
    ]
    assert pass_at_k(tasks, k).value == pytest.approx(np.mean(subsets))
    with pytest.raises(ValueError, match="at least one"):
        pass_at_k(tasks, 0)


def test_pass_at_k_of_k_episodes_is_the_share_of_tasks_solved_at_least_once():
    tasks = [Outcomes(4, c) for c in (0, 0, 1, 4, 2, 0, 3, 1)]
    want = stats.binomtest(5, 8).proportion_ci(method="wilson")
    interval = pass_at_k(tasks, 4)
    assert interval.value == 5 / 8
    assert (interval.low, interval.high) == pytest.approx((want.low, want.high))


def test_the_paired_difference_is_agresti_and_mins():
    difference = paired_difference(outcomes([0] * 29), outcomes([1] * 15 + [0] * 14))
    assert difference.value == pytest.approx(15 / 29)
    # Half a pair is added to each cell of the table of 15 better, 0 worse, 14 equal tasks.
    b, c, n = 15.5, 0.5, 31
    reach = stats.t.ppf(0.975, n - 1) * math.sqrt(b + c - (b - c) ** 2 / n) / n
    assert (difference.low, difference.high) == pytest.approx(((b - c) / n - reach, (b - c) / n + reach))


def test_several_rollouts_that_always_agree_count_as_one_pair_a_task():
    first, second = [0] * 20 + [1] * 10, [1] * 5 + [0] * 15 + [1] * 10
    many = paired_difference(outcomes([4 * x for x in first], 4), outcomes([4 * x for x in second], 4))
    assert many == paired_difference(outcomes(first), outcomes(second))


def test_several_rollouts_are_worth_more_than_one():
    one = paired_difference(outcomes([0, 1] * 22), outcomes([1, 0] * 22))
    four = paired_difference(outcomes([1, 2] * 22, 4), outcomes([2, 1] * 22, 4))
    assert one.value == four.value == 0.0
    assert four.high < 0.35 * one.high


def test_few_pairs_that_differ_leave_room_for_a_difference():
    # None of 12: a share of 0.2 of the tasks that differ is nothing to be surprised at (0.8 ** 12 = 0.07).
    none = paired_difference(outcomes([0] * 12), outcomes([0] * 12))
    assert 0.2 < none.high == -none.low < 0.25
    one = paired_difference(outcomes([0] * 12), outcomes([1] + [0] * 11))
    other = paired_difference(outcomes([1] + [0] * 11), outcomes([0] * 12))
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.high > 0.3  # 12 * 0.3 * 0.7 ** 11 + 0.7 ** 12 = 0.085


def test_differences_of_nothing_are_certain_of_nothing():
    same = paired_difference(outcomes([1] * 30, 2), outcomes([1] * 30, 2))
    assert same.low < 0.0 == same.value < same.high
    assert math.isnan(paired_difference([], []).value)
    assert (paired_difference([], []).low, paired_difference([], []).high) == (-1.0, 1.0)
    assert mean_difference([3.0], [5.0]).value == 2.0
    assert mean_difference([3.0], [5.0]).high == mean_difference([3.0, 4.0], [5.0, 6.0]).high == math.inf
    assert math.isnan(mean_difference([], []).value)


def test_the_mean_difference_is_that_of_the_paired_t_test():
    first, second = [20.0, 31.0, 25.0, 40.0], [18.0, 22.0, 26.0, 30.0]
    want = stats.ttest_rel(second, first).confidence_interval()
    interval = mean_difference(first, second)
    assert (interval.value, interval.low, interval.high) == pytest.approx((-5.0, want.low, want.high))


@pytest.mark.parametrize("kind", ROLLOUTS)
def test_the_intervals_hold_the_truth(kind: str):
    """A small version of benchmarks/coverage.py: of 400 evaluations, chance can take 0.95 to 0.91."""
    config = Config(evaluations=400)
    for setting in rates(config, 24, kind):
        assert min(setting[method].coverage for method in setting if method != "bootstrap") >= 0.91
    for difference in DIFFERENCES:
        for setting in differences(config, 12, kind, difference):
            assert setting["difference"].coverage >= 0.91
