"""The scheduler in simulated time: the staleness bound, the order, long episodes, dynamic sampling."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

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
    in_play: int = 8,
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
            in_play=in_play,
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
@pytest.mark.parametrize(("train_s", "in_play"), [(1.0, 8), (30.0, 8), (30.0, 100), (1000.0, 100)])
def test_no_group_is_staler_than_the_bound_and_sampling_runs_ahead_up_to_it(max_staleness, train_s, in_play):
    run = simulate(max_staleness=max_staleness, train_s=train_s, in_play=in_play)
    assert max(run.staleness()) <= max_staleness
    if in_play == 100:
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
    run = simulate(learns=lambda step: step % 3 > 0, in_play=100)
    assert 0 < max(run.staleness()) <= 4


@pytest.mark.parametrize("max_staleness", [0, 4])
@pytest.mark.parametrize("mixed_share", [0.9, 0.5, 0.1])
def test_dynamic_sampling_reaches_its_number_or_stops_at_its_bound_and_keeps_the_staleness(max_staleness, mixed_share):
    run = simulate(max_staleness=max_staleness, mixed_share=mixed_share, limit=10, in_play=100)
    for groups in run.steps:
        mixed = sum(group.mixed for group in groups)
        assert (mixed == 4 and groups[-1].mixed and len(groups) <= 10) or (mixed < 4 and len(groups) == 10)
    assert [group.number for groups in run.steps for group in groups] == list(range(sum(map(len, run.steps))))
    assert max(run.staleness()) <= max_staleness
    reached = sum(sum(group.mixed for group in groups) == 4 for groups in run.steps)
    assert {0.9: reached == 60, 0.5: reached > 30, 0.1: reached < 30}[mixed_share]


def test_no_more_groups_are_in_play_than_asked_for():
    playing = most = 0

    async def play(number: int) -> int:
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        await asyncio.sleep(1 + number % 3)
        playing -= 1
        return number

    async def train() -> None:
        scheduler = Scheduler(steps=20, size=4, max_staleness=4, in_play=5)
        for _ in range(20):
            await scheduler.next_step(play)

    simulated_time.run(train())
    assert most == 5


def test_what_playing_raises_reaches_the_step():
    async def play(number: int) -> int:
        await asyncio.sleep(1)
        if number == 3:
            raise ZeroDivisionError
        return number

    async def train() -> None:
        scheduler = Scheduler(steps=2, size=2, max_staleness=4, in_play=8)
        assert await scheduler.next_step(play) == [0, 1]
        with pytest.raises(ZeroDivisionError):
            await scheduler.next_step(play)
        await scheduler.close()

    simulated_time.run(train())
