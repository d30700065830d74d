"""The ranking of wordings, with made-up models. The real server's is in test_scripts.py."""

from dataclasses import replace

import numpy as np
import pytest
from transformers import AutoTokenizer

from sft_data.__main__ import main
from sft_data.files import DataError
from sft_data.rank import Config, Score, candidates, measure, print_scores, scores
from sft_data.wording import WORDINGS
from tinker_client.connection.models import TINY_MODEL, stop_token_ids
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.train.demonstrations import tokenize

CONFIG = Config(count=6, depths=(2, 3))


def test_every_candidate_words_the_same_tasks_with_the_same_calls():
    rows = candidates(CONFIG)
    assert len(rows) >= 4
    assert rows.keys() == WORDINGS.keys()

    def calls(row: dict) -> list[str]:
        return [m["content"].rpartition("\n")[2] for m in row["messages"] if m["role"] == "assistant"]

    (post, *others) = rows.values()
    for other in others:
        assert [row["task_id"] for row in other] == [row["task_id"] for row in post]
        assert [calls(row) for row in other] == [calls(row) for row in post]
        assert [row["messages"] for row in other] != [row["messages"] for row in post]


def test_each_demonstration_is_measured_by_itself_whatever_the_batches():
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    template = ChatTemplate(tokenizer, stop_token_ids(tokenizer))
    chats = [row["messages"] for row in candidates(CONFIG)["terse"]]
    conversations = tokenize(chats, template, context_length=8192)
    sizes: list[int] = []

    def predict(batch: list[Conversation]) -> list[float]:
        sizes.append(len(batch))
        return [conversation.action_tokens * 0.5 for conversation in batch]

    for batch_size in (1, 4, 8):
        measured = measure(conversations, predict, batch_size)
        assert measured[1].tolist() == [c.action_tokens for c in conversations]
        assert measured[0].tolist() == [c.action_tokens * 0.5 for c in conversations]
    assert sizes == [1] * 6 + [4, 2] + [6]


def test_the_ranking_is_by_perplexity_per_token_and_the_ratio_is_paired():
    rng = np.random.default_rng(3)
    tokens = rng.integers(200, 2000, size=40).astype(float)
    difficulty = rng.uniform(0.5, 1.5, size=40)  # of the tasks, the same for all wordings
    measured = {
        "worse": np.stack([tokens * 1.2 * (difficulty * 1.05 + rng.normal(0, 0.01, 40)), tokens * 1.2]),
        "best": np.stack([tokens * difficulty, tokens]),
        "longer": np.stack([3 * tokens * difficulty * 1.5, 3 * tokens]),
    }
    ranking = scores(measured, seed=0)
    assert [score.wording for score in ranking] == ["best", "worse", "longer"]
    best, worse, longer = ranking
    assert best.perplexity == pytest.approx(np.exp((tokens * difficulty).sum() / tokens.sum()))
    assert (best.ratio, best.ratio_interval) == (1.0, (1.0, 1.0))
    assert worse.interval[0] < best.perplexity  # the intervals themselves overlap
    assert 1.0 < worse.ratio_interval[0] < worse.ratio < worse.ratio_interval[1]
    assert longer.tokens == pytest.approx(3 * best.tokens)
    assert longer.nats == pytest.approx((3 * tokens * difficulty * 1.5).mean())
    assert scores(measured, seed=0) == ranking


def test_the_table_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    score = Score("equations", 123.456, (101.234, 145.678), 1.234, (1.123, 1.345), 12345.6, 12345.6)
    print_scores([score, replace(score)], "a model, 30 tasks")
    printed = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in printed
    assert "123.46 [101.23, 145.68]" in printed
    assert "1.234 [1.123, 1.345]" in printed


def test_what_cannot_be_ranked_ends_in_one_line(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(DataError, match="two different"):
        Config(wordings=("post", "post"))
    for flags in (["--count", "1"], ["--base-url", "http://127.0.0.1:9", "--count", "2", "--depths", "2"]):
        with pytest.raises(SystemExit) as stopped:
            main(["rank", *flags])
        assert stopped.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
