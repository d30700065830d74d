"""The scheduler in simulated time: the staleness bound, the order, long episodes, dynamic sampling."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import pytest

from tests import simulated_time
from tinker_client.play.scheduler import Scheduler


@dataclass
class Played:
    """A group that was played: its number, its depth, the policy version of its first turn, whether it has a signal."""

    number: int
    depth: int
    version: int
    mixed: bool


@dataclass
class Run:
    """What a simulated run did: for each step, its groups and the version that it trained."""

    steps: list[list[Played]]
    trained: list[int]
    started: list[Played]
    seconds: float

    def staleness(self) -> list[int]:
        return [
            version - group.version
            for groups, version in zip(self.steps, self.trained, strict=True)
            for group in groups
        ]


def simulate(
    *,
    steps: int = 60,
    size: int = 4,
    max_staleness: int = 4,
    steps_ahead: int = 1,
    train_s: float = 30.0,
    deep_share: float = 0.3,
    mixed_share: float = 1.0,
    learns: Callable[[int], bool] = lambda step: True,
    limit: int | None = None,
    seed: int = 0,
) -> Run:
    """A run in which depth-6 groups take 10 times as long as others, and each turn notes the newest version."""
    rng = random.Random(seed)
    version = 0
    started: list[Played] = []

    async def play(number: int) -> Played:
        depth = 6 if rng.random() < deep_share else 2
        group = Played(number, depth, version, rng.random() < mixed_share)
        started.append(group)
        for _ in range(10 if depth == 2 else 100):
            await asyncio.sleep(rng.uniform(0.5, 1.5))
        return group

    async def train() -> Run:
        nonlocal version
        scheduler = Scheduler(
            steps=steps,
            size=size,
            max_staleness=max_staleness,
            steps_ahead=steps_ahead,
            counts=(lambda group: True) if limit is None else lambda group: group.mixed,
            limit=limit,
        )
        run = Run([], [], started, 0.0)
        for step in range(steps):
            run.steps.append(await scheduler.next_step(play))
            run.trained.append(version)
            await asyncio.sleep(train_s)
            version += learns(step)
        run.seconds = asyncio.get_running_loop().time()
        assert not scheduler._queue  # nothing is played that no step takes
        return run

    return simulated_time.run(train())


@pytest.mark.parametrize("max_staleness", [0, 1, 4])
@pytest.mark.parametrize(("train_s", "steps_ahead"), [(1.0, 1), (30.0, 1), (30.0, 4), (1000.0, 4)])
def test_no_group_is_staler_than_the_bound_and_sampling_runs_ahead_up_to_it(max_staleness, train_s, steps_ahead):
    run = simulate(max_staleness=max_staleness, train_s=train_s, steps_ahead=steps_ahead)
    assert max(run.staleness()) <= max_staleness
    if steps_ahead == 4:
        assert max(run.staleness()) == max_staleness


def test_groups_are_trained_in_the_order_they_started_and_long_ones_as_often_as_they_started():
    run = simulate(max_staleness=4)
    trained = [group for groups in run.steps for group in groups]
    assert [group.number for group in trained] == list(range(60 * 4))
    assert Counter(group.depth for group in trained) == Counter(group.depth for group in run.started)
    # Long ones are not pushed to the end: every quarter of the run trains on those that started in it.
    for quarter in range(4):
        part = slice(quarter * 60, (quarter + 1) * 60)
        assert Counter(group.depth for group in trained[part]) == Counter(group.depth for group in run.started[part])


def test_a_synchronous_step_trains_the_policy_that_sampled_it():
    run = simulate(max_staleness=0)
    assert set(run.staleness()) == {0}
    assert run.trained == list(range(60))


def test_sampling_ahead_is_faster_than_in_turn():
    assert simulate(max_staleness=4).seconds < 0.75 * simulate(max_staleness=0).seconds


def test_steps_without_an_update_only_lower_the_staleness():
    run = simulate(learns=lambda step: step % 3 > 0, steps_ahead=4)
    assert 0 < max(run.staleness()) <= 4


@pytest.mark.parametrize("max_staleness", [0, 4])
@pytest.mark.parametrize("mixed_share", [0.9, 0.5, 0.1])
def test_dynamic_sampling_reaches_its_number_or_stops_at_its_bound_and_keeps_the_staleness(max_staleness, mixed_share):
    run = simulate(max_staleness=max_staleness, mixed_share=mixed_share, limit=10, steps_ahead=4)
    for groups in run.steps:
        mixed = sum(group.mixed for group in groups)
        assert (mixed == 4 and groups[-1].mixed and len(groups) <= 10) or (mixed < 4 and len(groups) == 10)
    assert [group.number for groups in run.steps for group in groups] == list(range(sum(map(len, run.steps))))
    assert max(run.staleness()) <= max_staleness
    reached = sum(sum(group.mixed for group in groups) == 4 for groups in run.steps)
    assert {0.9: reached == 60, 0.5: reached > 30, 0.1: reached < 30}[mixed_share]


@pytest.mark.parametrize("steps_ahead", [1, 2])
def test_where_training_is_slower_all_is_as_stale_as_sampling_is_ahead_and_no_more(steps_ahead):
    run = simulate(train_s=1000.0, steps_ahead=steps_ahead)
    # Not at first: the first step waits for its groups, so that sampling is the slower side.
    assert set(run.staleness()[4 * 8 :]) == {steps_ahead}
    assert run.seconds == pytest.approx(simulate(train_s=1000.0, steps_ahead=4).seconds, rel=0.01)


@pytest.mark.parametrize("train_s", [1.0, 30.0])
def test_where_sampling_is_slower_long_groups_do_not_stop_it_before_the_bound(train_s):
    ahead, bounded = simulate(train_s=train_s), simulate(train_s=train_s, max_staleness=1)
    assert max(ahead.staleness()) == 4
    assert 1.0 == fmean(bounded.staleness()[4:]) < fmean(ahead.staleness()) < 3.2
    assert ahead.seconds < 0.75 * bounded.seconds


def test_without_long_groups_the_mean_staleness_is_that_of_sampling_ahead_wherever_the_time_goes():
    for train_s in (1.0, 10.0, 100.0):
        assert fmean(simulate(train_s=train_s, deep_share=0.0).staleness()) < 1.4


@pytest.mark.parametrize("steps_ahead", [1, 3])
def test_no_more_is_in_hand_while_a_step_trains_than_sampling_is_to_be_ahead(steps_ahead):
    async def play(number: int) -> int:
        await asyncio.sleep(1 + number % 3)
        return number

    async def train() -> None:
        scheduler = Scheduler(steps=20, size=4, max_staleness=4, steps_ahead=steps_ahead)
        for step in range(1, 21):
            await scheduler.next_step(play)
            await asyncio.sleep(100)
            if step >= 5:  # when the first step waited, more were started
                assert scheduler.started - scheduler.taken == 4 * min(steps_ahead, 20 - step)

    simulated_time.run(train())


def test_what_playing_raises_reaches_the_step():
    async def play(number: int) -> int:
        await asyncio.sleep(1)
        if number == 3:
            raise ZeroDivisionError
        return number

    async def train() -> None:
        scheduler = Scheduler(steps=2, size=2, max_staleness=4, steps_ahead=1)
        assert await scheduler.next_step(play) == [0, 1]
        with pytest.raises(ZeroDivisionError):
            await scheduler.next_step(play)
        await scheduler.close()

    simulated_time.run(train())
