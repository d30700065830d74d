"""The three scripts, end to end on the real server with the tiny model, and what a user can get wrong."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tinker
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import train_grpo
import train_sft
from tests.conftest import RANK
from tests.killing import moment, now, wait_until
from tests.playing import play, play_config
from textcraft import load_tasks
from tinker_client.connection.backend import Backend
from tinker_client.connection.connect import BackendConfig, connect
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.play.chat import ChatTemplate
from tinker_client.play.records import EpisodeRecord
from tinker_client.play.rollout import Policy
from tinker_client.run.jsonl import read_rows
from tinker_client.run.run_dir import resolve_state
from tinker_client.train.datums import REDUCTION, PolicyLoss, check_reduction, policy_batch, supervised_batch
from tinker_client.train.demonstrations import read_demonstrations, tokenize
from tinker_client.train.updates import sync_policy

REPOSITORY = Path(__file__).resolve().parents[2]
TASK_IDS = [task.id for task in load_tasks("val", "easy", [2])[:2]]


def run(script: str, *flags: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *script.split(), *map(str, flags)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)


def succeeds(script: str, *flags: object) -> str:
    result = run(script, *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "demonstrations.jsonl"
    succeeds("-m sft_data", "--depths", 2, "--count", 12, "--recovery", 0, "--wording", "terse", "--out", path)
    return path


@pytest.fixture(scope="module")
def sft_run(demonstrations: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of train_sft.py on 8 demonstrations, with 4 held out."""
    path = tmp_path_factory.mktemp("runs") / "sft"
    flags = ["--rank", 8, "--lr", 1e-2, "--epochs", 2, "--batch-size", 4, "--held-out", 4]
    stdout = succeeds("train_sft.py", "--data", demonstrations, "--run-dir", path, *flags)
    assert [line.split()[:2] for line in stdout.splitlines()[:4]] == [["step", f"{i}/4"] for i in (1, 2, 3, 4)]
    return path


