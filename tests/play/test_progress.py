"""The line of progress: what it counts, and what of it a log gets."""

import pytest
from transformers import AutoTokenizer

from textcraft import Episode, load_tasks
from tinker_client.connection.models import TINY_MODEL, stop_token_ids
from tinker_client.play import progress
from tinker_client.play.chat import ChatTemplate, Conversation
from tinker_client.play.progress import EpisodeBar, progress_bar, say
from tinker_client.play.records import EpisodeRecord, TurnRecord

TASK = load_tasks("train", "easy", [2])[0]
TURN = TurnRecord("", "", "info", policy_version=0, prompt_tokens=1, reply_tokens=1, cut_off=False)


@pytest.fixture(scope="module")
def opening() -> Conversation:
    tokenizer = AutoTokenizer.from_pretrained(TINY_MODEL)
    return Conversation(ChatTemplate(tokenizer, stop_token_ids(tokenizer)), Episode(TASK).messages)


@pytest.fixture
def at_once(monkeypatch) -> None:
    """A log gets its line as soon as anything changes, rather than once a minute."""
    monkeypatch.setattr(progress, "_LOG_EVERY_S", 1e-9)


def test_a_wait_names_the_oldest_episode_its_turn_and_what_was_lost(opening, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    oldest, other = (EpisodeRecord(TASK, step=1, group=0, episode=i, conversation=opening) for i in (0, 1))
    with EpisodeBar("test", 32) as bar:
        assert bar.in_words() == "0 of 32 episodes"
        bar.begins(oldest)
        now[0] += 100
        bar.begins(other)
        now[0] += 480
        oldest.turns += [TURN] * 11
        bar.lost_turn("ConnectionError: gone\nfor good")
        assert bar.in_words() == (
            "0 of 32 episodes, the oldest 9 m 40 s in turn 12; "
            "1 turns lost so far, the last one with ConnectionError: gone for good"
        )
        bar.ended(oldest)
        bar.ended(other)
        assert bar.in_words().startswith("2 of 32 episodes; ")


def test_a_bar_starts_anew_with_each_step_and_keeps_what_is_played_ahead(opening, at_once, capsys):
    episodes = [EpisodeRecord(TASK, step=1, group=0, episode=i, conversation=opening, end="success") for i in range(4)]
    with EpisodeBar("") as bar:
        bar.begin("step 1/2", done_with=0)
        bar.expect(4)
        for episode in episodes[:3]:
            bar.begins(episode)
            bar.turn()
            bar.ended(episode)
        bar.begin("step 2/2", done_with=2)
        assert bar.in_words() == "1 of 2 episodes"
        bar.begins(episodes[3])
        bar.turn()
        bar.ended(episodes[3])
    first, *_, last = capsys.readouterr().err.splitlines()
    assert first.startswith("step 1/2")
    assert last.startswith("step 2/2")
    assert "2/2 " in last
    assert "1 turns, 1 solved" in last


def test_a_log_gets_whole_lines(at_once, capsys):
    bar = progress_bar("training", 3, unit="step")
    for step in range(3):
        bar.update()
        say(f"step {step}")
    bar.close()
    out, err = capsys.readouterr()
    assert out == "step 0\nstep 1\nstep 2\n"
    assert "\r" not in err
    assert err.endswith("\n")
    assert [line.split()[0] for line in err.splitlines()] == ["training:"] * 3
    assert "3/3" in err


def test_a_log_gets_nothing_of_what_ends_at_once(capsys):
    bar = progress_bar("training", 3, unit="step")
    bar.update(3)
    bar.close()
    assert capsys.readouterr().err == ""
