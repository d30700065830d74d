"""train_grpo.py against the stand-in service of the benchmarks: a token-sum server, through the real SDK."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tinker

import train_grpo
from tinker_client.connection import connect
from tinker_client.connection.alive import answers
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import UserError
from tinker_client.run.jsonl import read_rows

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "stand_in.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    times = ["--turn-s", "0.02", "--forward-backward-s", "0.1", "--optim-step-s", "0.02", "--save-s", "0.02"]
    with subprocess.Popen([sys.executable, str(SCRIPT), "--port", str(port), *times]) as process:
        while not answers(f"http://127.0.0.1:{port}", timeout=1.0):
            assert process.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


def config(url: str, run_dir: Path, **more: object) -> train_grpo.Config:
    backend = BackendConfig(base_url=url, tokenizer=str(TINY_MODEL), engine=more.pop("engine", None))
    flags = {
        "depths": (4,),
        "steps": 4,
        "groups": 2,
        "group_size": 2,
        "max_turns": 6,
        "max_staleness": 2,
        "track": None,
    }
    return train_grpo.Config(run_dir=run_dir, backend=backend, **{**flags, **more})


@pytest.fixture
def every_episode_counts(monkeypatch) -> None:
    """Advantages for every episode, since the stand-in solves nothing."""
    monkeypatch.setattr(train_grpo, "advantages", lambda groups, kind: [[1.0, -0.5] for _ in groups])


@pytest.mark.parametrize("loss", ["ppo", "importance_sampling"])
def test_every_step_trains_on_all_that_was_sampled_within_the_bound(url, loss, tmp_path, every_episode_counts):
    train_grpo.main(config(url, tmp_path / "run", loss=loss))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["tokens/trained"] == row["tokens/action"] > 0
        assert row["policy/kl_sampler_trainer"] == row["policy/clip_fraction"] == 0
        assert row["policy/ratio_min"] == row["policy/ratio_max"] == 1
        assert row["staleness/max"] <= 2
        assert row["optim/grad_norm"] == 1
    assert max(row["staleness/max"] for row in rows) > 0
    assert rows[-1]["plan/groups"] == 8


def test_hosted_tinker_wants_a_key_and_gets_no_weights_with_a_policy_loss(
    url, tmp_path, monkeypatch, every_episode_counts
):
    """The stand-in answers as hosted Tinker does, with the sum over tokens as `loss:sum`."""
    flags = config(url, tmp_path / "run", steps=1)
    hosted = replace(flags, backend=BackendConfig(hosted=True, tokenizer=str(TINY_MODEL)))
    monkeypatch.setenv("TINKER_BASE_URL", url)  # where the SDK looks instead of the hosted service
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    with pytest.raises(UserError, match="TINKER_API_KEY"):
        train_grpo.main(hosted)
    monkeypatch.setenv("TINKER_API_KEY", "tml-a-key")
    sent = []
    send = tinker.TrainingClient.forward_backward
    monkeypatch.setattr(
        tinker.TrainingClient, "forward_backward", lambda *arguments: sent.append(arguments[1:]) or send(*arguments)
    )
    train_grpo.main(replace(hosted, overwrite=True))
    (row,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert row["optim/grad_norm"] == 1
    ((datums, loss, clip),) = sent
    assert (loss, clip) == ("ppo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2})
    assert {frozenset(datum.loss_fn_inputs) for datum in datums} == {
        frozenset(("target_tokens", "logprobs", "advantages"))
    }
    with pytest.raises(UserError, match="two servers"):
        BackendConfig(hosted=True, base_url=url)


def test_dynamic_sampling_plays_up_to_its_bound_and_counts_all_of_it(url, tmp_path):
    train_grpo.main(config(url, tmp_path / "run", steps=2, dynamic_sampling=True, max_groups=3))
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["group/all_failed"] for row in rows] == [3, 3]
    assert [row["plan/groups"] for row in rows] == [3, 6]
    for step in (1, 2):
        episodes = read_rows(tmp_path / "run" / "episodes" / f"step_{step:06d}.jsonl")
        assert rows[step - 1]["tokens/action"] == sum(episode["action_tokens"] for episode in episodes)
        assert len(episodes) == 6


def test_a_wrong_engine_ends_the_run_at_the_first_answer(url, tmp_path, every_episode_counts):
    with pytest.raises(UserError, match="--engine gpu"):
        train_grpo.main(config(url, tmp_path / "run", engine="jax"))
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == []


def test_cispo_is_refused_where_the_server_would_not_take_its_clip_range(url, tmp_path, monkeypatch):
    monkeypatch.setattr(connect, "is_skyrl", lambda url, timeout: True)
    with pytest.raises(UserError, match="take --loss ppo"):
        train_grpo.main(config(url, tmp_path / "run", loss="cispo"))