def test_sft_lowers_the_loss_and_writes_down_what_it_did(sft_run: Path):
    metrics = read_rows(sft_run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert metrics[-1]["loss/train"] < metrics[0]["loss/train"]
    held_out = [row["loss/held_out"] for row in metrics if "loss/held_out" in row]
    assert len(held_out) == 2
    assert held_out[1] < held_out[0] < metrics[0]["loss/train"] + 0.5
    assert sum(row["tokens/trained"] for row in metrics[:2]) == sum(row["tokens/trained"] for row in metrics[2:])
    assert [row["step"] for row in read_rows(sft_run / "checkpoints.jsonl")] == [4]
    plan = read_rows(sft_run / "plan.jsonl")
    assert [(row["step"], row["epoch"]) for row in plan] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    lines = [sorted(line for row in plan[i : i + 2] for line in row["lines"]) for i in (0, 2)]
    assert lines[0] == lines[1]
    assert len(set(lines[0])) == 8
    assert json.loads((sft_run / "config.json").read_text())["flags"]["lr"] == 1e-2


def test_the_saved_state_reproduces_the_logprobs_of_the_run(sft_run: Path, demonstrations: Path, tmp_path: Path):
    config = train_sft.Config(data=demonstrations, run_dir=tmp_path, batch_size=4, held_out=4)
    with connect(BackendConfig(), tmp_path, init=resolve_state(str(sft_run))) as backend:
        chats = [row.messages for row in train_sft.shuffled(read_demonstrations(demonstrations), config.seed)]
        held_out = tokenize(chats, ChatTemplate.of(backend), backend.context_length)[: config.held_out]
        loaded = backend.training_client_from(backend.init_state_path, with_optimizer=False)
        loss = train_sft.held_out_loss(backend, loaded, held_out)
    assert loss == pytest.approx(read_rows(sft_run / "metrics.jsonl")[-1]["loss/held_out"], abs=1e-4)


def test_a_training_run_killed_as_it_saves_goes_on_to_the_same_end(sft_run: Path, demonstrations: Path, tmp_path: Path):
    path = tmp_path / "sft"
    flags = ["--rank", 8, "--lr", 1e-2, "--epochs", 2, "--batch-size", 4, "--held-out", 4, "--save-every", 1]
    flags = ["--data", demonstrations, "--run-dir", path, *flags]
    process, since = subprocess.Popen([sys.executable, "train_sft.py", *map(str, flags)], cwd=REPOSITORY), now()
    wait_until(process, lambda: len(read_rows(path / "checkpoints.jsonl")) == 2)
    wait_until(process, lambda: moment(path, since) == "saving", every_s=0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 2 <= len(read_rows(path / "checkpoints.jsonl")) < 4
    succeeds("train_sft.py", *flags, "--resume")
    killed, whole = (read_rows(run / "metrics.jsonl") for run in (path, sft_run))
    assert [row["step"] for row in killed] == [1, 2, 3, 4]
    for name in ("loss/train", "loss/held_out"):  # minus the mean logprob; after the last step of the final weights
        assert [row.get(name) for row in killed] == pytest.approx([row.get(name) for row in whole], abs=1e-4)


def test_the_exported_adapter_gives_the_loss_of_the_run_without_the_server(
    sft_run: Path, demonstrations: Path, tmp_path: Path
):
    out = tmp_path / "adapter"
    assert "vllm serve" in succeeds("-m tinker_client export", sft_run, "--out", out)
    content = json.loads((out / "adapter_config.json").read_text())
    assert (content["r"], content["lora_alpha"]) == (8, 32)

    base = AutoModelForCausalLM.from_pretrained(content["base_model_name_or_path"], dtype=torch.float32)
    model = PeftModel.from_pretrained(base, out).eval()
    tokenizer = load_tokenizer(str(TINY_MODEL))
    config = train_sft.Config(data=demonstrations, run_dir=tmp_path)
    chats = [row.messages for row in train_sft.shuffled(read_demonstrations(demonstrations), config.seed)]
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    total, actions = 0.0, 0
    for conversation in tokenize(chats, template, 8192)[:4]:  # those that the run held out
        tokens = torch.tensor([conversation.tokens])
        with torch.no_grad():
            logprobs = model(tokens).logits[0, :-1].log_softmax(-1)
        sampled = logprobs[torch.arange(len(logprobs)), tokens[0, 1:]][torch.tensor(conversation.is_action[1:])]
        total, actions = total - float(sampled.sum()), actions + len(sampled)
    assert total / actions == pytest.approx(read_rows(sft_run / "metrics.jsonl")[-1]["loss/held_out"], abs=1e-4)


@pytest.mark.slow
def test_the_wordings_are_ranked_on_the_real_server(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stdout = succeeds("-m sft_data rank", "--count", 3, "--depths", 2, "--batch-size", 2)
    rows = [line.split("│")[1:6] for line in stdout.splitlines() if line.startswith("│")]
    ranking = {row[0].strip(): float(row[1].split()[0]) for row in rows}
    assert ranking.keys() == {"post", "terse", "prose", "equations"}
    assert list(ranking.values()) == sorted(ranking.values())


def test_grpo_goes_on_from_sft_and_takes_its_steps(sft_run: Path, tmp_path: Path):
    path = tmp_path / "grpo"
    train_grpo.main(
        train_grpo.Config(
            run_dir=path,
            init=str(sft_run),
            env="tests.coin_game:GAME",
            depths=(2,),
            steps=2,
            groups=2,
            group_size=8,
            max_turns=2,
            max_reply_tokens=16,
            lr=1e-3,
            max_staleness=1,
        )
    )
    metrics = read_rows(path / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2]
    for row in metrics:
        assert row["group/mixed"] > 0
        assert row["group/mixed"] + row["group/all_solved"] + row["group/all_failed"] == 2
        assert row["optim/grad_norm"] > 0
        assert 0 < row["tokens/trained"] <= row["tokens/action"]
        assert row["staleness/mean"] <= row["staleness/max"] <= 1
        assert row["episode/broken"] == 0
        assert row["time/step"] >= row["time/wait"] + row["time/train"]
        if row["staleness/max"] == 0:  # one step a batch: the trainer is the sampler
            assert abs(row["policy/kl_sampler_trainer"]) < 1e-3
            assert row["policy/clip_fraction"] == 0
    assert metrics[0]["staleness/max"] == 0
    for step in (1, 2):
        rows = read_rows(path / "episodes" / f"step_{step:06d}.jsonl")
        assert [(row["step"], row["group"], row["episode"]) for row in rows] == [
            (step, g, e) for g in range(2) for e in range(8)
        ]
        versions = {turn["policy_version"] for row in rows for turn in row["turns"]}
        assert versions <= {0, step - 1}
        assert sum(row["action_tokens"] for row in rows) == metrics[step - 1]["tokens/action"]
        planned = [row["task_id"] for row in read_rows(path / "plan.jsonl") if row["step"] == step]
        assert [row["task_id"] for row in rows[::8]] == planned
    assert metrics[-1]["plan/groups"] == 4
    assert [row["step"] for row in read_rows(path / "checkpoints.jsonl")] == [2]


def test_a_step_without_a_signal_makes_no_optimizer_step_and_says_so(backend: Backend, tmp_path: Path, capsys):
    config = train_grpo.Config(
        run_dir=tmp_path / "grpo",
        backend=BackendConfig(base_url=backend.server["url"], engine="torch"),
        rank=RANK,
        depths=(2,),
        steps=1,
        groups=1,
        group_size=2,
        max_turns=1,
        max_reply_tokens=4,
    )
    train_grpo.main(config)
    (row,) = read_rows(config.run_dir / "metrics.jsonl")
    assert (row["group/mixed"], row["group/all_failed"]) == (0, 1)
    assert not {"tokens/trained", "optim/grad_norm", "policy/kl_sampler_trainer"} & row.keys()
    assert row["tokens/action"] > 0
    assert "no group with a signal, so no optimizer step" in capsys.readouterr().out


def test_sampled_logprobs_are_the_trainers_before_an_update_and_after_it(
    backend: Backend, adapter: tinker.TrainingClient
):
    playing = play_config(ChatTemplate.of(backend), max_turns=3, max_reply_tokens=32, context_length=2048)
    tasks = load_tasks("train", "easy")[:4]

    def differences(episodes: Sequence[EpisodeRecord]) -> float:
        """Mean absolute difference between the sampler's logprobs and the present trainer's."""
        conversations = [episode.conversation for episode in episodes]
        batch = supervised_batch(conversations, REDUCTION[backend.kind])
        output = adapter.forward(batch.datums, batch.loss_fn, batch.loss_fn_config).result(300)
        sampled = [np.array(c.logprobs)[c.is_action] for c in conversations]
        return float(np.abs(np.concatenate(batch.action_logprobs(output)) - np.concatenate(sampled)).mean())

    policy = sync_policy(backend, adapter, version=0)
    first = play(tasks, 1, policy, playing)
    assert differences(first) < 1e-3
    batch = policy_batch([e.conversation for e in first], [1.0, -1.0, 1.0, -1.0], PolicyLoss(), REDUCTION[backend.kind])
    forward_backward = adapter.forward_backward(batch.datums, batch.loss_fn, batch.loss_fn_config)
    adapter.optim_step(tinker.AdamParams(learning_rate=1e-2)).result(300)
    check_reduction(batch, PolicyLoss(), forward_backward.result(300), REDUCTION[backend.kind])
    policy = sync_policy(backend, adapter, version=1)
    second = play(tasks, 1, policy, replace(playing, seed=1))
    assert differences(second) < 1e-3
    assert differences(first) > 1e-2  # the update was large enough to be seen


def test_evaluations_differ_once_weights_do_and_report_compares_them(sft_run: Path, tmp_path: Path):
    flags = ["--rank", 8, "--tasks", *TASK_IDS, "--max-turns", 3, "--max-reply-tokens", 32]
    stdout = succeeds("evaluate.py", "--run-dir", tmp_path / "base", *flags)
    assert "depth 2" in stdout
    succeeds("evaluate.py", "--run-dir", tmp_path / "sft", "--checkpoint", sft_run, *flags)
    base, sft = (read_rows(tmp_path / name / "episodes.jsonl") for name in ("base", "sft"))
    assert [row["task_id"] for row in base] == [row["task_id"] for row in sft] == TASK_IDS
    assert [row["turns"] for row in base] != [row["turns"] for row in sft]
    summary = json.loads((tmp_path / "sft" / "summary.json").read_text())
    assert summary["overall"]["episodes"] == summary["by_depth"]["2"]["episodes"] == 2
    assert "sft - base" in succeeds(
        "evaluate.py report", tmp_path / "base", tmp_path / "sft", "--out", tmp_path / "out"
    )
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "training_sft.png").exists()


@pytest.mark.slow  # two servers more, two minutes
def test_an_evaluation_killed_half_way_goes_on_to_the_same_end(tmp_path: Path):
    flags = ["--tasks", *TASK_IDS, "--rollouts", 12, "--max-turns", 4, "--max-reply-tokens", 32]
    succeeds("evaluate.py", "--run-dir", tmp_path / "whole", *flags)
    whole = read_rows(tmp_path / "whole" / "episodes.jsonl")
    assert len(whole) == 24  # more than the server samples at once, so that they do not all end together

    path = tmp_path / "killed" / "episodes.jsonl"
    command = [sys.executable, "evaluate.py", "--run-dir", path.parent, *flags]
    process = subprocess.Popen([*map(str, command)], cwd=REPOSITORY, stdout=subprocess.DEVNULL)
    while process.poll() is None and not read_rows(path):
        time.sleep(0.01)
    process.kill()
    process.wait()
    left = read_rows(path)
    assert 0 < len(left) < 24
    assert all(row in whole for row in left)
    succeeds("evaluate.py", "--run-dir", path.parent, *flags, "--resume")
    assert read_rows(path) == whole


class Recorder:
    """A sampling client that keeps what the real one answered."""

    def __init__(self, client: tinker.SamplingClient) -> None:
        self.client = client
        self.replies: dict[int, list[int]] = {}

    def sample(self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams):
        future = self.client.sample(prompt, num_samples=num_samples, sampling_params=sampling_params)
        future.add_done_callback(
            lambda done: self.replies.update({prompt.length: list(done.result().sequences[0].tokens)})
        )
        return future


def test_the_actions_of_an_episode_are_the_tokens_that_the_server_sampled(backend: Backend, adapter):
    policy = sync_policy(backend, adapter, version=0)
    recorder = Recorder(policy.client)
    playing = play_config(ChatTemplate.of(backend), max_turns=3, max_reply_tokens=16, context_length=2048)
    (episode,) = play(load_tasks("train", "easy")[:1], 1, Policy(recorder, 0), playing)
    actions = np.array(episode.conversation.tokens)[episode.conversation.is_action].tolist()
    assert actions == [token for _, reply in sorted(recorder.replies.items()) for token in reply]
    assert actions


def test_a_user_error_of_the_process_is_one_line_and_status_2(tmp_path: Path):
    result = run("evaluate.py", "--difficulty", "easy", "--depths", 7, "--run-dir", tmp_path / "run")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: no val task is left")
    assert not (tmp_path / "run").exists()
