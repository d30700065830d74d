"""Demonstrations in every kind of file that --out and --data take."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sft_data.dataset import sample
from sft_data.files import write_rows
from sft_data.procedure import ROUNDS
from textcraft import load_tasks
from tinker_client.errors import UserError
from tinker_client.train.demonstrations import digest, read_demonstrations, read_rows

ROWS = sample(load_tasks("train", depths=[2, 3]), ROUNDS[2], 6, recovery=2, mistakes=1, seed=0)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows"])
def test_every_kind_of_file_holds_the_same_rows(name: str, tmp_path: Path):
    path = tmp_path / "data" / name
    write_rows(path, ROWS)
    assert [row for _, row in read_rows(str(path))] == ROWS
    wheres = [where for where, _ in read_rows(str(path))]
    assert wheres == [f"{'line' if name == 'rows.jsonl' else 'row'} {number}" for number in range(1, 7)]
    read = read_demonstrations(path)
    assert [demonstration.messages for demonstration in read] == [row["messages"] for row in ROWS]
    write_rows(tmp_path / "other.jsonl", ROWS)
    assert digest(read) == digest(read_demonstrations(tmp_path / "other.jsonl"))
    assert digest(read) != digest(read[1:])
    assert sorted(file.name for file in path.parent.iterdir()) == [name]
    write_rows(path, ROWS[:2])
    assert [row for _, row in read_rows(str(path))] == ROWS[:2]


def test_a_part_of_a_dataset_is_chosen_by_its_name(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    parts = {name: datasets.Dataset.from_list(rows) for name, rows in (("train", ROWS[:4]), ("test", ROWS[4:]))}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert [row for _, row in read_rows(str(tmp_path / "saved"))] == ROWS[:4]
    assert [row for _, row in read_rows(str(tmp_path / "saved"), "test")] == ROWS[4:]
    with pytest.raises(UserError, match="split no-such"):
        list(read_rows(str(tmp_path / "saved"), "no-such"))


def test_what_other_tools_write_is_read(tmp_path: Path):
    first, second = (json.dumps(row | {"note": "a\u2028b", "score": None}, ensure_ascii=False) for row in ROWS[:2])
    (tmp_path / "rows.jsonl").write_text(f"{first}\n\n{second}\n\n", encoding="utf-8")
    read = list(read_rows(str(tmp_path / "rows.jsonl")))
    assert [where for where, _ in read] == ["line 1", "line 3"]
    assert [row for _, row in read] == [row | {"note": "a\u2028b"} for row in ROWS[:2]]
    null = [{**ROWS[0], "messages": [{"weight": None, **message} for message in ROWS[0]["messages"]]}]
    write_rows(tmp_path / "null.jsonl", null)
    assert read_demonstrations(tmp_path / "null.jsonl")[0].messages == ROWS[0]["messages"]


def test_a_pipe_is_read_once(tmp_path: Path):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "rows.jsonl").read_bytes())
    os.close(writing)
    piped = read_demonstrations(Path(f"/dev/fd/{reading}"))
    os.close(reading)
    assert digest(piped) == digest(read_demonstrations(tmp_path / "rows.jsonl"))


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch):
    def refused(path: Path | str) -> str:
        with pytest.raises(UserError) as caught:
            read_demonstrations(Path(path))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "bad.jsonl").write_text('{"messages": []}\n{"mess')
    assert "bad.jsonl, line 1: no reply is trained on" in refused(tmp_path / "bad.jsonl")
    (tmp_path / "torn.jsonl").write_text(json.dumps(ROWS[0]) + '\n{"mess')
    assert "torn.jsonl, line 2: not JSON" in refused(tmp_path / "torn.jsonl")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    assert "cannot read" in refused(tmp_path / "bad.parquet")
    (tmp_path / "folder").mkdir()
    assert "folder of a saved dataset" in refused(tmp_path / "folder")
    val = sample(load_tasks("val", depths=[2]), ROUNDS[2], 1, recovery=0, mistakes=1, seed=0)
    write_rows(tmp_path / "val.parquet", val)
    assert "val.parquet, row 1: " in refused(tmp_path / "val.parquet")
    for name in ("nobody/nothing", "nobody/nothing-v2.1"):  # the tests' environment is offline
        assert f"cannot read {name}, split train" in refused(name)


def test_the_game_and_the_data_are_imported_without_what_they_need_only_later():
    heavy = ("tinker", "transformers", "torch", "datasets")
    program = f"import sys, textcraft, sft_data.__main__; print([name for name in {heavy} if name in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
