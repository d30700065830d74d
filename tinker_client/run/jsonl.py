"""JSON and JSONL files that survive a kill: a reader finds the old or the new content, and whole rows only."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinker_client.errors import UserError

Row = dict[str, Any]


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append JSON objects to a JSONL file, on disk before this returns. A torn last line is cut off first."""
    content = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with writing(path), path.open("a+b") as file:
        _cut_torn_line(file)
        file.write(content.encode())
        file.flush()
        os.fsync(file.fileno())


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file so that a kill leaves the old or the new content."""
    draft = path.with_name(path.name + ".tmp")
    with writing(path):
        draft.unlink(missing_ok=True)
        append_rows(draft, rows)
        draft.replace(path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a JSONL file; none if it does not exist. A torn last line (its writer was killed) is left out.

    Raises UserError if another line is not a JSON object.
    """
    if not path.exists():
        return []
    whole, _, _torn = path.read_bytes().rpartition(b"\n")
    rows = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {path} is not a JSON object: repair or delete it")
        rows.append(row)
    return rows


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a kill leaves the old or the new content."""
    draft = path.with_name(path.name + ".tmp")
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    with writing(path), draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises UserError where writing `path` fails."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}): see to that, then give --resume") from error


def _cut_torn_line(file: Any) -> None:
    size = file.seek(0, os.SEEK_END)
    start = size
    while start > 0:
        start = max(0, start - 4096)
        file.seek(start)
        end = file.read(size - start).rfind(b"\n")
        if end >= 0:
            file.truncate(start + end + 1)
            return
    file.truncate(0)
