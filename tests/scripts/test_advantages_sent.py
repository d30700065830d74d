"""train_grpo.py as the server sees it: each episode comes with its own advantage, and no other."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import tinker

import train_grpo
from tests.standing_in import serving
from textcraft import Episode, load_tasks
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.run.jsonl import read_rows

TASKS = {task.id: task for task in load_tasks("train", depths=[4])}


def conversation(template: ChatTemplate, row: dict) -> Conversation:
    """The tokens of an episode again, from its row alone."""
    again = Conversation(template, Episode(TASKS[row["task_id"]]).messages)
    for turn in row["turns"]:
        again.add_reply(template.reply(turn["reply"]))
        again.add_observation(turn["observation"])
    return again


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_what_is_sent_for_each_episode_is_its_reward_minus_the_mean_of_its_group(
    tmp_path: Path, monkeypatch, max_staleness
):
    sent: list[list[tinker.Datum]] = []
    send = tinker.TrainingClient.forward_backward
    monkeypatch.setattr(
        tinker.TrainingClient,
        "forward_backward",
        lambda client, datums, *rest: sent.append(datums) or send(client, datums, *rest),
    )
    with serving() as (_, url):
        backend = BackendConfig(base_url=url, tokenizer=str(TINY_MODEL))
        sizes = {"steps": 3, "groups": 3, "group_size": 4, "max_turns": 12, "max_staleness": max_staleness}
        train_grpo.main(
            train_grpo.Config(tmp_path / "run", backend, env="tests.patience:PATIENCE", depths=(4,), **sizes)
        )
    tokenizer = load_tokenizer(str(TINY_MODEL))
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    assert len(sent) == 3
    for step, datums in enumerate(sent, start=1):
        episodes = read_rows(tmp_path / "run" / "episodes" / f"step_{step:06d}.jsonl")
        rewards: defaultdict[int, list[float]] = defaultdict(list)
        for row in episodes:
            rewards[row["group"]].append(row["reward"])
        assert len({tuple(sorted(group)) for group in rewards.values()}) == 3  # no two groups are alike
        total = sum(row["action_tokens"] for row in episodes)
        expected = defaultdict(list)  # by what was said: episodes of a group that are alike have the same advantage
        for row in episodes:
            advantage = row["reward"] - np.mean(rewards[row["group"]])
            if advantage:
                expected[tuple(conversation(template, row).tokens)].append(advantage / total)
        for datum in datums:
            inputs = datum.loss_fn_inputs
            targets, advantages = inputs["target_tokens"].to_numpy(), inputs["advantages"].to_numpy()
            said = (*datum.model_input.to_ints()[:1], *map(int, targets))
            match = next(tokens for tokens in expected if tokens[: len(said)] == said)
            values = set(advantages[advantages != 0])
            assert len(values) == 1
            assert values.pop() == pytest.approx(expected[match].pop(), rel=1e-5)
        assert not any(expected.values())
