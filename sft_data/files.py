"""Demonstrations in files: JSONL, Parquet, and saved datasets of the package `datasets`, a row a demonstration.

All hold the conversational format that trainers share, a column `messages`. JSONL is read here, so that an error names
its line and a pipe will do; the rest is up to `datasets`, which is imported only then.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class DataError(Exception):
    """What was asked for makes no sense, or a file cannot be read or written. The message is one line."""


def read_rows(source: str, split: str = "train") -> Iterator[tuple[str, Any]]:
    """Where each row of the demonstrations stands (`line 3`, `row 3`), counted from 1, and what it says.

    source: a JSONL or Parquet file, the folder of a saved dataset, or the name of a dataset on the hub.
    split: which part of a saved dataset with several, or of one on the hub.
    A field that is null is left out: that is how Arrow writes a field which a row does not have.
    Raises DataError, with the row where there is one.
    """
    path = Path(source)
    if path.is_dir() or path.suffix == ".parquet" or not (path.exists() or path.suffix):
        for number, row in enumerate(_dataset(source, split), start=1):
            yield f"row {number}", _without_nulls(row)
    else:
        for number, row in _json_lines(path):
            yield f"line {number}", _without_nulls(row)


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSONL, as Parquet if the name ends in .parquet, or as a saved dataset if it has no ending.

    Folders are made, what is there is replaced; a kill leaves the old or the new file. Raises DataError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            _replace(path, lambda draft: _as_dataset(rows).to_parquet(draft))
        elif path.suffix:
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            _replace(path, lambda draft: draft.write_text("".join(lines), encoding="utf-8"))
        else:
            _as_dataset(rows).save_to_disk(path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error.strerror or error}): give another --out") from error


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} ({error}): make it with `python -m sft_data --out {path}`") from error
    # Not splitlines: JSON may hold other line separators, such as U+2028, as they are.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error


def _dataset(source: str, split: str) -> Any:
    import datasets  # noqa: PLC0415 - seconds, and not for JSONL

    datasets.disable_progress_bars()
    path = Path(source)
    try:
        if path.is_dir():
            saved = datasets.load_from_disk(source)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        if path.suffix == ".parquet":
            # keep_in_memory and a cache that goes at once: no copy stays in the user's folders.
            with tempfile.TemporaryDirectory() as cache:
                return datasets.Dataset.from_parquet(source, cache_dir=cache, keep_in_memory=True)
        return datasets.load_dataset(source, split=split)
    except Exception as error:  # whatever datasets, pyarrow and the hub raise
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"cannot read {source}, split {split} ({type(error).__name__}: {reason}): give a JSONL or Parquet file, "
            "the folder of a saved dataset, or the name of one on the hub"
        ) from error


def _as_dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    return datasets.Dataset.from_list([dict(row) for row in rows])


def _replace(path: Path, write: Any) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value
