"""`--dry-run` of the three scripts: what they would do, and that they do nothing."""

from pathlib import Path

import pytest

import evaluate
import train_grpo
import train_sft
from sft_data.dataset import sample
from sft_data.files import write_rows
from sft_data.procedure import ROUNDS
from textcraft import load_tasks
from tinker_client.connection.connect import BackendConfig
from tinker_client.connection.models import TINY_MODEL, load_tokenizer, stop_token_ids
from tinker_client.play.chat import ChatTemplate
from tinker_client.train.demonstrations import read_demonstrations, tokenize


def test_an_evaluation_says_how_much_it_would_be_and_writes_nothing(tmp_path: Path, capsys):
    evaluate.main(evaluate.Config(run_dir=tmp_path / "run", difficulty="hard", rollouts=4, max_turns=75, dry_run=True))
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["7", "46", "67", "(45-86)", "40", "0.870"] in rows
    assert ["all", "136", "92", "(40-145)", "44", "0.324"] in rows
    assert "544 episodes (136 tasks x 4 rollouts)" in out
    assert "at most 40,800 turns, 75 an episode" in out
    assert f"at most {544 * 75 * 512:,} sampled tokens" in out
    assert not (tmp_path / "run").exists()


def test_grpo_says_which_tasks_it_draws_from_and_how_much_it_plays(tmp_path: Path, capsys):
    train_grpo.main(train_grpo.Config(run_dir=tmp_path / "run", difficulty="extreme", steps=10, dry_run=True))
    out = capsys.readouterr().out
    assert "1,280 episodes (10 steps x 16 groups x 8 episodes)" in out
    assert f"at most {1280 * 75:,} turns" in out
    all_tasks = next(line.split() for line in out.splitlines() if line.split()[:1] == ["all"])
    assert (int(all_tasks[1]), all_tasks[-2:]) == (len(load_tasks("train", "extreme")), ["0", "0.000"])
    assert not (tmp_path / "run").exists()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = sample(load_tasks("train", depths=[2, 3]), ROUNDS[2], 12, recovery=2, mistakes=1, seed=0)
    write_rows(tmp_path / "data.jsonl", rows)
    return tmp_path / "data.jsonl"


def test_sft_counts_the_tokens_that_it_would_train_on(data: Path, tmp_path: Path, capsys):
    config = train_sft.Config(data=data, run_dir=tmp_path / "run", held_out=3, epochs=2, batch_size=4, dry_run=True)
    train_sft.main(config)
    out = capsys.readouterr().out
    assert "9 demonstrations (3 are held out) x 2 epochs: 6 optimizer steps" in out
    tokenizer = load_tokenizer(str(TINY_MODEL))
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    chats = [row.messages for row in train_sft.shuffled(read_demonstrations(data), config.seed)[3:]]
    tokens = sum(conversation.action_tokens for conversation in tokenize(chats, template, 2**31))
    assert f"{2 * tokens:,} tokens with a loss" in out
    assert not (tmp_path / "run").exists()


def test_sft_needs_no_tokenizer_for_the_rest(data: Path, tmp_path: Path, capsys):
    backend = BackendConfig(base_url="http://127.0.0.1:9")
    train_sft.main(train_sft.Config(data=data, run_dir=tmp_path / "run", backend=backend, dry_run=True))
    out = capsys.readouterr().out
    assert "12 demonstrations" in out
    assert "tokens not counted: give --model or --tokenizer" in out
