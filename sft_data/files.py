"""Demonstrations as files: JSONL, Parquet, or a saved dataset of the package `datasets`, a row a demonstration.

All hold the conversational format that trainers share, a column `messages`.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class DataError(Exception):
    """What was asked for makes no sense, or a file cannot be read or written. The message is one line."""


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
        elif path.is_dir() and not (path / "dataset_info.json").exists():
            raise DataError(f"{path} is a folder of something else: give another --out")
        else:
            _as_dataset(rows).save_to_disk(path)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error.strerror or error}): give another --out") from error


def _as_dataset(rows: Sequence[Mapping[str, Any]]) -> Any:
    import datasets  # noqa: PLC0415

    datasets.disable_progress_bars()
    return datasets.Dataset.from_list([dict(row) for row in rows])


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
