"""Training through a proxy that misbehaves: whatever gets lost, each step is trained once."""

from pathlib import Path

import pytest

import train_grpo
from tests.fault_proxy import KINDS, Config, FaultProxy, Kind, faulty
from tests.standing_in import serving
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL
from tinker_client.errors import ServerError, UserError
from tinker_client.run.jsonl import read_rows

STEPS = 4


def train(url: str, path: Path, **flags: object) -> str:
    """One attempt; the last state's path."""
    backend = BackendConfig(base_url=url, tokenizer=str(TINY_MODEL))
    play = {"depths": (4,), "groups": 1, "group_size": 3, "max_turns": 3, "max_staleness": 1, "save_every": 1}
    config = train_grpo.Config(run_dir=path, backend=backend, steps=STEPS, **play, **flags)
    train_grpo.main(config)
    return read_rows(path / "checkpoints.jsonl")[-1]["state_path"]


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[1:4], KINDS[4:]], ids=["late", "lost", "refused"])
def test_every_step_is_trained_once_whatever_gets_lost(kinds: tuple[Kind, ...], tmp_path: Path, monkeypatch):
    monkeypatch.setattr(
        train_grpo, "advantages", lambda groups, kind: [[1.0, -0.5, -0.5][: len(group)] for group in groups]
    )
    with serving() as (service, url):
        whole = service.states[train(url, tmp_path / "whole")]
        assert len(set(whole)) == STEPS
        # One in five: a run has about 60 requests, and each loss costs the SDK a second or more of waiting.
        with faulty(url, kinds, rate=0.2, delay_s=0.2, seed=1) as proxy:
            reasons: list[str] = []
            for _ in range(100):
                try:
                    state = train(proxy.url, tmp_path / "run", resume=True)
                    break
                except (ServerError, UserError) as error:
                    reasons.append(str(error))
            else:
                pytest.fail("\n".join(reasons))
        assert all("\n" not in reason for reason in reasons)
        assert set(proxy.faults) == set(kinds)
        assert service.states[state] == whole
    assert [row["step"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == list(range(1, STEPS + 1))


def test_the_plan_of_faults_is_that_of_its_seed_and_rate():
    plans = [[FaultProxy(Config("", rate=0.05, seed=seed)).plan(n) for n in range(4000)] for seed in (0, 0, 1)]
    assert plans[0] == plans[1] != plans[2]
    hits = [kind for kind, _ in plans[0] if kind is not None]
    assert len(hits) == pytest.approx(200, abs=50)
    assert set(hits) == set(KINDS)
