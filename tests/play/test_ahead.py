"""Rollouts for training against a stand-in server: reproducible, within the bound, exact where weights are shared."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
import tinker
from transformers import AutoTokenizer

from tests.play.test_rollout import expert
from tests.playing import play_config
from textcraft import load_tasks
from tinker_client.connection.alive import Liveness
from tinker_client.connection.models import TINY_MODEL, stop_token_ids
from tinker_client.errors import ServerError, UserError
from tinker_client.play.ahead import Rollouts
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.gate import Gate
from tinker_client.play.rollout import Policy
from tinker_client.play.scheduler import Scheduler
from tinker_client.play.tasks import Plan
from tinker_client.run.jsonl import read_rows
from tinker_client.train.advantages import group_has_signal, has_signal

TASKS = load_tasks("train", "easy", [2])[:8]
EXPERT = expert(TASKS)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    return ChatTemplate(tokenizer, stop_token_ids(tokenizer))


class Server:
    """Weights with one copy for training and sampling, as on SkyRL's JAX backend, and what goes wrong with them.

    An episode fails at once with probability 1 - success, decided by the seed of its first turn, else it is played by
    the expert. Each reply takes up to latency_s, at random.
    """

    def __init__(
        self, template: ChatTemplate, *, success: float = 0.5, latency_s: float = 0.004, seed: int = 0
    ) -> None:
        self.template, self.success, self.latency_s = template, success, latency_s
        self.updates = 0  # of the weights in training
        self.newest = 0  # the client made last
        self.asked: list[tuple[str, int]] = []  # what was sampled and with which seed
        self.wrong: list[str] = []
        self._random = random.Random(seed)

    def client(self) -> "Client":
        self.newest = self.updates
        return Client(self, self.updates)


class Client:
    """A sampling client of `version`, the number of updates before it was made."""

    def __init__(self, server: Server, version: int) -> None:
        self.server, self.version = server, version

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams) -> Future:
        future: Future = Future()
        server = self.server
        timer = threading.Timer(
            server._random.uniform(0, server.latency_s), lambda: self._answer(prompt, sampling_params, future)
        )
        timer.daemon = True
        timer.start()
        return future

    def _answer(self, prompt: tinker.ModelInput, params: tinker.SamplingParams, future: Future) -> None:
        server = self.server
        if not future.set_running_or_notify_cancel():
            return
        if self.version != server.newest:
            server.wrong.append(f"client {self.version} loaded its weights over those of {server.newest}")
        if self.version != server.updates:
            server.wrong.append(f"client {self.version} sampled from weights with {server.updates} updates")
        text = server.template.tokenizer.decode(prompt.to_ints())
        turn = text.count("assistant\n") - 1
        server.asked.append((text, params.seed))
        fails = turn == 0 and random.Random(params.seed).random() >= server.success
        reply = server.template.reply("<tool>finish()</tool>" if fails else EXPERT(text, turn))
        sequence = tinker.SampledSequence("stop", np.array(reply, np.int32), np.full(len(reply), -0.5, np.float32))
        future.set_result(tinker.SampleResponse([sequence]))


def rollouts(
    server: Server,
    path: Path,
    *,
    seed: int = 3,
    steps: int = 4,
    max_staleness: int = 2,
    max_groups: int | None = None,
    shared_weights: bool = True,
    liveness: Liveness | None = None,
) -> Rollouts:
    """Three groups of four episodes a step; with `max_groups` of dynamic sampling."""
    counts = {} if max_groups is None else {"counts": group_has_signal, "limit": max_groups}
    return Rollouts(
        Plan(path / "plan.jsonl", TASKS, size=3, seed=seed),
        Policy(server.client(), 0),
        play_config(server.template, max_turns=12, seed=seed),
        Scheduler(steps=steps, size=3, max_staleness=max_staleness, steps_ahead=1, **counts),
        Gate(None, shared_weights=shared_weights),
        group_size=4,
        liveness=liveness or Liveness(),
    )


def train(server: Server, path: Path, update_s: float = 0.01, **settings: object) -> list[list]:
    """The episodes of each step of a run whose updates take some time."""
    steps = []
    with rollouts(server, path, **settings) as running:
        for _ in range(settings.get("steps", 4)):
            steps.append([episode for group in running.next_step() for episode in group])
            for episode in steps[-1]:
                assert all(turn.policy_version <= running.policy.version for turn in episode.turns)
                oldest = min(turn.policy_version for turn in episode.turns)
                assert running.policy.version - oldest <= settings.get("max_staleness", 2)
            with running.updating():
                server.updates += 1
                time.sleep(update_s)
                running.policy = Policy(server.client(), server.updates)
    return steps


def test_two_runs_of_one_seed_play_the_same_whatever_the_server_takes(template, tmp_path):
    runs = []
    for name, latency_s, seed in (("a", 0.001, 3), ("b", 0.01, 3), ("c", 0.001, 4)):
        (tmp_path / name).mkdir()
        server = Server(template, latency_s=latency_s)
        steps = train(server, tmp_path / name, seed=seed)
        assert [(e.step, e.group, e.episode) for episodes in steps for e in episodes] == [
            (step, group, episode) for step in range(1, 5) for group in range(3) for episode in range(4)
        ]
        played = [(e.task.id, e.conversation.tokens) for episodes in steps for e in episodes]
        runs.append((played, sorted(server.asked), read_rows(tmp_path / name / "plan.jsonl")))
        assert len({seed for _, seed in server.asked}) == len(server.asked)
    assert runs[0] == runs[1]
    assert runs[0][2] != runs[2][2]
    assert not {seed for _, seed in runs[0][1]} & {seed for _, seed in runs[2][1]}


def test_the_plan_is_written_ahead_and_a_run_that_goes_on_follows_it(template, tmp_path):
    train(Server(template), tmp_path)
    rows = read_rows(tmp_path / "plan.jsonl")
    assert [(row["step"], row["group"]) for row in rows] == [(s, g) for s in range(1, 5) for g in range(3)]
    assert sorted(row["task_id"] for row in rows[:8]) == sorted(task.id for task in TASKS)  # each once, then again
    taken_up = Plan(tmp_path / "plan.jsonl", TASKS, size=3, seed=3)
    whole = Plan(tmp_path / "whole.jsonl", TASKS, size=3, seed=3)
    assert [taken_up[number] for number in range(20)] == [whole[number] for number in range(20)]
    assert read_rows(tmp_path / "plan.jsonl")[:12] == rows
    with pytest.raises(UserError, match="give them as before"):
        Plan(tmp_path / "plan.jsonl", TASKS[1:], size=3, seed=3)


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_shared_weights_are_never_sampled_from_by_an_old_client_or_during_an_update(template, tmp_path, max_staleness):
    server = Server(template)
    steps = train(server, tmp_path, max_staleness=max_staleness)
    assert server.wrong == []
    for version, episodes in enumerate(steps):
        versions = {turn.policy_version for e in episodes for turn in e.turns}
        assert versions == {version} if max_staleness == 0 else max(versions) <= version
    if max_staleness:
        assert any(len({turn.policy_version for turn in e.turns}) > 1 for episodes in steps for e in episodes)


def test_the_stand_in_notices_what_happens_without_a_gate(template, tmp_path):
    server = Server(template)
    train(server, tmp_path, shared_weights=False)
    assert server.wrong


@pytest.mark.parametrize(("success", "reached"), [(0.5, True), (0.02, False)])
def test_dynamic_sampling_reaches_its_mixed_groups_or_stops_at_its_bound(template, tmp_path, success, reached):
    server = Server(template, success=success)
    for episodes in train(server, tmp_path, max_groups=6, max_staleness=0):
        groups: dict[tuple[int, int], list[float]] = {}
        for e in episodes:
            groups.setdefault((e.step, e.group), []).append(e.reward)
        mixed = sum(map(has_signal, groups.values()))
        assert (mixed == 3 and len(groups) <= 6) if reached else (mixed < 3 and len(groups) == 6)


def breaking(server: Server, breaks: Callable[[int], bool]) -> None:
    """Let the requests of some numbers fail."""
    sample, count = Client.sample, iter(range(10**6))

    def failing(self: Client, prompt, num_samples, sampling_params):
        if breaks(next(count)):
            raise ConnectionError("gone")
        return sample(self, prompt, num_samples, sampling_params)

    server.client = lambda: type("Failing", (Client,), {"sample": failing})(server, server.updates)


def test_a_server_that_fails_every_episode_ends_the_run_and_one_failure_does_not(template, tmp_path):
    server = Server(template)
    breaking(server, lambda number: number == 5)
    with rollouts(server, tmp_path) as running:
        ends = [e.end for group in running.next_step() for e in group]
    assert ends.count("broken") == 0  # asked for again
    breaking(server, lambda number: True)
    with (
        rollouts(server, tmp_path) as running,
        pytest.raises(ServerError, match=r"every episode.*Error: gone"),
    ):
        running.next_step()


class Ended(Liveness):
    def check(self) -> None:
        raise ServerError("the local server stopped")


def test_a_server_that_has_ended_ends_the_wait(template, tmp_path):
    server = Server(template, latency_s=1000.0)
    with (
        rollouts(server, tmp_path, liveness=Ended()) as running,
        pytest.raises(ServerError, match="the local server stopped"),
    ):
        running.next_step()
