"""`python -m sft_data`: the files it writes, what it prints, and what it refuses."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sft_data.__main__ import main
from sft_data.dataset import split_evenly
from textcraft import load_tasks

TINY_TOKENIZER = Path(__file__).parents[2] / "server" / "tiny_model"


def written(tmp_path: Path, *flags: str) -> list[dict]:
    out = tmp_path / "data" / "demonstrations.jsonl"
    main(["--out", str(out), *flags])
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def weights(row: dict) -> list[int]:
    return [message["weight"] for message in row["messages"] if message["role"] == "assistant"]


def test_round_2_is_150_of_which_30_recover_a_third_at_each_depth(tmp_path, capsys):
    rows = written(tmp_path)
    assert Counter(row["depth"] for row in rows) == {4: 50, 5: 50, 6: 50}
    assert Counter(row["kind"] for row in rows) == {
        "perfect": 120,
        "omitted_lookup": 10,
        "wrong_count": 10,
        "omitted_craft": 10,
    }
    assert Counter(row["depth"] for row in rows if row["kind"] != "perfect") == {4: 10, 5: 10, 6: 10}
    medium = {task.id for task in load_tasks("train", "medium")}
    assert len({row["task_id"] for row in rows} & medium) == len({row["id"] for row in rows}) == 150
    for row in rows:
        assert row["split"] == "train"
        assert [message["role"] for message in row["messages"][:3]] == ["system", "user", "assistant"]
        assert row["messages"][-1]["content"] == "<tool>finish()</tool>"
        assert (0 in weights(row)) == (row["kind"] != "perfect")
    assert "150 demonstrations" in capsys.readouterr().out


def test_round_1_is_50_perfect_ones(tmp_path):
    rows = written(tmp_path, "--round", "1")
    assert Counter(row["depth"] for row in rows) == {4: 17, 5: 17, 6: 16}
    assert {row["kind"] for row in rows} == {"perfect"}
    assert all("at most 8 lines" in row["messages"][2]["content"] for row in rows)


def test_a_file_is_the_same_to_the_byte_for_the_same_seed_in_another_process(tmp_path):
    files = [tmp_path / name for name in ("here.jsonl", "there.jsonl", "other_seed.jsonl")]
    flags = ["--count", "30", "--recovery", "12", "--mistakes", "2", "--wording", "terse"]
    main([*flags, "--seed", "7", "--out", str(files[0])])
    command = [sys.executable, "-m", "sft_data", *flags, "--seed", "7", "--out", str(files[1])]
    subprocess.run(
        command, check=True, capture_output=True, env={"PYTHONHASHSEED": "123"}, cwd=TINY_TOKENIZER.parents[1]
    )
    main([*flags, "--seed", "8", "--out", str(files[2])])
    here, there, other = [file.read_bytes() for file in files]
    assert here == there != other


def test_every_easy_task_is_used_once_when_all_are_asked_for(tmp_path):
    rows = written(tmp_path, "--count", "588", "--difficulty", "easy", "--recovery", "0", "--wording", "terse")
    assert sorted(row["task_id"] for row in rows) == sorted(task.id for task in load_tasks("train", "easy"))


def test_count_0_on_val_is_every_task_once_in_order_and_says_so(tmp_path):
    rows = written(tmp_path, "--split", "val", "--count", "0", "--depths", "2", "5", "9")
    assert [row["task_id"] for row in rows] == [task.id for task in load_tasks("val", depths=[2, 5, 9])]
    assert {(row["split"], row["kind"]) for row in rows} == {("val", "perfect")}


def test_count_0_takes_every_depth(tmp_path):
    assert len(written(tmp_path, "--split", "val", "--count", "0")) == 632


def test_mistakes_can_be_trained_on(tmp_path):
    left_out = written(tmp_path, "--count", "9", "--recovery", "9")
    trained = written(tmp_path, "--count", "9", "--recovery", "9", "--train-on-mistakes")
    assert all(0 in weights(row) for row in left_out)
    assert {weight for row in trained for weight in weights(row)} == {1}
    texts = [[message["content"] for row in rows for message in row["messages"]] for rows in (left_out, trained)]
    assert texts[0] == texts[1]


def test_a_tokenizer_counts_replies_and_warns_above_the_cap(tmp_path, capsys):
    written(tmp_path, "--count", "6", "--depths", "2", "--tokenizer", str(TINY_TOKENIZER))
    assert "warning" not in capsys.readouterr().out
    written(tmp_path, "--count", "6", "--depths", "11", "--tokenizer", str(TINY_TOKENIZER))
    assert "replies are over 512 tokens, the longest has" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--count", "589", "--depths", "2", "3"], "ask for at most 588"),
        (["--depths", "13"], "no task is left"),
        (["--depths", "8", "--difficulty", "easy"], "no task is left"),
        (["--count", "5", "--recovery", "6"], "--recovery must lie between 0 and --count"),
        (["--count", "-1"], "--count must not be negative"),
        (["--round", "1", "--recovery", "5"], "use --round 2"),
        (["--mistakes", "0"], "--recovery 0"),
        (["--count", "20", "--recovery", "20", "--depths", "2", "--mistakes", "9"], "ask for fewer"),
        (["--tokenizer", "/nowhere/at/all"], "no tokenizer can be loaded"),
    ],
)
def test_what_cannot_be_written_ends_in_one_line_and_status_2(tmp_path, capsys, flags, says):
    with pytest.raises(SystemExit) as stopped:
        written(tmp_path, *flags)
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ")
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_an_out_that_is_a_directory_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--out", str(tmp_path), "--count", "3"])
    assert stopped.value.code == 2
    assert "give another --out" in capsys.readouterr().err


def test_shares_are_even_as_far_as_there_is_room():
    assert split_evenly(10, {4: 9, 5: 9, 6: 9}) == {4: 4, 5: 3, 6: 3}
    assert split_evenly(10, {4: 1, 5: 9, 6: 2}) == {4: 1, 5: 7, 6: 2}
    assert split_evenly(0, {4: 1}) == {4: 0}


def test_importing_the_data_code_loads_no_model_code():
    script = "import sys, sft_data.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "textcraft" in loaded
    assert not {"torch", "transformers", "tinker", "jax", "openreward"} & set(loaded)
